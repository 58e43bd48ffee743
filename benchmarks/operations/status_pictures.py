"""The pictures of the status page in docs/pictures: calm, at a peak, overloaded, and a phone in the dark.

A server of its own answers three loads: with its best path, with cheaper ones, and more than it can.

    python -m benchmarks.operations.status_pictures --plan PLAN  # nice -n -20: Chromium is on the same cores
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.operations.browser import Page, browser
from polyrec.planner.plan import load_plan
from polyrec.server.app.run import start

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH, HEIGHT, PHONE = 1200, 900, 390


def main(argv: Sequence[str] | None = None) -> int:
    """Writes status-calm.png, status-peak.png, status-overload.png and status-phone.png."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operations.status_pictures", description=__doc__
    )
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--data", help="rows of requests (default: synthetic rows)")
    parser.add_argument("--calm", type=float, default=100, help="requests a second that it can bear (100)")
    parser.add_argument("--peak", type=float, default=3000, help="that it can with less quality (3000)")
    parser.add_argument("--overload", type=float, default=10000, help="that it cannot (10000)")
    parser.add_argument("--budget-ms", type=float, default=30)
    parser.add_argument("--out", type=Path, default=PICTURES)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    with start({"plan": args.plan}) as server, browser() as page:
        page.open(server.url)
        with _asked(args, server.url, args.calm, 60):
            time.sleep(50)
            _look(page, args.out / "status-calm.png")
        with _asked(args, server.url, args.peak, 40):
            time.sleep(30)
            _look(page, args.out / "status-peak.png")
        with _asked(args, server.url, args.overload, 40):
            time.sleep(30)
            _look(page, args.out / "status-overload.png")
            page.prefer("dark")
            _look(page, args.out / "status-phone.png", PHONE)
        print(*page.complaints, sep="\n")
    return 0


@contextmanager
def _asked(args: argparse.Namespace, url: str, rate: float, seconds: float) -> Iterator[None]:
    """While it is under load, which is ended afterwards. The driver may lag: nobody reads its figures."""
    bundle = str(load_plan(args.plan).paths[0].bundle)
    data = ["--data", args.data] if args.data else []
    load = subprocess.Popen(
        [
            *(sys.executable, "-m", "polyrec", "load", url, "--bundle", bundle, *data),
            *("--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--warmup", "0"),
            *("--budget-ms", f"{args.budget_ms:g}", "--max-lag-ms", "100000", "--grace", "1"),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        load.terminate()
        load.wait()


def _look(page: Page, file: Path, width: int = WIDTH) -> None:
    page.size(width, HEIGHT, phone=width < WIDTH)
    page.run("new Promise(r => setTimeout(r, 1200))")
    page.picture(file)


if __name__ == "__main__":
    sys.exit(main())
