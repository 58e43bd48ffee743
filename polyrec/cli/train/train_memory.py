"""Defines the options of `polyrec train` for tables that do not fit in memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from polyrec.cli.train.train_workers import has_several_workers

if TYPE_CHECKING:
    from polyrec.models.training.tiers.row_tiers import RowTiers


def add_memory_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--memory",
        metavar="BYTES",
        help="memory for rows and their optimizer state: 512MB, 24GB; other rows are stored in a file "
        "(default: all rows in memory)",
    )
    group.add_argument(
        "--tier-directory",
        type=Path,
        metavar="DIR",
        help="with --memory: folder for the file of rows, on a real disk (default: the folder of "
        "--checkpoint, else one for temporary files)",
    )


def refuse_with_memory(args: argparse.Namespace) -> None:
    """Raises PolyrecError for options that are not supported with rows in a file."""
    from polyrec.models.errors import PolyrecError

    if args.memory is None:
        if args.tier_directory is not None:
            raise PolyrecError("--tier-directory stores the rows beyond --memory: add --memory BYTES")
        return
    for flag, given in (
        ("--workers", has_several_workers(args)),
        ("--search", args.search),
        ("--from", args.start),
        ("--device", args.device != "cpu"),
        ("--representation", args.representation not in (None, "table")),
    ):
        if given:
            raise PolyrecError(f"--memory trains tables without {flag}: omit {flag}")


@contextmanager
def tiers_of(args: argparse.Namespace) -> Iterator[RowTiers | None]:
    """Yields the tiers, or None if all rows are in memory; removes their files unless there are
    checkpoints.
    """
    if args.memory is None:
        yield None
        return
    from polyrec.models.training.tiers.row_tiers import RowTiers
    from polyrec.planner.devices import parse_bytes

    memory, folder = parse_bytes(args.memory), args.tier_directory
    if args.checkpoint:
        yield RowTiers(memory, folder or args.checkpoint)
        return
    with TemporaryDirectory(prefix="polyrec-rows-", dir=folder) as own:
        yield RowTiers(memory, Path(own))
