"""Runs the command line with `python -m polyrec`."""

import sys

from polyrec.cli.main import main

sys.exit(main())
