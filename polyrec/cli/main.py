"""The command line: `polyrec VERB`, one module a verb.

A verb's module says what it is (`HELP`), shows a use (`EXAMPLE`), and has `add_arguments(parser)` and
`run(args) -> exit status`. It imports what is heavy inside `run`, so that `--help` is fast.
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
    """The parser of all verbs; what a verb runs is in `args.run`."""
    parser = Parser(
        prog="polyrec",
        description="Serves deep learning recommendation models: many representations, many devices, "
        "one latency promise.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        module = import_module(f"polyrec.cli.{verb if verb != 'import' else 'import_'}")
        one = verbs.add_parser(
            verb, help=module.HELP, description=module.HELP, epilog=f"example: {module.EXAMPLE}"
        )
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a user's mistake is one line and status 2, an interrupt status 130."""
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
        # whoever read our output has left; the interpreter must not complain about it while it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:
        # a full disk, a folder without permission: the machine's, not a defect
        if e.filename is None:
            raise
        print(f"polyrec: error: '{printable(str(e.filename))}': {e.strerror}", file=sys.stderr)
        return 2
