"""Sanitizes foreign text (file names, manifests, messages of libraries) for log lines, pages and commands."""

from __future__ import annotations

import json
import re
import shlex

MAX_CHARACTERS = 500
"""Maximum length of a message."""

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line separators and lone surrogates, which split lines or control a terminal."""

_CREDENTIALS = re.compile(r"(?<=://)[^\s'\"]*@")
_ABSOLUTE = re.compile(r"(?<![\w.~:/-])/(?!v[12]/)(?:[^/\s'\":,;]+/)+([^/\s'\":,;]+)?")


def printable(text: str, max_length: int = MAX_CHARACTERS) -> str:
    """Returns text as one line: cut to `max_length`, then unprintable characters escaped (`\\n`, `\\x1b`)."""
    short = text if len(text) <= max_length else text[: max_length - 4] + " ..."
    return UNPRINTABLE.sub(lambda c: c[0].encode("unicode_escape").decode(), short)


def public(text: str) -> str:
    """Sanitizes like `printable`, and removes credentials from URLs and the folders of absolute paths.

    For pages, answers and logs, whose readers should not learn the server's folders. The server's URL paths
    (/v1/..., /v2/...) are kept.
    """
    return printable(_ABSOLUTE.sub(lambda m: m[1] or "/", _CREDENTIALS.sub("", text)))


def error_in(body: bytes) -> str | None:
    """Returns the `error` of a server's answer, a JSON object, as `printable` does; None if it has none."""
    try:
        return printable(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return None


def python_literal(value: str | dict[str, str]) -> str:
    """Returns a Python literal without single quotes of its own, for `python_command`."""
    return json.dumps(value, ensure_ascii=False)


def python_command(code: str) -> str:
    """Returns the shell command that runs Python code."""
    return f"python -c {shlex.quote(code)}"
