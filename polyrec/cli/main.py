"""The command line: `polyrec VERB`, one module a verb.

A verb's module has `HELP`, `EXAMPLE`, `add_arguments(parser)` and `run(args) -> exit status`. Heavy imports
are inside `run`, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from polyrec.loadtest.arguments import Parser

# in the order in which a user meets them
VERBS = (
    "demo",
    "calibrate",
    "pack",
    "train",
    "evaluate",
    "import",
    "distill",
    "materialize",
    "inspect",
    "profile",
    "plan",
    "simulate",
    "serve",
    "load",
    "bench",
)


def build_parser() -> Parser:
    """The parser of all verbs; the function of the chosen verb is in `args.run`."""
    parser = Parser(
        prog="polyrec",
        description="Serves deep learning recommendation models: many representations, many devices, "
        "one latency SLO.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        module = import_module(f"polyrec.cli.{verb if verb != 'import' else 'import_'}")
        subparser = verbs.add_parser(
            verb, help=module.HELP, description=module.HELP, epilog=f"example: {module.EXAMPLE}"
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its status: 2 after a user's mistake (one line), 130 after an interrupt."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.version:
        from polyrec.models.bundle.bundle import code_version

        print(code_version())
        return 0
    if args.verb is None:
        parser.print_help()
        return 0
    from polyrec.models.allocator import retain_freed_memory
    from polyrec.models.errors import PolyrecError
    from polyrec.models.text import printable

    retain_freed_memory()
    try:
        return int(args.run(args))
    except PolyrecError as e:
        print(f"polyrec: error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output is gone; the interpreter must not fail on it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:
        # a full disk or a folder without permission is no defect
        if e.filename is None:
            raise
        print(f"polyrec: error: '{printable(str(e.filename))}': {e.strerror}", file=sys.stderr)
        return 2
