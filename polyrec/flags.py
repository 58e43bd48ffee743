"""Flags that several verbs have, in the same words."""

from __future__ import annotations

import argparse


def on_malformed(parser: argparse.ArgumentParser) -> None:
    """What `models.data.reader.open_data` is told of malformed rows."""
    parser.add_argument(
        "--on-malformed",
        choices=("fatal", "count"),
        default="fatal",
        help="stop at a malformed row, or leave it out and count it (default: fatal)",
    )
