"""Defines the arguments of verbs that read training data."""

from __future__ import annotations

import argparse


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the data argument and its schema."""
    parser.add_argument("data", metavar="DATA", help="Parquet file or folder, or Criteo TSV[.gz]")
    parser.add_argument("--schema", required=True, help="schema file, or the name of a shipped one")


def add_period(parser: argparse._ActionsContainer) -> None:
    """Adds the options for the rows of a period."""
    for flag, meaning in (("--since", "from this time on"), ("--until", "before this time")):
        parser.add_argument(
            flag,
            metavar="TIME",
            help=f"use only rows {meaning}, split among themselves: 2026-11-23, 2026-11-23T18:00 (UTC), or a "
            "number; compared with the column that the schema splits by time, in a prediction log with the "
            "time of the answer",
        )


def add_on_malformed(parser: argparse._ActionsContainer) -> None:
    """Adds the option for malformed rows."""
    parser.add_argument(
        "--on-malformed",
        choices=("fatal", "count"),
        default="fatal",
        help="stop at a malformed row, or skip and count it (default fatal)",
    )
