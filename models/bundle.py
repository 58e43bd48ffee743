"""The bundle: a trained model on disk, self-contained and immutable.

    manifest.json            what it is: schema, representation, architecture, metrics, checksums
    embeddings.safetensors   rows of all tables, in popularity order
    net.safetensors          the dense net
    vocabulary.safetensors   values, ids and ranks of every table

A bundle is written under a temporary name and renamed, so a reader sees all of it or nothing.
Loading checks every file against the manifest and refuses on any mismatch, saying why. Tensors are
mapped, not read: processes that load the same bundle share its rows in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor

from models.dlrm import DLRM, Architecture, DenseNet, dense_slots
from models.embeddings.stage import Stage
from models.encoder import Encoder, Standard
from models.errors import BundleError, PolyrecError
from models.files import MOST_SERVED_BYTES, Strict, read_regular, require_regular, validated, whole
from models.popularity import VocabularyDescriptor, vocabularies_from_tensors, vocabulary_tensors
from models.probe import unanswered
from models.representation import Representation, stage_from_tensors
from models.schema import Schema

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
EMBEDDINGS = "embeddings.safetensors"
NET = "net.safetensors"
VOCABULARY = "vocabulary.safetensors"
FILES = frozenset((MANIFEST, EMBEDDINGS, NET, VOCABULARY))

Finite = Annotated[float, Field(allow_inf_nan=False)]


class FileDigest(Strict):
    """Size and checksum of one file of a bundle."""

    bytes: int
    sha256: str


class StandardEntry(Strict):
    """See models.encoder.Standard."""

    mean: Finite
    deviation: Annotated[Finite, Field(gt=0)]


class Manifest(Strict):
    """Everything about a bundle but its numbers."""

    format: Literal["polyrec-bundle"] = "polyrec-bundle"
    format_version: int
    name: str
    version: str
    created: str
    code_version: str
    schema_: Schema = Field(alias="schema")
    architecture: Architecture
    representation: Representation
    standards: dict[str, StandardEntry]
    vocabularies: dict[str, VocabularyDescriptor]
    metrics: dict[str, dict[str, Finite | int | None]]
    training: dict[str, Any]
    files: dict[str, FileDigest]


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. Models built from it share its mapped tensors."""

    path: Path
    manifest: Manifest
    encoder: Encoder

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        return mapped(self.path / EMBEDDINGS)

    @property
    def name(self) -> str:
        """The representation, as paths name it."""
        return self.manifest.representation.name

    @property
    def bytes(self) -> int:
        """Size of the model's numbers: rows and net, without the vocabulary."""
        return sum(self.manifest.files[f].bytes for f in (EMBEDDINGS, NET))

    def stage(self) -> Stage:
        """A new embedding stage over the mapped rows."""
        m = self.manifest
        return stage_from_tensors(m.representation, m.schema_, self.encoder.vocabularies, self._rows)

    def net(self) -> DenseNet:
        """A new dense net, ready to evaluate."""
        return net_from_tensors(self.manifest, self.stage(), mapped(self.path / NET))

    def model(self) -> DLRM:
        """A new model, ready to evaluate."""
        stage = self.stage()
        return DLRM(stage, net_from_tensors(self.manifest, stage, mapped(self.path / NET))).eval()


def net_from_tensors(manifest: Manifest, stage: Stage, tensors: Mapping[str, Tensor]) -> DenseNet:
    """The dense net of these tensors, ready to evaluate. Raises RuntimeError if they are another's."""

    def net() -> DenseNet:
        return DenseNet(manifest.architecture, dense_slots(manifest.schema_), stage.slots)

    with torch.device("meta"):
        # whatever the manifest says takes no memory before it is known to be what the file has
        net().load_state_dict(tensors, assign=True)
    own = net()
    own.load_state_dict(tensors)
    return own.eval()


def write_bundle(
    path: str | Path,
    model: DLRM,
    representation: Representation,
    encoder: Encoder,
    metrics: Mapping[str, Mapping[str, float | int | None]],
    training: Mapping[str, Any],
    replace: bool = False,
) -> Bundle:
    """Writes a bundle and loads it back. Raises BundleError as `require_target`, for a full disk, and for a
    model with a value or an answer that is not finite, as of a training that diverged. A metric that is not
    is None.
    """
    target = Path(path)
    require_target(target, replace)
    for name, values in model.state_dict().items():
        if not math.isfinite(_largest(values)):
            raise BundleError(f"bundle '{path}' is not written: '{name}' has a value that is not finite")
    without = unanswered(model, encoder)
    if without is not None:
        raise BundleError(f"bundle '{path}' is not written: its numbers overflow: {without}")
    try:
        _write(target, model, representation, encoder, metrics, training)
    except (OSError, SafetensorError) as e:
        raise BundleError(f"cannot write bundle '{target}': {getattr(e, 'strerror', None) or e}") from None
    return load_bundle(target)


