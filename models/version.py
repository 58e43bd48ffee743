"""Holds the version, which pyproject.toml reads from here, so that `polyrec --version` need not search
packages.
"""

from __future__ import annotations

VERSION = "0.1.0"


def code_version() -> str:
    """Returns the version of this code."""
    return VERSION
