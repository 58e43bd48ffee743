"""Parses command lines, with one-line errors that suggest corrections, and help in groups and colors.

argparse does the parsing. Imports nothing heavy, for a fast `--help`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, ClassVar, NoReturn

from polyrec.models.text import printable

BOLD, CYAN, RED, PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[31m", "\x1b[0m"
MAX_WIDTH = 110
FEW_OPTIONS = 5
"""Most optional arguments that a usage line spells out."""
_HEADING = re.compile(r"^(\w[^\n:]*:)(?=$| polyrec| \[)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def colored(stream: IO[str] | None) -> bool:
    """Returns whether a stream is a terminal that shows colors (https://no-color.org)."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def error_word() -> str:
    """Returns `error`, in red if standard error is a terminal."""
    return f"{RED}error{PLAIN}" if colored(sys.stderr) else "error"


class HelpFormatter(argparse.HelpFormatter):
    """Formats help as wide as the terminal, with the verbs of a program under headings.

    headings: first verb of a group -> its heading.
    """

    headings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, prog: str) -> None:
        import shutil  # here, as argparse does, because it imports much

        width = min(shutil.get_terminal_size().columns, MAX_WIDTH) - 2
        super().__init__(prog, max_help_position=28, width=width)
        # argparse does not count the verbs, which are indented further
        self._action_max_length = max(map(len, self.headings), default=0) + 6

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Shows required arguments, and `[options]` if there are more than a few others."""
        actions, groups = list(actions), list(groups)
        needed = {id(a) for group in groups if group.required for a in group._group_actions}
        needed |= {id(a) for a in actions if a.required or not a.option_strings}
        if len(actions) - len(needed) > FEW_OPTIONS:
            rest = argparse.Action([], "options", metavar="[options]")
            actions = [*(a for a in actions if id(a) in needed), rest]
        super().add_usage(usage, actions, groups, prefix)

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        if isinstance(action, argparse._SubParsersAction):
            for verb, heading in self.headings.items():
                text = re.sub(rf"(?m)^( +)(?={verb}\s)", rf"\n  {heading}\n\1", text, count=1)
        return text


class Parser(argparse.ArgumentParser):
    """argparse's parser with one-line errors that suggest the intended verb or option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter} | kwargs)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {error_word()}: {printable(message)}; {self.prog} --help tells more\n")

    def print_help(self, file: Any = None) -> None:
        stream = sys.stdout if file is None else file
        text = self.format_help()
        if colored(stream):
            text = _HEADING.sub(rf"{BOLD}\1{PLAIN}", text)
            text = _OPTION.sub(rf"{CYAN}\g<0>{PLAIN}", text)
        stream.write(text)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses unknown options here, where the verb's own are known, and before missing ones."""
        given = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown(given)
        found, rest = super().parse_known_args(given, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, []

    def _refuse_unknown(self, args: Sequence[str]) -> None:
        if self._subparsers is not None:
            return  # arguments after the verb belong to the verb
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for arg in args:
            if arg == "--":
                return
            name = arg.partition("=")[0]
            if name.startswith("--") and " " not in name and not any(k.startswith(name) for k in known):
                self.error(f"unrecognized argument: {name}{did_you_mean(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        names = [str(choice) for choice in choices]
        meant = did_you_mean(str(value), names)
        if not meant:
            meant = f"; it is one of {', '.join(names)}"
        raise argparse.ArgumentError(action, f"there is no '{value}'{meant}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean ...?`, or an empty string if no known word is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
