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
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor

from models.dlrm import DLRM, Architecture, DenseNet, dense_slots
from models.embeddings.stage import PerBlock, Stage
from models.encoder import Encoder, Standard
from models.errors import BundleError, PolyrecError
from models.files import Strict, validated, whole
from models.popularity import VocabularyDescriptor, vocabularies_from_tensors, vocabulary_tensors
from models.representation import Representation, stage_from_tensors
from models.schema import Schema

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
EMBEDDINGS = "embeddings.safetensors"
NET = "net.safetensors"
VOCABULARY = "vocabulary.safetensors"


class FileDigest(Strict):
    """Size and checksum of one file of a bundle."""

    bytes: int
    sha256: str


class StandardEntry(Strict):
    """See models.encoder.Standard."""

    mean: float
    deviation: float


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
    metrics: dict[str, dict[str, float | int | None]]
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
        return read_net(self.path, self.manifest, self.stage().slots)

    def model(self) -> DLRM:
        """A new model, ready to evaluate."""
        return DLRM(self.stage(), self.net()).eval()


def write_bundle(
    path: str | Path,
    model: DLRM,
    representation: Representation,
    encoder: Encoder,
    metrics: Mapping[str, Mapping[str, float | int | None]],
    training: Mapping[str, Any],
    replace: bool = False,
) -> Bundle:
    """Writes a bundle and loads it back. Raises BundleError if `path` exists and `replace` is not set."""
    target = Path(path)
    refuse_existing(target, replace)
    target.parent.mkdir(parents=True, exist_ok=True)
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
            metrics={k: dict(v) for k, v in metrics.items()},
            training=dict(training),
            files=files,
        )
        (partial / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, indent=2) + "\n")
    return load_bundle(target)


def refuse_existing(path: str | Path, replace: bool) -> None:
    """Raises BundleError if `path` exists and may not be replaced: asked before long work, too."""
    if Path(path).exists() and not replace:
        raise BundleError(f"'{path}' exists already; choose another --out or say --replace")


def load_bundle(path: str | Path) -> Bundle:
    """Loads and checks a bundle. Raises BundleError with the reason on any mismatch."""
    folder = Path(path)
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise BundleError(f"bundle '{path}': {name} is missing")
        size = file.stat().st_size
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
        bundle.net()
    except (KeyError, ValueError, RuntimeError, PolyrecError) as e:
        raise BundleError(f"bundle '{path}' contradicts itself: {str(e).splitlines()[0]}") from None
    return bundle


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, typed. Raises BundleError."""
    try:
        raw = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"no bundle at '{folder}': there is no {MANIFEST}") from None
    except (OSError, ValueError) as e:
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


def read_net(folder: Path, manifest: Manifest, slots: PerBlock) -> DenseNet:
    """A bundle's dense net over vectors of so many slots, ready to evaluate."""
    net = DenseNet(manifest.architecture, dense_slots(manifest.schema_), slots)
    net.load_state_dict(mapped(folder / NET))
    return net.eval()


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
