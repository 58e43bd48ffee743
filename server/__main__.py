"""Runs the server, configured by POLYREC_ variables: `python -m polyrec.server`.

For containers and child processes; use `polyrec serve` on a command line. Three descriptors as arguments make
it one of several processes behind a port (server/app/processes.py): the listening socket that they share, its
own, and a pipe whose other end closes with the process that started it. One descriptor is such a pipe alone.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from polyrec.server.app.signals import exit_on_sigterm


def main(inherited: Sequence[int] = ()) -> int:
    """Serves until a signal ends the server; returns the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    with exit_on_sigterm():
        # seconds of imports
        from polyrec.models.errors import PolyrecError
        from polyrec.server.app.listening import Ready
        from polyrec.server.app.settings import load_settings

        def announce(ready: Ready) -> None:
            print(ready.line(), flush=True)

        try:
            settings = load_settings({}, os.environ)
            if inherited:
                from polyrec.server.lanes.worker import die_with

                *sockets, lifeline = inherited
                die_with(lifeline)
            if len(inherited) > 1:
                from polyrec.server.app.run import serve

                shared, own = sockets
                return serve(settings, announce, socket.socket(fileno=shared), socket.socket(fileno=own))
            if settings.processes > 1:
                from polyrec.server.app.processes import supervise

                return supervise(settings, announce)
            from polyrec.server.app.run import serve

            return serve(settings, announce)
        except PolyrecError as e:
            print(f"polyrec: error: {e}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main([int(fd) for fd in sys.argv[1:]]))
