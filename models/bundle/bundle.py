"""Reads and writes bundles: trained models on disk, self-contained and immutable.

    manifest.json            schema, representation, architecture, metrics, checksums
    embeddings.safetensors   rows of all tables, in popularity order
    net.safetensors          the dense net (with nested widths: one for each)
    vocabulary.safetensors   values, ids and ranks of every table

A bundle is written under a temporary name and renamed, so that it appears atomically. Loading verifies every
file against the manifest and raises an error with the reason on any mismatch. Tensors are memory-mapped, so
that processes that load the same bundle share its rows. A loaded bundle holds its files open
(models/bundle/held_files.py), so that replacing the folder does not change it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor

from polyrec.models.bundle.assembly import (
    activations_at,
    build_net,
    build_stage,
    checked_width,
    head_at,
    rows_at,
    shape_at,
)
from polyrec.models.bundle.encoding import encoder_of
from polyrec.models.bundle.held_files import HeldFiles, HoldError, hold_files
from polyrec.models.bundle.manifest import (
    EMBEDDINGS,
    FORMAT_VERSION,
    MANIFEST,
    NET,
    NUMBERS,
    VOCABULARY,
    FileDigest,
    Manifest,
    StandardEntry,
    read_manifest,
    to_json_with_checksum,
    with_width,
)
from polyrec.models.bundle.probe import find_non_finite_row
from polyrec.models.dlrm.activations import Activations
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet
from polyrec.models.dlrm.representation import Representation
from polyrec.models.embeddings.stage import Stage
from polyrec.models.errors import BundleError, PolyrecError
from polyrec.models.files import atomic_path, validate_as
from polyrec.models.memory import is_out_of_memory
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import vocabulary_tensors
from polyrec.models.text import printable
from polyrec.models.version import code_version

FILES = frozenset((MANIFEST, *NUMBERS))


@dataclass(frozen=True)
class Bundle:
    """A verified bundle. Models built from it share its mapped tensors.

    path: where it was loaded from; the folder may have been replaced since. files: its open files.
    rows: the mapped tensors of the embedding stage.
    width: a nested width, at which the bundle is an ordinary model of the rows' first columns; None: all
    widths, of which the widest is served.
    """

    path: Path
    files: HeldFiles
    manifest: Manifest
    encoder: Encoder
    rows: Mapping[str, Tensor] = field(compare=False, repr=False)
    width: int | None = None

    @property
    def name(self) -> str:
        """The representation and the width as paths name them: `table`, `table.w16`."""
        return with_width(self.manifest.representation.name, self.width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Nested widths, ascending; empty for a plain model."""
        return self.manifest.architecture.widths

    @property
    def shape(self) -> Architecture:
        """The shape of `net()`."""
        return shape_at(self.manifest, self.width)

    @property
    def test_metrics(self) -> dict[str, float]:
        """Defined metrics of the test rows at this width; empty if unknown (imported and derived models).

        Computes `information` for older bundles, which store only its complement.
        """
        found = self.manifest.metrics.get(with_width("test", self.width), {})
        metrics = {k: float(v) for k, v in found.items() if v is not None and math.isfinite(v)}
        if "normalised_entropy" in metrics:
            metrics.setdefault("information", 1 - metrics["normalised_entropy"])
        return metrics

    @property
    def rows_bytes(self) -> int:
        """Bytes of the embedding stage: its file, or the columns read at a width."""
        if self.width is None:
            return self.manifest.files[EMBEDDINGS].bytes
        return _bytes(rows_at(self.manifest, self.rows, self.width))

    @property
    def net_bytes(self) -> int:
        """Bytes of the dense net: its file, or the head of a width."""
        if self.width is None:
            return self.manifest.files[NET].bytes
        return _bytes(head_at(self.manifest, map_tensors(self.files, NET), self.width))

    @property
    def bytes(self) -> int:
        """Bytes of rows and net, without the vocabulary."""
        return self.rows_bytes + self.net_bytes

    def at_width(self, width: int | None) -> Bundle:
        """Returns the bundle at another width. Raises BundleError if it has no such width."""
        if width == self.width:
            return self
        return replace(self, width=checked_width(self.manifest, width, self.path))

    def by_width(self) -> tuple[Bundle, ...]:
        """Returns the bundle at each nested width, or itself if it is a plain model or already at a width."""
        return tuple(self.at_width(w) for w in self.widths) if self.width is None and self.widths else (self,)

    @property
    def activations(self) -> Mapping[str, float]:
        """The largest inputs of the layers of `net()`, by name; empty if unknown."""
        return activations_at(self.manifest, self.width)

    def stage(self) -> Stage:
        """Builds a new embedding stage over the mapped rows."""
        return build_stage(self.manifest, self.encoder.vocabularies, self.rows, self.width)

    def net(self) -> DenseNet:
        """Builds a new dense net in evaluation mode; for nested widths the widest, unless at another
        width.
        """
        tensors = head_at(self.manifest, map_tensors(self.files, NET), self.width)
        return build_net(self.shape, self.manifest, self.stage(), tensors).heads[-1]

    def model(self) -> DLRM:
        """Builds a new model in evaluation mode; nested if the bundle is, unless at a width."""
        stage = self.stage()
        if self.width is not None:
            return DLRM(stage, self.net()).eval()
        tensors = map_tensors(self.files, NET)
        return DLRM(stage, build_net(self.manifest.architecture, self.manifest, stage, tensors)).eval()


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def write_bundle(
    path: str | Path,
    model: DLRM,
    representation: Representation,
    encoder: Encoder,
    metrics: Mapping[str, Mapping[str, float | int | None]],
    training: Mapping[str, Any],
    replace: bool = False,
    activations: Activations | None = None,
) -> Bundle:
    """Writes a bundle and loads it back. Metrics that are not finite are stored as None.

    activations: input ranges of the dense net's layers; None if unknown.
    Raises BundleError as `require_target` does, if the disk is full, and for a model with non-finite weights
    or outputs, such as after diverged training.
    """
    target = Path(path)
    require_target(target, replace)
    for name, values in model.state_dict().items():
        if not math.isfinite(_max_abs(values)):
            raise BundleError(f"bundle '{path}' is not written: '{name}' has a value that is not finite")
    without = find_non_finite_row(model, encoder)
    if without is not None:
        raise BundleError(f"bundle '{path}' is not written: its numbers overflow: {without}")
    standards = {
        name: validate_as(
            StandardEntry, asdict(s), f"bundle '{path}' is not written: feature '{name}'", BundleError
        )
        for name, s in encoder.standards.items()
    }
    try:
        _write(target, model, representation, encoder, standards, metrics, training, activations)
    except (OSError, SafetensorError) as e:
        raise BundleError(f"cannot write bundle '{target}': {getattr(e, 'strerror', None) or e}") from None
    return load_bundle(target)


