"""Defines the options and output that `polyrec plan --fleet` and `--train` share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrec.models.errors import PolyrecError

SINGLE_MACHINE = ("profile", "slo_ms", "traffic", "memory", "machine", "cores", "lane")


def refuse_other_flags(args: argparse.Namespace, file: str, error: type[PolyrecError]) -> None:
    """Raises an error for options of a single-machine plan, which `file` specifies instead."""
    given = [flag for flag in SINGLE_MACHINE if getattr(args, flag) is not None]
    if given or args.sweep or args.quality:
        named = "--" + (given[0].replace("_", "-") if given else "sweep" if args.sweep else "quality")
        raise error(f"{named} applies to a plan for one machine; specify it in '{file}'")


def write_plan(
    args: argparse.Namespace,
    plan: Mapping[str, Any],
    lines: Sequence[str],
    what: str,
    error: type[PolyrecError],
) -> None:
    """Writes a plan to --out, if given, and prints it as JSON or as `lines`. what: kind of plan, for
    errors.
    """
    from polyrec.models.files import write_text

    text = json.dumps(plan, indent=None if args.json else 1)
    if args.out:
        try:
            write_text(Path(args.out), text + "\n")
        except OSError as e:
            raise error(f"cannot write {what} '{args.out}': {e.strerror}") from None
    print(text if args.json else "\n".join(lines))
