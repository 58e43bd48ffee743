"""Runs a real Prometheus that scrapes local servers, with the rules in deploy/prometheus.

Configuration and data are in a temporary folder, ports are bound to the local machine, and the process ends
with the context.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import yaml

from benchmarks.command import ROOT, free_port

PROGRAM = shutil.which("prometheus")
"""Path of Prometheus on this machine; None if not installed."""
HOW = "Debian: apt-get install prometheus; elsewhere https://prometheus.io/download"
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
"""Path of Alertmanager on this machine; None if not installed."""
HOW_ALERTMANAGER = "Debian: apt-get install prometheus-alertmanager"
CONFIG = ROOT / "deploy" / "prometheus"
PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus that is ready for queries."""

    url: str
    process: subprocess.Popen[bytes]

    def api(self, path: str, **parameters: str) -> Any:
        """Calls the API and returns `data` of its answer. Raises RuntimeError with its message."""
        address = f"{self.url}/api/v1/{path}"
        try:
            with urllib.request.urlopen(f"{address}?{urlencode(parameters)}", timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(json.load(e).get("error", str(e))) from None

    def query(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Returns the vector of an expression at a Unix time, by default now. Raises RuntimeError."""
        moment = {} if at_s is None else {"time": f"{at_s:.3f}"}
        found: list[dict[str, Any]] = self.api("query", query=expression, **moment)["result"]
        return found

    def label_values(self, label: str, match: str) -> list[str]:
        values: list[str] = self.api(f"label/{quote(label)}/values", **{"match[]": match})
        return values

    def until(self, expression: str, seconds: float = PATIENCE_S) -> None:
        """Waits until an expression has a result. Raises RuntimeError on timeout."""
        end = time.monotonic() + seconds
        while not self.query(expression):
            if time.monotonic() > end:
                raise RuntimeError(f"nothing within {seconds:g} s: {expression}")
            time.sleep(0.1)


@contextmanager
def prometheus(
    targets: Sequence[str], every: str = "5s", port: int = 0, alertmanagers: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """Runs a Prometheus that scrapes `targets` at interval `every` and sends alerts to `alertmanagers`.

    Both are host:port. Raises RuntimeError if it cannot start.
    """
    if PROGRAM is None:
        raise RuntimeError(f"no Prometheus on this machine ({HOW})")
    address = f"127.0.0.1:{port or free_port()}"
    with tempfile.TemporaryDirectory(prefix="polyrec-prometheus-") as folder:
        config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
        config["global"] |= {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every}
        Path(folder, "prometheus.yml").write_text(yaml.safe_dump(config))
        Path(folder, "rules.yml").write_text((CONFIG / "rules.yml").read_text())
        groups = [{"targets": list(targets), "labels": {"model": "dlrm"}}]
        Path(folder, "targets.yml").write_text(yaml.safe_dump(groups))
        Path(folder, "alertmanagers.yml").write_text(yaml.safe_dump([{"targets": list(alertmanagers)}]))
        with Path(folder, "log").open("w+") as log:
            process = subprocess.Popen(
                [
                    *(PROGRAM, f"--config.file={folder}/prometheus.yml", f"--web.listen-address={address}"),
                    *(f"--storage.tsdb.path={folder}/data", "--log.level=warn"),
                ],
                stderr=log,
                stdout=log,
            )
            try:
                url = f"http://{address}"
                _until_ready(url, process, log.name)
                yield Prometheus(url, process)
            finally:
                process.terminate()
                process.wait(PATIENCE_S)


@contextmanager
def alertmanager() -> Iterator[str]:
    """Runs an Alertmanager configured by deploy/alertmanager; yields its host:port. Raises RuntimeError."""
    if ALERTMANAGER is None:
        raise RuntimeError(f"no Alertmanager on this machine ({HOW_ALERTMANAGER})")
    address = f"127.0.0.1:{free_port()}"
    with (
        tempfile.TemporaryDirectory(prefix="polyrec-alertmanager-") as folder,
        Path(folder, "log").open("w+") as log,
    ):
        process = subprocess.Popen(
            [
                *(ALERTMANAGER, f"--config.file={CONFIG.parent}/alertmanager/alertmanager.yml"),
                *(f"--web.listen-address={address}", "--cluster.listen-address="),
                *(f"--storage.path={folder}/data", "--log.level=warn"),
            ],
            stderr=log,
            stdout=log,
        )
        try:
            _until_ready(f"http://{address}", process, log.name)
            yield address
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _until_ready(url: str, process: subprocess.Popen[bytes], log: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"it ended: {Path(log).read_text().strip().splitlines()[-1:]}")
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise RuntimeError(f"{url} does not get ready") from None
            time.sleep(0.05)
