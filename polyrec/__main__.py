"""`python -m polyrec`."""

import sys

from polyrec.cli import main

sys.exit(main())
