"""Foreign text (file names, manifests, messages of libraries), made fit for a line of a log or a page."""

from __future__ import annotations

import re

MOST_CHARACTERS = 500
"""Of a message. What is longer helps nobody, and a log keeps it for ever."""

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line separators and lone surrogates: they split lines or steer terminals."""

_CREDENTIALS = re.compile(r"(?<=://)[^\s'\"]*@")
_ABSOLUTE = re.compile(r"(?<![\w.~:/-])/(?!v[12]/)(?:[^/\s'\":,;]+/)+([^/\s'\":,;]+)?")


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """One line of at most `most` characters; control characters are written as escapes (`\\n`, `\\x1b`)."""
    short = text if len(text) <= most else text[: most - 4] + " ..."
    return UNPRINTABLE.sub(lambda c: c[0].encode("unicode_escape").decode(), short)


def public(text: str) -> str:
    """`printable`, without credentials in URLs, and with absolute paths cut to their last part.

    For pages, answers and logs, which others read than those who chose the paths. The server's own pages
    (/v1/..., /v2/...) keep theirs.
    """
    return printable(_ABSOLUTE.sub(lambda m: m[1] or "/", _CREDENTIALS.sub("", text)))
