"""Lanes: executors that run batches on one device, with a runtime for each of the device's paths.

    inline    runs in the server's event loop: no hand-over, but it blocks the loop
    thread    runs in a thread of the server: for a device that works while the host waits
    process   runs in its own process: a crash costs one lane, and the GIL is not shared

A lane executes one batch at a time. Queueing, batching and the choice of a path happen in planner/routing.
"""
