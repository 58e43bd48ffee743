"""Checks that two schemas describe the same features, one by one, under different names.

An imported model has invented names, and every feature in the candidate role. A schema file supplies the
names in the data, roles, transforms, label and split. Since roles determine the order in which a model reads
its inputs, an existing model admits only some assignments of roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from polyrec.models.errors import SchemaError
from polyrec.models.schema.schema import Categorical, Dense, Schema

Feature = TypeVar("Feature", Dense, Categorical)

MEANINGS = ("type", "cardinality", "min_count", "max_values", "oov")


def check_same_features(was: Schema, now: Schema, poolings: bool = True) -> dict[str, str]:
    """Returns the table names in `now` by their names in `was`.

    Features correspond by their position in the file. Names, roles, transforms, list lengths, label, group
    and split may differ. poolings: whether poolings must be equal.
    Raises SchemaError naming the first feature that differs.
    """
    where = f"schema '{now.name}' does not describe this model"
    for kind, before, after in (
        ("dense features", len(was.dense), len(now.dense)),
        ("categorical features", len(was.categorical), len(now.categorical)),
        ("features of the request", len(was.request), len(now.request)),
    ):
        if before != after:
            raise SchemaError(f"{where}: it has {after} {kind}, the model has {before}")
    for a, b in zip(was.dense, now.dense, strict=True):
        if "standardise" in b.transform and "standardise" not in a.transform:
            raise SchemaError(f"{where}: feature '{b.name}': its mean and deviation in training are unknown")
    tables: dict[str, str] = {}
    for x, y in zip(was.categorical, now.categorical, strict=True):
        for key in (*MEANINGS, *(("pooling",) if poolings else ())):
            if getattr(x, key) != getattr(y, key):
                raise SchemaError(
                    f"{where}: feature '{y.name}' has {key} {getattr(y, key)}, "
                    f"the model's '{x.name}' {getattr(x, key)}"
                )
        if tables.setdefault(x.table_name, y.table_name) != y.table_name:
            raise SchemaError(
                f"{where}: feature '{y.name}' reads table '{y.table_name}', the model's '{x.name}' the one "
                f"that is called '{tables[x.table_name]}' here"
            )
    if len({*tables.values()}) != len(tables):
        raise SchemaError(f"{where}: it has {len({*tables.values()})} tables, the model has {len(tables)}")
    names: dict[str | None, str] = {a.name: b.name for a, b in zip(was.dense, now.dense, strict=True)}
    names |= {x.name: y.name for x, y in zip(was.categorical, now.categorical, strict=True)}
    for a, b in zip(was.request, now.request, strict=True):
        operands = {"of": names.get(a.of, a.of), "to": names.get(a.to, a.to)}
        if a.model_copy(update={"name": b.name, **operands}) != b:
            raise SchemaError(f"{where}: feature '{b.name}' of the request is not the model's '{a.name}'")
    return tables


def check_same_order(was: Schema, now: Schema) -> None:
    """Raises SchemaError unless a model reads the features of both schemas in the same order."""
    _check_order(was.dense, was.context.supplied + was.candidate.supplied, now.dense, now)
    _check_order(was.categorical, was.slots, now.categorical, now)


def _check_order(
    in_file: Sequence[Feature],
    in_model: Sequence[Feature],
    renamed: Sequence[Feature],
    now: Schema,
) -> None:
    """Raises SchemaError unless the model would read the renamed features in the original order."""
    wanted = [renamed[in_file.index(f)].name for f in in_model]
    read = [d.name for d in now.context.supplied + now.candidate.supplied] + [f.name for f in now.slots]
    read = [name for name in read if name in wanted]
    for expected, got in zip(wanted, read, strict=True):
        if expected != got:
            raise SchemaError(
                f"schema '{now.name}': the model reads '{expected}' where these roles put '{got}': features "
                "of the context come before those of the candidate, and in each role single values before "
                "lists; an import with this schema puts the model's inputs in its order"
            )