def _write(
    target: Path,
    model: DLRM,
    representation: Representation,
    encoder: Encoder,
    standards: dict[str, StandardEntry],
    metrics: Mapping[str, Mapping[str, float | int | None]],
    training: Mapping[str, Any],
    activations: Activations | None,
) -> None:
    with atomic_path(target) as partial:
        partial.mkdir()
        save_file(_portable(model.stage.state_dict()), partial / EMBEDDINGS)
        save_file(_portable(model.net.state_dict()), partial / NET)
        arrays, vocabularies = vocabulary_tensors(encoder.vocabularies)
        save_arrays(arrays, partial / VOCABULARY)
        for name in NUMBERS:
            (partial / name).chmod(0o644)  # safetensors creates files that only their owner can read
        files = {name: _digest(partial / name) for name in NUMBERS}
        identity = json.dumps({n: f.sha256 for n, f in files.items()}, sort_keys=True)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            name=encoder.schema.name,
            version=hashlib.sha256(identity.encode()).hexdigest()[:12],
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            code_version=code_version(),
            schema=encoder.schema,
            architecture=model.net.shape,
            representation=representation,
            standards=standards,
            vocabularies=vocabularies,
            metrics={
                of: {k: v if v is None or math.isfinite(v) else None for k, v in found.items()}
                for of, found in metrics.items()
            },
            training=_printable(training),
            activations=activations,
            files=files,
        )
        (partial / MANIFEST).write_text(to_json_with_checksum(manifest))


def require_target(path: str | Path, replace: bool) -> None:
    """Creates the parent folder of a bundle to be written; also called ahead of long work, to fail early.

    Raises BundleError if nothing can be written there, if `path` exists and `replace` is not set, or if it
    holds anything but a bundle, which replacing would delete.
    """
    target = Path(path)
    try:
        exists = os.path.lexists(target)
        if exists and not replace:
            raise BundleError(f"'{path}' exists already; choose another --out or add --replace")
        if exists and not _only_a_bundle(target):
            raise BundleError(f"'{path}' holds other things than a bundle and will not be replaced")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent):
            pass
    except OSError as e:
        raise BundleError(f"cannot write bundle '{path}': {e.strerror}; choose another --out") from None


