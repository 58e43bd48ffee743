"""A small schema with features of both roles, for tests of codecs."""

from __future__ import annotations

from typing import Any

from polyrec.models.schema.schema import Schema

SPLIT: dict[str, Any] = {"label": {"column": "clicked"}, "split": {"rule": "time", "columns": ["clicked"]}}


def small_schema(*candidates: dict[str, Any]) -> Schema:
    """A number and an item of the candidate, a number, a user and tags of the context, and `candidates`."""
    return Schema.model_validate(
        {
            "name": "small",
            "dense": [{"name": "price"}, {"name": "age", "role": "context"}],
            "categorical": [
                {"name": "user", "role": "context"},
                {"name": "tags", "role": "context", "pooling": "mean"},
                {"name": "item"},
                *candidates,
            ],
            **SPLIT,
        }
    )
