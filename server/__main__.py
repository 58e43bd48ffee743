"""Runs the server, configured by POLYREC_ variables: `python -m polyrec.server`.

For containers and child processes; use `polyrec serve` on a command line.
"""

from __future__ import annotations

import os
import sys

from polyrec.server.app.signals import exit_on_sigterm


def main() -> int:
    """Serves until a signal ends the server; returns the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    with exit_on_sigterm():
        # seconds of imports
        from polyrec.models.errors import PolyrecError
        from polyrec.server.app.run import serve
        from polyrec.server.app.settings import load_settings

        try:
            return serve(load_settings({}, os.environ), lambda ready: print(ready.line(), flush=True))
        except PolyrecError as e:
            print(f"polyrec: error: {e}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
