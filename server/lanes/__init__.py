"""Lanes: one executor each, of every path of its device.

    inline    in the server's event loop: no hop, but the loop stands still meanwhile
    thread    in a thread of the server: for a device that works while the host waits
    process   in a process of its own: a crash costs one lane, the interpreter lock is not shared

What queues, which path answers and what waits together is decided elsewhere (planner/routing); a lane is
given one batch at a time and tells what became of it.
"""
