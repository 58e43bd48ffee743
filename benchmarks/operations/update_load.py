"""Sends row updates to a server at a given rate, and measures the time until a new value is served."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from benchmarks.zipf import zipf
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.models.tiers.updates.update import TableUpdate
from polyrec.models.tiers.updates.update_file import encode_update

TOKEN = "update feed benchmark"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
BINARY = {**HEADERS, "content-type": "application/octet-stream"}
CALL = "/v1/admin/embeddings"
CALL_ROWS = 4000
"""As many as `polyrec feed` gathers of 10,000 rows a second."""
EXPIRES_S = 30
POLL_S = 0.005
BODIES = 200
TIMEOUT_S = 600


def update_body(random: np.random.Generator, items: int, width: int, rows: int = CALL_ROWS) -> bytes:
    """Returns an update file for a number of items drawn from a Zipf distribution."""
    values = random.normal(0, 0.1, (rows, width)).astype(np.float32)
    return encode_update({"item": TableUpdate(zipf(random, items, 1.05, rows), values)})


@dataclass(frozen=True, slots=True)
class UpdateLoad:
    """Updates of `rows_s` rows/s, in slices of `seconds` that begin at given times of the monotonic clock.

    items: number of ids that are drawn. width: numbers per row.
    """

    url: str
    items: int
    width: int
    rows_s: float
    slices: Sequence[float]
    seconds: float


def feed(load: UpdateLoad, said: Any) -> None:
    """Posts updates.

    said: gets "ready", then the number of rows and the longest wait for an answer in seconds.
    """
    random = np.random.default_rng(os.getpid())
    bodies = [update_body(random, load.items, load.width) for _ in range(BODIES)]
    calls, waited = 0, 0.0
    with httpx.Client(base_url=load.url, headers=BINARY, timeout=TIMEOUT_S) as client:
        said.put("ready")
        for begins in load.slices:
            for due in begins + np.arange(0, load.seconds, CALL_ROWS / load.rows_s):
                time.sleep(max(due - time.monotonic(), 0))
                asked, body = time.monotonic(), bodies[calls % BODIES]
                client.post(CALL, content=body, params={"time": time.time()}).raise_for_status()
                waited = max(waited, time.monotonic() - asked)
                calls += 1
    said.put((calls * CALL_ROWS, waited))


def new_values(
    url: str, request: dict[str, Any], width: int, times: Sequence[float], found: list[float]
) -> None:
    """Adds an item at each of the given times of the monotonic clock.

    found: gets the seconds from each call until the item's score differs from that of an unknown item.
    """

    def score(client: httpx.Client, item: str) -> float:
        body = {"context": request["context"], "candidates": {**request["candidates"], "item": [item]}}
        while (answer := client.post(RANK, json=body)).status_code in (429, 504):
            time.sleep(0.01)
        return float(answer.raise_for_status().json()["scores"][0])

    with httpx.Client(base_url=url, headers=HEADERS, timeout=TIMEOUT_S) as client:
        for number, due in enumerate(times):
            time.sleep(max(due - time.monotonic(), 0))
            name = f"new {time.time_ns()}"
            unknown = score(client, name)
            row = [float(x) for x in np.random.default_rng(number).normal(0, 3, width)]
            table = {"values": [name], "rows": [row]}
            begun = time.monotonic()
            body = {"tables": {"item": table}, "add": True, "expires_s": EXPIRES_S}
            client.post(CALL, json=body).raise_for_status()
            while score(client, name) == unknown and time.monotonic() - begun < 10:
                time.sleep(POLL_S)
            found.append(time.monotonic() - begun)


def feed_and_add(load: UpdateLoad, request: dict[str, Any], said: Any) -> None:
    """Runs `feed` and, in another thread, `new_values` in the middle of each slice; reports both results."""
    new: list[float] = []
    middles = [begins + load.seconds / 2 for begins in load.slices]
    adder = threading.Thread(target=new_values, args=(load.url, request, load.width, middles, new))
    adder.start()
    feed(load, said)
    adder.join()
    said.put(new)
