"""The version: pyproject.toml reads it here, so that `polyrec --version` searches no installed packages."""

from __future__ import annotations

VERSION = "0.1.0"


def code_version() -> str:
    """Version of this code."""
    return VERSION
