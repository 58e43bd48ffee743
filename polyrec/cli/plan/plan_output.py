"""Handles the output of all kinds of `polyrec plan`: checked targets, pictures, clean standard output."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirects stdout to stderr, because the solver prints lines from C that would break --json."""
    import os
    import sys

    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def check_outputs(args: argparse.Namespace) -> None:
    """Raises PlanError or PolyrecError for outputs that cannot be written, before a plan is made."""
    from pathlib import Path

    from polyrec.models.files import require_target_file
    from polyrec.planner.plan import PlanError

    if args.out:
        require_target_file(args.out, PlanError)
        for flag in ("profile", "fleet", "train", "machine"):
            given = getattr(args, flag)
            if given and Path(args.out).is_file() and Path(args.out).resolve() == Path(given).resolve():
                raise PlanError(f"--out '{args.out}' would replace the file of --{flag}; name another one")
    if args.pictures:
        from polyrec.report.page import make_folder, require_matplotlib

        require_matplotlib()
        make_folder(args.pictures)


def write_figures(folder: str, figures: dict[str, Figure]) -> None:
    """Writes pictures into a folder, by name. Raises PlanError."""
    from pathlib import Path

    from polyrec.planner.plan import PlanError
    from polyrec.report.chart import png

    try:
        for name, figure in figures.items():
            (Path(folder) / name).write_bytes(png(figure))
    except OSError as e:
        raise PlanError(f"cannot write pictures to '{folder}': {e.strerror}") from None
