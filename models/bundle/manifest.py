"""Defines a bundle's manifest: schema, architecture, metrics, and checksums of the tensor files and of
itself.

`sha256` is the manifest's own checksum: of its JSON without that key, with sorted keys and no spaces. Format
version 1 had no checksum and version 2 no `activations`; their bundles are still read, with all other checks.
Every string must be a single line of bounded length, since names go into logs and pages. Means and deviations
must not make ordinary values overflow.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from polyrec.models.dlrm.activations import Activations
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import Representation
from polyrec.models.errors import BundleError
from polyrec.models.files import MAX_SERVED_BYTES, Strict, read_regular, validate_as
from polyrec.models.schema.popularity import VocabularyDescriptor
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.models.text import UNPRINTABLE

FORMAT_VERSION = 3
READ_VERSIONS = (1, 2, 3)
UNSEALED_VERSION = 1
"""The last format version without a checksum of the manifest itself."""
MANIFEST = "manifest.json"
EMBEDDINGS = "embeddings.safetensors"
NET = "net.safetensors"
VOCABULARY = "vocabulary.safetensors"
NUMBERS = (EMBEDDINGS, NET, VOCABULARY)

CALIBRATED, COUNTED = "calibrated", "counted"
"""Keys of `Manifest.training`: what `polyrec calibrate` found, and in it the rows counted by role."""

MAX_STRING = 1000
MIN_DEVIATION = 1e-12
MAX_MEAN = 1e18
"""Maximum absolute mean, in deviations; then products of standardized values near 0 fit into float32."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class FileDigest(Strict):
    """Size and checksum of one file of a bundle."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StandardEntry(Strict):
    """Mean and deviation of a dense feature, see polyrec.models.schema.dense_transform.Standard."""

    mean: Finite
    deviation: Annotated[Finite, Field(gt=0)]

    @model_validator(mode="after")
    def _ordinary_values_do_not_overflow(self) -> StandardEntry:
        if self.deviation < MIN_DEVIATION:
            raise ValueError(f"deviation {self.deviation:g} is below {MIN_DEVIATION:g}: values overflow")
        if abs(self.mean) > MAX_MEAN * self.deviation:
            raise ValueError(f"mean {self.mean:g} is over {MAX_MEAN:g} deviations of {self.deviation:g}")
        return self


class Manifest(Strict):
    """The content of manifest.json.

    activations: None if no data were seen, as after an import. sha256: its own checksum, None in format
    version 1.
    """

    format: Literal["polyrec-bundle"] = "polyrec-bundle"
    format_version: int
    name: Name
    version: Name
    created: Name
    code_version: Name
    schema_: Schema = Field(alias="schema")
    architecture: Architecture
    representation: Representation
    standards: dict[str, StandardEntry]
    vocabularies: dict[str, VocabularyDescriptor]
    metrics: dict[str, dict[str, Finite | int | None]]
    training: dict[str, Any]
    activations: Activations | None = None
    files: dict[str, FileDigest]
    sha256: str | None = None

    @property
    def counted_rows(self) -> dict[Role, float]:
        """Contexts and candidates whose lookups were counted; empty unless the bundle itself was calibrated.

        For other bundles, polyrec.models.schema.popularity.counted_lookups estimates them.
        """
        calibrated = self.training.get(CALIBRATED)
        rows = calibrated.get(COUNTED) if isinstance(calibrated, dict) else None
        if not isinstance(rows, dict):
            return {}
        return {role: n for role in ROLES if isinstance(n := rows.get(role), int) and n > 0}

    @model_validator(mode="after")
    def _widths_are_whole_bytes(self) -> Manifest:
        odd = [width for width in self.architecture.widths if width % 2]
        if odd and self.representation.precision == "int4":
            raise ValueError(f"int4 packs two numbers a byte: a width of {odd[0]} is odd")
        return self


def with_width(name: str, width: int | None) -> str:
    """Returns the name of a bundle, path or metric at a nested width, like `table.w16`; None: unchanged."""
    return name if width is None else f"{name}.w{width}"


def checksum(raw: dict[str, Any]) -> str:
    """Computes the `sha256` of a manifest's JSON object, ignoring a value already at that key."""
    content = {key: value for key, value in raw.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_json_with_checksum(manifest: Manifest) -> str:
    """Returns the text of a manifest file, with its checksum."""
    raw = json.loads(manifest.model_dump_json(by_alias=True))
    return json.dumps(raw | {"sha256": checksum(raw)}, indent=2) + "\n"


def read_manifest(folder: Path | str, file: Path | None = None) -> Manifest:
    """Reads and checks the manifest of the bundle at `folder`. Raises BundleError, which names `folder`.

    file: read instead of the folder's manifest.json, for example through an open descriptor.
    """
    what = f"bundle '{folder}': {MANIFEST}"
    try:
        raw = json.loads(read_regular(file or Path(folder) / MANIFEST, MAX_SERVED_BYTES))
        offense = _invalid_string(raw)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"no bundle at '{folder}': there is no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as e:
        raise BundleError(f"{what} cannot be read: {e}") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version not in READ_VERSIONS:
        raise BundleError(
            f"bundle '{folder}' has format version {version}, "
            f"this Polyrec reads {', '.join(map(str, READ_VERSIONS))}"
        )
    if version != UNSEALED_VERSION and raw.get("sha256") != checksum(raw):
        raise BundleError(f"{what} is corrupt or was edited (its sha256 is not its own)")
    if offense is not None:
        raise BundleError(f"{what}: {offense}")
    manifest = validate_as(Manifest, raw, what, BundleError)
    if manifest.files.keys() != set(NUMBERS):
        raise BundleError(f"{what} lists other files than {', '.join(NUMBERS)}")
    return manifest


def _invalid_string(raw: Any, where: str = "") -> str | None:
    """Describes the first string (key or value) that is too long or has a control character, else returns
    None.
    """
    if isinstance(raw, str):
        if len(raw) > MAX_STRING:
            return f"{where[1:]} has more than {MAX_STRING} characters"
        return f"{where[1:]} has a control character: {raw[:80]!r}" if UNPRINTABLE.search(raw) else None
    if isinstance(raw, list):
        return next((found for value in raw if (found := _invalid_string(value, where))), None)
    if isinstance(raw, dict):
        for key, value in raw.items():
            found = _invalid_string(key, f"{where}.key") or _invalid_string(value, f"{where}.{key}")
            if found:
                return found
    return None
