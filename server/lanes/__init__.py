"""Lanes: executors on one device each, with a runtime for every path of it.

    inline    in the server's event loop: no hop, but the loop is blocked meanwhile
    thread    in a thread of the server: for a device that works while the host waits
    process   in its own process: a crash costs one lane, and the interpreter lock is not shared

Queueing, batching and the choice of a path happen in planner/routing; a lane executes one batch at a time.
"""
