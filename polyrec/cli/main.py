"""Implements the command line, `polyrec VERB`, with one module per verb, in the folder of its heading.

A verb's module defines `EXAMPLE`, `add_arguments(parser)` and `run(args) -> exit status`. Only the module of
the verb in use is imported, and its heavy imports are inside `run`, so that `--help` is fast.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from polyrec.loadtest.parser import Parser

GROUPS = {
    "start": {
        "demo": "run everything once on generated data: train, profile, plan, serve, rank, load test",
        "new": "draft a schema from a data file, with a reason for each line",
    },
    "train": {
        "calibrate": "count how often each id is used, in data or for an imported bundle",
        "pack": "pack data: one row per request, with its context once and sessions together",
        "train": "train a DLRM on click data and write it as a bundle",
        "evaluate": "measure and compare the quality of bundles on data",
        "import": "make a bundle from a checkpoint of facebookresearch/dlrm or TorchRec",
        "distill": "make a bundle with another representation from a trained table bundle",
        "materialize": "store the vectors that a dhe, select or hybrid bundle would compute",
        "reserve": "add free rows to tables, for new values that arrive while serving",
        "inspect": "describe a bundle, a profile, a plan or a machine file",
    },
    "plan": {
        "profile": "measure latency, memory and quality of bundles on the devices of this machine",
        "plan": "choose paths, lanes and the placement of rows for an SLO, traffic and memory budgets",
        "simulate": "simulate a plan under traffic and faults: goodput, latency, quality",
    },
    "serve": {
        "serve": "serve a bundle or a plan over HTTP",
        "cluster": "run replicas of a server on a Ray cluster, behind one port",
        "rollout": "try a new version on a share of a server's requests; promote it or roll it back",
        "loop": "train on a server's prediction log repeatedly; evaluate, publish and try each version",
        "feed": "send a stream of row updates to a server",
    },
    "measure": {
        "load": "load test a server in open loop, and report latency and outcomes",
        "bench": "measure how much load each routing policy serves within an SLO, on a live server",
        "top": "show a server's rate, latency, paths and lanes, live in the terminal",
    },
    "shell": {
        "completion": "print the completion script of a shell",
    },
}
"""Verbs with their help, by heading, in the order in which a user meets them. A heading names the folder of
its verbs' modules.
"""
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}


def module_of(verb: str) -> str:
    """Returns the name of the module that implements a verb."""
    folder = next(heading for heading, verbs in GROUPS.items() if verb in verbs)
    return f"polyrec.cli.{folder}.{verb if verb != 'import' else 'import_'}"


def build_parser(complete: Collection[str] = tuple(VERBS)) -> Parser:
    """Builds the parser of all verbs; the chosen verb's function is in `args.run`.

    complete: verbs whose modules are imported to add their arguments; the others only get a line of help.
    """
    from polyrec.loadtest.parser import HelpFormatter, Parser

    class VerbsFormatter(HelpFormatter):
        headings = {next(iter(verbs)): f"{name}:" for name, verbs in GROUPS.items()}  # noqa: RUF012

    parser = Parser(
        prog="polyrec",
        description="Serves deep learning recommendation models: many representations, many devices, "
        "one latency SLO.",
        epilog="polyrec VERB --help shows a verb's options and an example",
        formatter_class=VerbsFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=Parser)
    for verb, text in VERBS.items():
        subparser = verbs.add_parser(verb, help=text, description=text)
        if verb not in complete:
            continue
        module = import_module(module_of(verb))
        subparser.epilog = f"example: {module.EXAMPLE}"
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to a disk that is full or failing, or beyond a limit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status: 2 after a user's mistake (one line), 130 after an
    interrupt.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["--version"]:
        # before the verbs are imported, because scripts often ask for the version
        from polyrec.models.version import code_version

        print(code_version())
        return 0
    # the program's own options take no values, so the first word is the verb
    parser = build_parser([word for word in given if not word.startswith("-")][:1])
    args = parser.parse_args(given)
    if args.verb is None:
        parser.print_help()
        return 0
    from polyrec.cli.extras import require_extras
    from polyrec.loadtest.parser import error_word
    from polyrec.models.allocator import retain_freed_memory
    from polyrec.models.errors import PolyrecError
    from polyrec.models.text import printable

    retain_freed_memory()
    try:
        require_extras(args.verb)
        return int(args.run(args))
    except PolyrecError as e:
        print(f"polyrec: {error_word()}: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of the output is gone; do not let the interpreter fail on it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:
        # a full disk or a folder without permission is not a bug; a write that fails names no file
        if e.filename is None and e.errno not in FULL:
            raise
        where = "" if e.filename is None else f"'{printable(str(e.filename))}': "
        print(f"polyrec: {error_word()}: {where}{e.strerror}", file=sys.stderr)
        if e.filename is None:
            # it may be standard output, which must not fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