def _only_a_bundle(target: Path) -> bool:
    return target.is_dir() and not target.is_symlink() and {f.name for f in target.iterdir()} <= FILES


def load_bundle(path: str | Path) -> Bundle:
    """Loads and verifies a bundle. Raises BundleError with the reason on any mismatch."""
    files, manifest = _open_checked(Path(path))
    try:
        arrays = map_tensors(files, VOCABULARY)
        encoder = encoder_of(manifest, {k: v.numpy() for k, v in arrays.items()})
        bundle = Bundle(files.folder, files, manifest, encoder, map_tensors(files, EMBEDDINGS))
        model = bundle.model()
    except (KeyError, ValueError, RuntimeError, MemoryError, PolyrecError) as e:
        what = "needs more memory than there is" if is_out_of_memory(e) else "contradicts itself"
        raise BundleError(f"bundle '{path}' {what}: {' '.join(str(e).split())}") from None
    largest: dict[str, float] = {}
    for name in (NET, EMBEDDINGS):
        for tensor, values in map_tensors(files, name).items():
            where = f"'{tensor}' in {name}"
            largest[where] = _max_abs(values)
            if not math.isfinite(largest[where]):
                raise BundleError(
                    f"bundle '{path}': {where} has a value that is not finite; "
                    "every answer that needs it would be refused"
                )
    without = find_non_finite_row(model, bundle.encoder)
    if without is not None:
        where = max(largest, key=lambda named: largest[named])
        raise BundleError(
            f"bundle '{path}': its numbers overflow: {without}; "
            f"the largest are in {where}, up to {largest[where]:.3g}"
        )
    return bundle


def _open_checked(folder: Path) -> tuple[HeldFiles, Manifest]:
    """Opens the files of a bundle and verifies sizes and checksums. Raises BundleError."""
    try:
        files = hold_files(folder, (MANIFEST, *NUMBERS))
    except HoldError as e:
        absent = isinstance(e.why, FileNotFoundError)
        if isinstance(e.why, NotADirectoryError):
            raise BundleError(
                f"no bundle at '{folder}': it is a file; a plan's file goes with --plan"
            ) from None
        if e.name is None and not absent:
            raise BundleError(f"no bundle at '{folder}': {e.why.strerror}") from None
        if e.name in (None, MANIFEST) and absent:
            raise BundleError(f"no bundle at '{folder}': there is no {MANIFEST}") from None
        why = "is missing" if absent else f"cannot be read: {e.why.strerror or e.why}"
        raise BundleError(f"bundle '{folder}': {e.name} {why}") from None
    manifest = read_manifest(folder, files.path(MANIFEST))
    for name in NUMBERS:
        found, expected = _digest(files.path(name)), manifest.files[name]
        if found.bytes != expected.bytes:
            raise BundleError(
                f"bundle '{folder}': {name} has {found.bytes} bytes, the manifest says {expected.bytes}"
            )
        if found.sha256 != expected.sha256:
            raise BundleError(f"bundle '{folder}': {name} is corrupt (its sha256 is not the manifest's)")
    return files, manifest


def _max_abs(values: Tensor) -> float:
    """Returns the largest absolute value, or NaN or infinity if present, in one pass without allocation."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return max(abs(float(low)), float(high), key=lambda x: math.inf if math.isnan(x) else x)


def _digest(file: Path) -> FileDigest:
    with file.open("rb") as stream:
        return FileDigest(bytes=file.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def _printable(found: Any) -> Any:
    """Returns the JSON value with all strings, such as file names, made printable."""
    if isinstance(found, str):
        return printable(found)
    if isinstance(found, Mapping):
        return {printable(str(key)): _printable(value) for key, value in found.items()}
    return [_printable(value) for value in found] if isinstance(found, list | tuple) else found


def _portable(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def map_tensors(files: HeldFiles, name: str) -> dict[str, Tensor]:
    """Maps all tensors of a safetensors file. Raises BundleError if it cannot be read."""
    try:
        with safe_open(files.path(name), framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as e:  # torch raises a RuntimeError if mmap fails
        raise BundleError(f"bundle '{files.folder}': {name} cannot be read: {e}") from None
