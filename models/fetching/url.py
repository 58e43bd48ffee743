"""Defines the URLs of models: a bundle folder or a plan (`*.json`), in an object store or on a web server.

Every place has exactly one URL, so that "below a prefix" is a text comparison: no query, no escapes, no `..`,
no chained file systems. URLs contain no credentials (stores find theirs in the environment), so they can be
logged.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import core_schema

SCHEME = "://"
MAX_CHARACTERS = 1000
_ALLOWED = re.compile(r"[a-z][a-z0-9+.-]*://[^\s?#%*,;\[\]\\'\"\x00-\x1f\x7f-\x9f]+")
CONTAINER_FIRST = ("abfs://", "abfss://")
"""Schemes with `CONTAINER@ACCOUNT`, where the part before the @ is not a login."""


@dataclass(frozen=True, slots=True)
class ModelUrl:
    """The URL of a model, without a trailing slash. Raises ValueError."""

    text: str

    def __post_init__(self) -> None:
        text = self.text.rstrip("/")
        rest = text.partition(SCHEME)[2]
        first, *segments = rest.split("/")
        if len(text) > MAX_CHARACTERS or not _ALLOWED.fullmatch(text) or "::" in text:
            raise ValueError("a URL of a model is SCHEME://PLACE/PATH, without query, escapes and chains")
        if {"", ".", ".."} & {*segments} or first in (".", ".."):
            raise ValueError("a URL of a model has no empty parts, '.' or '..'")
        if "@" in first and not text.startswith(CONTAINER_FIRST):
            raise ValueError("a URL of a model has no login; stores find theirs in the environment")
        object.__setattr__(self, "text", text)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> core_schema.CoreSchema:
        """Excludes it from the API document, where it is a string (`ModelPlace`)."""
        return core_schema.is_instance_schema(cls)

    @property
    def is_plan(self) -> bool:
        """Whether it is a plan file; all others are folders of bundles."""
        return self.text.endswith(".json")

    @property
    def folder(self) -> ModelUrl:
        """Returns the containing folder. Raises ValueError for a place without a path."""
        return ModelUrl(self.text.rpartition("/")[0])

    def child(self, name: str) -> ModelUrl:
        """Returns a file or folder inside this one. Raises ValueError."""
        return ModelUrl(f"{self.text}/{name}")

    def beside(self, relative: Path) -> ModelUrl:
        """Returns a place relative to this file's folder. Raises ValueError if the path is not relative."""
        if relative.is_absolute() or ":" in str(relative):
            raise ValueError(f"'{relative}' is not relative to '{self}'")
        scheme, _, rest = self.text.partition(SCHEME)
        first, _, path = rest.partition("/")
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))
        return ModelUrl(f"{scheme}{SCHEME}{first}/{inside}")

    def is_below(self, prefix: ModelUrl) -> bool:
        """Returns whether it is the folder `prefix` or inside it."""
        return self == prefix or self.text.startswith(f"{prefix.text}/")


def model_place(given: object) -> Path | ModelUrl:
    """Returns the place of a model: a URL if there is a scheme, else a local path. Raises ValueError."""
    if isinstance(given, Path | ModelUrl):
        return given
    if not isinstance(given, str):
        raise ValueError("Input is not a valid path")
    if "\0" in given:
        raise ValueError("a path has no null byte")
    return ModelUrl(given) if SCHEME in given else Path(given)


def _optional_place(given: object) -> Path | ModelUrl | None:
    return None if given is None else model_place(given)


ModelPlace = Annotated[Path | ModelUrl, PlainValidator(model_place), WithJsonSchema({"type": "string"})]
"""A local path or a URL, as a field of a pydantic model."""
OptionalModelPlace = Annotated[
    Path | ModelUrl | None,
    PlainValidator(_optional_place),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
]
