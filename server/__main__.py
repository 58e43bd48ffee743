"""Runs the server with POLYREC_ variables as its settings: `python -m polyrec.server`.

This entry point is for containers and child processes; on a command line use `polyrec serve`. Arguments are
inherited file descriptors. Three make the process one of several behind a port (server/app/processes.py): the
shared listening socket, its own listening socket, and a lifeline pipe, whose closing by the parent ends the
process. A single descriptor is a lifeline pipe (server/child.py).

Prints one line of JSON for the program that started it: that it is ready, or why it failed to become so.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from polyrec.models.slow_imports import slow_imports
from polyrec.server.app.signals import exit_on_sigterm


def main(inherited: Sequence[int] = ()) -> int:
    """Serves until a signal ends the server; returns the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    with exit_on_sigterm():
        with slow_imports():
            from polyrec.models.errors import PolyrecError
            from polyrec.server.app.listening import Ready
            from polyrec.server.app.settings.environment import load_settings

        def announce(ready: Ready) -> None:
            print(ready.line(), flush=True)

        try:
            settings = load_settings({}, os.environ)
            if inherited:
                from polyrec.server.lanes.worker import die_with

                *sockets, lifeline = inherited
                die_with(lifeline)
            if len(inherited) <= 1 and settings.processes > 1:
                with slow_imports():
                    from polyrec.server.app.processes import supervise
                return supervise(settings, announce)
            with slow_imports():
                from polyrec.server.app.run import serve
            if len(inherited) > 1:
                shared, own = sockets
                return serve(settings, announce, socket.socket(fileno=shared), socket.socket(fileno=own))
            return serve(settings, announce)
        except Exception as e:
            expected = isinstance(e, PolyrecError)
            error = str(e) if expected else f"{type(e).__name__}: {e}"
            with suppress(OSError):  # a full disk or a closed pipe
                print(json.dumps({"event": "failed", "error": error}), flush=True)
            if not expected:
                raise
            print(f"polyrec: error: {error}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main([int(fd) for fd in sys.argv[1:]]))
