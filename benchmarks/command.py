"""Shared parts of benchmark commands: arguments, cores, turns, and figures with their origin."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from polyrec.loadtest.machine import raised_priority

ROOT = Path(__file__).parents[1]
DATA_ROOT = ROOT.parent / "shared" / "data"
PUBLIC = {
    "trivago": "trivago/impressions.parquet",
    "bookcrossing": "bookcrossing/ratings.parquet",
    "ml1m": "ml1m/ratings.parquet",
}
"""Files of the public data sets below DATA_ROOT, by schema."""
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
T = TypeVar("T")


def command_parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is the docstring of the command's module."""
    module = sys.modules["__main__"].__spec__
    prog = None if module is None else f"python -m {module.name.removesuffix('.__main__')}"
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawTextHelpFormatter)


def device_parser(doc: str | None, small: str, seconds: float, of: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of commands that measure on a device.

    small: what `--small` makes small. seconds, of: default of `--seconds`, and what takes that time.
    """
    parser = command_parser(doc)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help=f"{small}: no figures")
    parser.add_argument("--seconds", type=float, default=seconds, help=of)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    return parser


def command() -> str:
    """Returns the running command, like `python -m benchmarks.lanes.cores memory`."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def today() -> str:
    """Returns the date in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def timestamp() -> str:
    """Returns date and time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def revision() -> str:
    """Returns the checkout's commit."""
    describe = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def free_port() -> int:
    """Returns a free port of 127.0.0.1."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def priority(first: bool) -> AbstractContextManager[None]:
    """Runs this process before all others within the context, if `first`; needs root."""
    return raised_priority() if first else nullcontext()


def answer_of(command: Sequence[str], **options: Any) -> Any:
    """Runs a command; returns the JSON in the last line that it prints. Raises CalledProcessError."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    return json.loads(done.stdout.splitlines()[-1])


def save(file: Path | None, figures: Any) -> None:
    """Writes figures as JSON, unless there is no file."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures, indent=1) + "\n")


def saved(file: Path | None) -> dict[str, Any]:
    """Returns the figures of an earlier run; none if there is no file."""
    found: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    return found


def in_turns(variants: Mapping[str, Callable[[], T]], turns: int, warm_up: int = 0) -> dict[str, list[T]]:
    """Runs all variants in turns (A B A B); returns their results without those of `warm_up` turns."""
    found: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(-warm_up, turns):
        for name, variant in variants.items():
            one = variant()
            if number >= 0:
                found[name].append(one)
    return found


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the median of each figure over the turns."""
    return {key: median(turn[key] for turn in turns) for key in turns[0]}


def turn_ms(variants: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Returns the median milliseconds of this thread's CPU time of each variant; variants take turns."""

    def timed(variant: Callable[[], object]) -> float:
        begun_s = time.thread_time()
        variant()
        return 1e3 * (time.thread_time() - begun_s)

    found = in_turns({name: partial(timed, variant) for name, variant in variants.items()}, turns)
    return {name: median(ms) for name, ms in found.items()}


def spread(values: Sequence[float], digits: int) -> str:
    """Formats values as mean (minimum to maximum)."""
    mean, least, most = sum(values) / len(values), min(values), max(values)
    return f"{mean:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"
