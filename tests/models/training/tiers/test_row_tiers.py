"""`polyrec train --memory` gives the bundle of training in memory, also after kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.errors import DataError
from polyrec.models.training.checkpoint import Checkpoints
from polyrec.models.training.tiers.row_tiers import divide_memory
from polyrec.models.training.tiers.slots import SLOT_BYTES

DEADLINE_S = 120
PLAIN = """
architecture: {width: 4, bottom: [8], top: [8], interaction: cat}
recipe: {epochs: 2, batch_rows: 64, by_request: true, dropout: 0.1, refit: true, patience: 20}
"""
NESTED = """
architecture: {width: 8, widths: [2, 8], bottom: [8], top: [8], interaction: dot}
recipe: {epochs: 2, batch_rows: 64, block_lr: [1.0, 0.5], row_decay: 0.01, hide: 0.3, hide_from_rows: 100}
"""


@pytest.fixture(scope="module")
def many_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "clicks.parquet"
    return generate(path, 5000, seed=3, items=3000, users=1000).path


def command(data: Path, folder: Path, recipe: str, out: str, *more: str) -> list[str]:
    file = folder / "recipe.yaml"
    file.write_text(recipe)
    given = ["--data", str(data), "--schema", "trivago", "--recipe", str(file), "--json", "--replace"]
    return ["polyrec", "train", *given, "--out", str(folder / out), *more]


def version(folder: Path) -> str:
    return load_bundle(folder).manifest.version


@pytest.mark.parametrize("recipe", [PLAIN, NESTED], ids=["plain", "nested"])
@pytest.mark.parametrize("window", [(), ("--window", "1000")], ids=["whole", "windows"])
def test_the_bundle_is_that_of_training_in_memory(
    recipe: str, window: tuple[str, ...], many_ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for out, more in (("plain", ()), ("tiered", ("--memory", "18KB", "--tier-directory", str(tmp_path)))):
        monkeypatch.setattr("sys.argv", command(many_ids, tmp_path, recipe, out, *window, *more))
        assert main() == 0
    bundle = load_bundle(tmp_path / "plain")
    rows, shape = bundle.rows["store.weight"].shape[0], bundle.manifest.architecture
    division = divide_memory(18_000, rows, 4 * (shape.width + len(shape.blocks)))
    assert division.prefix + division.slots < 0.8 * rows
    assert bundle.manifest.version == version(tmp_path / "tiered")
    assert not list(tmp_path.glob("polyrec-rows-*"))


@pytest.mark.long
@pytest.mark.parametrize("snapshots", [1, 3])
def test_a_killed_training_goes_on_to_the_same_bundle(snapshots: int, many_ids: Path, tmp_path: Path) -> None:
    """kill -9 while rows are written back, and the same command again."""
    kept = tmp_path / "kept"
    more = ("--memory", "18KB", "--checkpoint", str(kept))
    run = (sys.executable, "-m")
    often = command(many_ids, tmp_path, PLAIN, "resumed", *more, "--every", "0.05s")
    killed = subprocess.Popen([*run, *often], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file, until, seen = kept / "fit.safetensors", time.monotonic() + DEADLINE_S, set()
    while len(seen) < snapshots and killed.poll() is None and time.monotonic() < until:
        if file.exists():
            seen.add(file.stat().st_ino)
        time.sleep(0.005)
    time.sleep(0.03)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(DEADLINE_S)
    assert killed.returncode == -signal.SIGKILL
    resumed = subprocess.run(
        [*run, *command(many_ids, tmp_path, PLAIN, "resumed", *more)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed after step" in resumed.stderr
    assert not list(kept.iterdir())
    whole = subprocess.run(
        [*run, *command(many_ids, tmp_path, PLAIN, "whole")], capture_output=True, timeout=DEADLINE_S
    )
    assert json.loads(whole.stdout)["version"] == json.loads(resumed.stdout)["version"]


@pytest.mark.long
def test_a_failed_training_goes_on_from_its_checkpoint(
    many_ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that ends after any of its checkpoints, like a full disk would end it."""
    kept = tmp_path / "kept"
    more = ("--memory", "18KB", "--checkpoint", str(kept))
    save, left = Checkpoints.save, [0]

    def fails(self: Checkpoints, *given: object) -> None:
        save(self, *given)  # type: ignore[arg-type]
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", fails)
    monkeypatch.setattr("sys.argv", command(many_ids, tmp_path, PLAIN, "a", *more, "--every", "0.001s"))
    ended = 0
    for saves in (3, 20, 1, 40, 0):
        left[0] = saves
        ended = main()
        assert (ended == 0) == (saves == 0)
    monkeypatch.setattr("sys.argv", command(many_ids, tmp_path, PLAIN, "b"))
    assert main() == 0
    assert version(tmp_path / "a") == version(tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--memory", "much"), "'much' is not a size"),
        (("--memory", "10"), "--memory 10 B holds no row of 20 bytes"),
        (("--memory", "4KB"), "do not fit the cache of"),
        (("--tier-directory", "rows"), "add --memory BYTES"),
        (("--memory", "1MB", "--representation", "dhe"), "--memory trains tables without --representation"),
        (("--memory", "1MB", "--workers", "2"), "--memory trains tables without --workers"),
        (("--memory", "1MB", "--search", "1m"), "--memory trains tables without --search"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(
    options: tuple[str, ...],
    reason: str,
    many_ids: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", command(many_ids, tmp_path, PLAIN, "out", *options))
    assert main() == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("memory", [20_000, 100_000, 10_000_000])
@pytest.mark.parametrize("record", [8, 68, 516])
def test_rows_cache_and_buffer_fit_the_memory(memory: int, record: int) -> None:
    division = divide_memory(memory, 10_000, record)
    used = division.prefix * (record + 1) + division.slots * (record + 1 + SLOT_BYTES) + division.buffer_bytes
    assert memory - record - 1 <= used <= memory or division.prefix == 10_000
    assert division.prefix + division.slots <= 10_000
    with pytest.raises(DataError, match="holds no row"):
        divide_memory(10, 10_000, record)
