"""Live quality: how good each path is on requests that were served, from labels that came later
(docs/live-quality.md).

    prediction log --LogSampler--> labeled requests --Judge: every path--> report file --> LiveQuality
                          (a process that runs when cores are idle)                  (the server's end)
"""
