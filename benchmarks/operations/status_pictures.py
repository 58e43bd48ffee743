"""Takes the status page's pictures in docs/pictures: calm, a lane killed, a peak, overloaded, on a phone.

Starts a server and applies three loads: one for its best path, one that needs cheaper paths, and an overload.

    python -m benchmarks.operations.status_pictures --plan PLAN  # nice -n -20: Chromium is on the same cores

With --record FILE it also writes the last /v1/status, from which tests/server/http/status_page draws the
page.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image

from benchmarks.command import ROOT, command_parser
from benchmarks.operations.browser import Page, browser
from polyrec.planner.plan import load_plan
from polyrec.server.child import start

PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT, PHONE = 1280, 900, 390
LONGER = (
    "(e => { e.value = '300'; e.dispatchEvent(new Event('change')); })(document.querySelector('#window'))"
)
COLORS = 128
"""Number of colors of a picture; pages have few, and this reduces the file to a quarter."""


def main(argv: Sequence[str] | None = None) -> None:
    """Writes status-calm.png, -lane.png, -peak.png, -overload.png, -after.png and -phone.png."""
    parser = command_parser(__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--data", help="rows of requests (default: synthetic rows)")
    parser.add_argument("--calm", type=float, default=100, help="requests a second that it can bear (100)")
    parser.add_argument("--peak", type=float, default=3000, help="that it can with less quality (3000)")
    parser.add_argument("--overload", type=float, default=10000, help="that it cannot (10000)")
    parser.add_argument("--budget-ms", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=30, help="of each load (30)")
    parser.add_argument("--out", type=Path, default=PICTURES)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the last /v1/status there")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    with start({"plan": args.plan}) as server, browser() as page:
        page.open(server.url)
        with _asked(args, server.url, args.calm):
            time.sleep(0.8 * args.seconds)
            _look(page, args.out / "status-calm.png")
        with _asked(args, server.url, args.peak):
            time.sleep(0.8 * args.seconds)
            _look(page, args.out / "status-peak.png")
        lanes = httpx.get(f"{server.url}/v1/paths").json()["lanes"]
        with _asked(args, server.url, args.calm):
            time.sleep(0.5 * args.seconds)
            if lanes[0]["kind"] == "process":
                os.kill(lanes[0]["pid"], signal.SIGKILL)
                _look(page, args.out / "status-lane.png")
        with _asked(args, server.url, args.overload):
            time.sleep(0.8 * args.seconds)
            _look(page, args.out / "status-overload.png")
        page.prefer("dark")
        with _asked(args, server.url, args.calm):
            time.sleep(0.8 * args.seconds)
            page.run(LONGER)
            _look(page, args.out / "status-after.png")
            _look(page, args.out / "status-phone.png", PHONE)
            if args.record is not None:
                args.record.write_bytes(httpx.get(f"{server.url}/v1/status").content)
        print(*page.complaints, sep="\n")


@contextmanager
def _asked(args: argparse.Namespace, url: str, rate: float) -> Iterator[None]:
    """Applies load within the context. The driver may lag, since its figures are not used."""
    bundle = str(load_plan(args.plan).paths[0].bundle)
    data = ["--data", args.data] if args.data else []
    load = subprocess.Popen(
        [
            *(sys.executable, "-m", "polyrec", "load", url, "--bundle", bundle, *data),
            *("--rate", f"{rate:g}", "--seconds", f"{args.seconds:g}", "--warmup", "0"),
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
    with Image.open(file) as picture:
        shrunk = picture.convert("RGB").quantize(COLORS)
    shrunk.save(file, optimize=True)


if __name__ == "__main__":
    main()
