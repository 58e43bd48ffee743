"""`polyrec completion`: prints what a shell needs to complete verbs, options, their values and files."""

from __future__ import annotations

import argparse

EXAMPLE = "polyrec completion bash > ~/.local/share/bash-completion/completions/polyrec"

SHELLS = ("bash", "zsh", "fish")
FOLDERS = frozenset({"bundle", "bundles", "report", "pictures", "tier_directory"})
"""Destinations of arguments that are folders."""
FILES = frozenset(
    {
        *("data", "schema", "recipe", "out", "calibration", "access_log", "profile", "plan", "explain"),
        *("machine", "body", "bodies", "tokens", "tls_cert", "tls_key", "store_password_file", "costs"),
        *("path", "source", "checkpoint", "predictions", "plot"),
    }
)
"""Destinations of arguments that are files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="shell to complete in")


def run(args: argparse.Namespace) -> int:
    import shtab

    from polyrec.cli.main import build_parser

    parser = build_parser()
    _name_files(parser, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _name_files(parser: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Tells shtab which arguments of every verb are files and folders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _name_files(verb, file, folder)
        elif action.nargs != 0 and action.dest in FILES | FOLDERS:
            action.complete = folder if action.dest in FOLDERS else file  # type: ignore[attr-defined]