def _write(
    target: Path,
    model: DLRM,
    representation: Representation,
    encoder: Encoder,
    metrics: Mapping[str, Mapping[str, float | int | None]],
    training: Mapping[str, Any],
) -> None:
    with whole(target) as partial:
        partial.mkdir()
        save_file(_portable(model.stage.state_dict()), partial / EMBEDDINGS)
        save_file(_portable(model.net.state_dict()), partial / NET)
        arrays, vocabularies = vocabulary_tensors(encoder.vocabularies)
        save_arrays(arrays, partial / VOCABULARY)
        for name in (EMBEDDINGS, NET, VOCABULARY):
            (partial / name).chmod(0o644)  # safetensors leaves files that only their owner can read
        files = {name: _digest(partial / name) for name in (EMBEDDINGS, NET, VOCABULARY)}
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
            standards={
                n: StandardEntry(mean=s.mean, deviation=s.deviation) for n, s in encoder.standards.items()
            },
            vocabularies=vocabularies,
            metrics={
                of: {k: v if v is None or math.isfinite(v) else None for k, v in found.items()}
                for of, found in metrics.items()
            },
            training=dict(training),
            files=files,
        )
        (partial / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, indent=2) + "\n")


def require_target(path: str | Path, replace: bool) -> None:
    """Makes the folder that a bundle is to be written into: asked before long work, too.

    Raises BundleError if nothing can be written there, if `path` exists and `replace` is not set, or if it
    holds anything but a bundle, which replacing would delete.
    """
    target = Path(path)
    try:
        exists = os.path.lexists(target)
        if exists and not replace:
            raise BundleError(f"'{path}' exists already; choose another --out or say --replace")
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
    """Loads and checks a bundle. Raises BundleError with the reason on any mismatch."""
    folder = Path(path)
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        file = folder / name
        try:
            size = require_regular(file).st_size
        except FileNotFoundError:
            raise BundleError(f"bundle '{path}': {name} is missing") from None
        except OSError as e:
            raise BundleError(f"bundle '{path}': {name} cannot be read: {e}") from None
        if size != expected.bytes:
            raise BundleError(f"bundle '{path}': {name} has {size} bytes, the manifest says {expected.bytes}")
        if _digest(file).sha256 != expected.sha256:
            raise BundleError(f"bundle '{path}': {name} is corrupt (its sha256 is not the manifest's)")
    try:
        arrays = mapped(folder / VOCABULARY)
        vocabularies = vocabularies_from_tensors(
            {k: v.numpy() for k, v in arrays.items()}, manifest.vocabularies
        )
        standards = {n: Standard(s.mean, s.deviation) for n, s in manifest.standards.items()}
        bundle = Bundle(folder, manifest, Encoder(manifest.schema_, vocabularies, standards))
        model = bundle.model()
    except (KeyError, ValueError, RuntimeError, MemoryError, PolyrecError) as e:
        raise BundleError(f"bundle '{path}' contradicts itself: {' '.join(str(e).split())}") from None
    largest: dict[str, float] = {}
    for name in (NET, EMBEDDINGS):
        for tensor, values in mapped(folder / name).items():
            where = f"'{tensor}' in {name}"
            largest[where] = _largest(values)
            if not math.isfinite(largest[where]):
                raise BundleError(
                    f"bundle '{path}': {where} has a value that is not finite; "
                    "every answer that needs it would be refused"
                )
    without = unanswered(model, bundle.encoder)
    if without is not None:
        where = max(largest, key=lambda named: largest[named])
        raise BundleError(
            f"bundle '{path}': its numbers overflow: {without}; "
            f"the largest are in {where}, up to {largest[where]:.3g}"
        )
    return bundle


def _largest(values: Tensor) -> float:
    """The largest size of a number, NaN or infinity if one is; in one pass that allocates nothing."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    least, most = torch.aminmax(values)
    return max(abs(float(least)), float(most), key=lambda x: math.inf if math.isnan(x) else x)


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, typed. Raises BundleError."""
    try:
        raw = json.loads(read_regular(folder / MANIFEST, MOST_SERVED_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"no bundle at '{folder}': there is no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as e:
        raise BundleError(f"bundle '{folder}': {MANIFEST} cannot be read: {e}") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version != FORMAT_VERSION:
        raise BundleError(
            f"bundle '{folder}' has format version {version}, this Polyrec reads {FORMAT_VERSION}"
        )
    manifest = validated(Manifest, raw, f"bundle '{folder}': {MANIFEST}", BundleError)
    missing = {EMBEDDINGS, NET, VOCABULARY} - manifest.files.keys()
    if missing or any(Path(n).name != n for n in manifest.files):
        raise BundleError(
            f"bundle '{folder}': {MANIFEST} does not list {', '.join(sorted(missing)) or 'plain files'}"
        )
    return manifest


def code_version() -> str:
    """Version of the installed distribution."""
    try:
        return distribution_version("polyrec")
    except PackageNotFoundError:
        return "0+uninstalled"


def _digest(file: Path) -> FileDigest:
    with file.open("rb") as stream:
        return FileDigest(bytes=file.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def _portable(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def mapped(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, mapped. Raises BundleError if it cannot be read."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as e:
        raise BundleError(f"'{file}' cannot be read: {e}") from None
