"""Defines the arguments of verbs that read training data."""

from __future__ import annotations

import argparse


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the data argument and its schema."""
    parser.add_argument("data", metavar="DATA", help="Parquet file or folder, or Criteo TSV[.gz]")
    parser.add_argument("--schema", required=True, help="schema file, or the name of a shipped one")


def add_on_malformed(parser: argparse._ActionsContainer) -> None:
    """Adds the option for malformed rows."""
    parser.add_argument(
        "--on-malformed",
        choices=("fatal", "count"),
        default="fatal",
        help="stop at a malformed row, or skip and count it (default fatal)",
    )
