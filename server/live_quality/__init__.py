"""Measures each path's quality on served requests, from labels that come later (docs/live-quality.md).

prediction log --LogSampler--> labeled requests --Judge: every path--> report file --> LiveQuality
                      (a process that runs when cores are idle)                  (the server's end)
"""
