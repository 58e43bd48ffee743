"""The command line: `polyrec VERB`, one module a verb.

A verb's module has `EXAMPLE`, `add_arguments(parser)` and `run(args) -> exit status`. Only the module of
the verb given is imported, and its heavy imports are inside `run`, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from polyrec.loadtest.parser import Parser

GROUPS = {
    "start": {
        "demo": "generate data, train, profile, plan, serve, answer a ranking request, and load the server",
        "new": "draft a schema from a data file, with the reason for each line",
    },
    "train": {
        "calibrate": "count accesses of each id, of data or for a bundle that is imported",
        "pack": "pack data: one row per request, its context once, sessions together",
        "train": "train a DLRM on click data and write a bundle",
        "evaluate": "measure the quality of bundles on data, with significant differences",
        "import": "turn a checkpoint of facebookresearch/dlrm or TorchRec into a bundle",
        "distill": "derive another representation from a trained table bundle, with or without data",
        "materialize": "store the vectors that a dhe, select or hybrid bundle computes",
        "reserve": "add rows to tables, for values that come while the model serves",
        "inspect": "describe a bundle, a profile, a plan or a machine file",
    },
    "plan": {
        "profile": "measure latency, memory and quality of bundles on every device of this machine",
        "plan": "choose paths, lanes and the placement of rows for an SLO, a traffic and memory budgets",
        "simulate": "simulate a plan under traffic: goodput, latency, quality, effect of faults",
    },
    "serve and measure": {
        "serve": "serve a bundle or a plan over HTTP",
        "cluster": "hold replicas of a server on the nodes of a Ray cluster, behind one port",
        "rollout": "try another version on a part of a server's requests; promote it or roll it back",
        "loop": "train on what a server logs, again and again; evaluate, publish and try each new version",
        "feed": "send a stream of row updates to a server",
        "load": "send requests at scheduled times, whatever the server does, and report latency and outcomes",
        "bench": "measure the load that each routing policy of a plan serves within an SLO, on a live server",
        "top": "show a server's rate, latency, paths and lanes, live in the terminal",
    },
    "shell": {
        "completion": "print the completion script of a shell",
    },
}
"""Verbs with their help, by heading, in the order in which a user meets them."""
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}


def build_parser(complete: Collection[str] = tuple(VERBS)) -> Parser:
    """The parser of all verbs; the function of the chosen verb is in `args.run`.

    complete: verbs that get their arguments, for which their modules are imported; others get a line of help.
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
        module = import_module(f"polyrec.cli.{verb if verb != 'import' else 'import_'}")
        subparser.epilog = f"example: {module.EXAMPLE}"
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its status: 2 after a user's mistake (one line), 130 after an interrupt."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["--version"]:
        # before the verbs are imported: scripts ask for it often
        from polyrec.models.version import code_version

        print(code_version())
        return 0
    # the program's own options take no value, so the first word is the verb
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
        # the reader of our output is gone; the interpreter must not fail on it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:
        # a full disk or a folder without permission is no defect
        if e.filename is None:
            raise
        print(f"polyrec: {error_word()}: '{printable(str(e.filename))}': {e.strerror}", file=sys.stderr)
        return 2
