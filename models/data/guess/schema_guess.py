"""Guesses a schema from a data file: which columns are label, group, time and features, and of what kind.

    Parquet -> the first rows -> what each column looks like -> a Schema, and the reason for every line of it

A guess is a draft for a person to correct, so each decision has a reason, and a column that is not a feature
is listed with the reason too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import yaml

from polyrec.models.data.columns import countable, floats
from polyrec.models.data.guess.column import (
    ID,
    SPLIT,
    guess_feature,
    is_number,
    is_text,
    rare,
    share_seen_before,
    value_codes,
)
from polyrec.models.data.guess.label import guess_label
from polyrec.models.data.parquet import open_parquet, parquet_files
from polyrec.models.data.remote.path import DataPath, data_path
from polyrec.models.errors import DataError, SchemaError
from polyrec.models.evaluation.metrics import auc
from polyrec.models.files import validate_as
from polyrec.models.schema.feature_names import is_usable, new_names
from polyrec.models.schema.schema import Schema

SAMPLE_ROWS = 200_000
GROUP = re.compile(r"request|impression|query|search|session|group|slate", re.IGNORECASE)
TIME = re.compile(r"^(time|timestamp|date|datetime|ts|day|created)$|_(time|ts|at)$")
CONTEXT = re.compile(
    r"^(user|customer|visitor|session|device|platform|country|city|state|region|gender|age|occupation|zip)"
)
SHARED, SHARED_FROM = 0.5, 100
"""Ids share a table if one's values, at least so many, are to this share values of the other."""
TELLING = 0.95
"""AUC of a column alone from which on it was probably written with the label, or after it."""
RECURRING = 0.05
"""An id is a feature only if at least this share of the newest fifth of the rows has a value seen before."""
FEWEST = 10
"""Positive rows, and negative ones, for each value of a text that is checked for it: fewer tell their own."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A guessed schema.

    reasons: a column, `label`, `group` or `split` -> the reason. left_out: column -> the reason.
    renames: column left out only for its name -> a name under which it could be a feature.
    rows: number of the first rows that were read.
    """

    schema: Schema
    reasons: dict[str, str]
    left_out: dict[str, str]
    renames: dict[str, str]
    rows: int

    def as_yaml(self, source: str) -> str:
        """Returns the schema file, with the reason beside each line."""
        schema = self.schema.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        lines = [
            f"# Guessed by `polyrec new schema {source}`",
            f"# from the first {self.rows:,} rows: read it, and correct what is wrong.",
            "# What the keys mean: models/schema/schema.py; examples: models/schema/schemas/.",
            f"name: {schema['name']}",
        ]
        for kind in ("dense", "categorical"):
            if kind in schema:
                lines.append(f"{kind}:")
                lines += [f"  - {_inline_yaml(f)}  # {self.reasons[f['name']]}" for f in schema[kind]]
        lines.append(f"label: {_inline_yaml(schema['label'])}  # {self.reasons['label']}")
        if "group" in schema:
            lines.append(f"group: {schema['group']}  # {self.reasons['group']}")
        lines.append(f"split: {_inline_yaml(schema['split'])}  # {self.reasons['split']}")
        if self.left_out:
            lines.append("# No features:")
            lines += [f"#   {name}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines) + "\n"


def guess_schema(
    path: str | Path, label: str | None = None, group: str | None = None, name: str | None = None
) -> Guess:
    """Guesses the schema of a Parquet file or folder from its first rows.

    label, group: known columns. name: of the schema, by default from the file.
    Raises DataError if there is no such file or column, SchemaError if no column looks like a label or like
    an id.
    """
    place = data_path(path)
    data = _sample(place)
    for column in (label, group):
        if column is not None and column not in data.column_names:
            raise DataError(f"{place}: no column '{column}'; the columns are {', '.join(data.column_names)}")
    reasons, left_out = dict[str, str](), dict[str, str]()
    label_of, reasons["label"] = guess_label(data, label, place)
    rest = [c for c in data.column_names if c != label_of["column"]]
    time = next((c for c in rest if c != group and _is_time(c, data[c].type)), None)
    group, why_group = _group(data, [c for c in rest if c != time], group)
    if group is not None:
        reasons["group"] = why_group
        rest.remove(group)
        if ID.search(group) is None or CONTEXT.match(group) is None:
            left_out[group] = "the group: identifies the request"
    if time is not None:
        rest.remove(time)
        left_out[time] = "the time, by which rows are split"
    features: dict[str, list[dict[str, Any]]] = {"dense": [], "categorical": []}
    renames = new_names([c for c in rest if not (is_usable(c) or SPLIT.match(c))], data.column_names)
    left_out |= {c: f"no feature can have this name: rename it, say to {new}" for c, new in renames.items()}
    for column in [c for c in rest if c not in renames]:
        found, why = guess_feature(column, data[column])
        if found is not None:
            alone = _auc_alone(data[column], data[label_of["column"]], label_of.get("positive_above", 0.0))
            if alone > TELLING:
                found = None
                why = f"alone it predicts the label (AUC {alone:.2f}): known only later? If not, add it"
            elif time is not None and found.keys() <= {"type", "min_count"}:
                seen = share_seen_before(data[column], data[time])
                if seen < RECURRING:
                    found = None
                    why = f"only {seen:.0%} of the newest rows have a value seen before: not learnable"
        if found is None:
            left_out[column] = why
            continue
        role, why_role = _role(data, column, group)
        features["dense" if "transform" in found or "missing" in found else "categorical"].append(
            {"name": column} | ({"role": role} if role == "context" else {}) | found
        )
        reasons[column] = f"{why}; {why_role}"
    _share_tables(data, features["categorical"], reasons)
    split, reasons["split"] = _split(time, group, features["categorical"])
    document = {"name": name or _name(place), **features, "label": label_of, "split": split}
    if group is not None:
        document["group"] = group
    if not features["categorical"]:
        remedy = f"rename {list(renames)}, as no feature has such a name" if renames else "write it by hand"
        raise SchemaError(f"no column of '{place}' looks like an id: a schema needs one; {remedy}")
    schema = validate_as(Schema, document, f"schema of '{place}'", SchemaError)
    return Guess(schema, reasons, left_out, renames, data.num_rows)


def _sample(path: DataPath) -> pa.Table:
    """Reads the first rows, from the first files that have the first one's columns. Raises DataError."""
    batches: list[pa.RecordBatch] = []
    left, columns = SAMPLE_ROWS, None
    for file in parquet_files(path):
        with open_parquet(file) as parquet:
            there = parquet.schema_arrow.remove_metadata()
            columns = columns or there
            if there != columns:
                continue
            for batch in parquet.iter_batches(min(left, 65536), use_threads=False):
                batches.append(batch.slice(0, left).replace_schema_metadata(None))
                left -= batches[-1].num_rows
                if left <= 0:
                    break
        if left <= 0:
            break
    if not batches:
        raise DataError(f"'{path}' has no rows")
    table = pa.Table.from_batches(batches)
    for i, column in enumerate(table.columns):
        table = table.set_column(i, table.field(i).name, countable(column))
    return table


def _group(data: pa.Table, columns: Sequence[str], given: str | None) -> tuple[str | None, str]:
    """Returns the column that identifies requests, and the reason; None if there is none."""
    for column in [given] if given else [c for c in columns if GROUP.search(c)]:
        if pt.is_nested(data[column].type) or pt.is_null(data[column].type):
            if given:
                raise SchemaError(f"column '{column}' is {data[column].type}: it cannot identify requests")
            continue
        runs = _runs(data[column])
        distinct = pc.count_distinct(data[column]).as_py()
        mean = data.num_rows / max(distinct, 1)
        if given or (1.5 <= mean <= 1000 and runs <= 1.05 * distinct):
            return column, f"{mean:.1f} rows each" + ("" if given else ", next to one another")
    return None, ""


def _runs(column: pa.ChunkedArray) -> int:
    """Returns the number of runs of equal values in neighboring rows."""
    return 1 + int(np.count_nonzero(np.diff(value_codes(column))))


def _role(data: pa.Table, column: str, group: str | None) -> tuple[str, str]:
    """Returns the role and the reason; a context feature has one value per request, or a context's name."""
    if group is not None and not pt.is_nested(data[column].type):
        requests, values = value_codes(data[group]), value_codes(data[column])
        pairs = np.unique(np.stack((requests, values)), axis=1).shape[1]
        several = np.unique(requests).size
        if pairs <= 1.001 * several:
            return "context", "the same in a request"
        return "candidate", "differs in a request"
    if group is not None:
        lists = [tuple(v or ()) for v in data[column].to_pylist()]
        requests = value_codes(data[group])
        pairs = len(set(zip(requests.tolist(), lists, strict=True)))
        alike = pairs <= 1.001 * np.unique(requests).size
        return ("context", "the same in a request") if alike else ("candidate", "differs in a request")
    if CONTEXT.match(column):
        return "context", "by its name"
    return "candidate", "by its name"


def _share_tables(data: pa.Table, categorical: Sequence[dict[str, Any]], reasons: dict[str, str]) -> None:
    """Makes features share the table of a larger one that has a similar name and their values."""
    open_ = [f for f in categorical if "cardinality" not in f]
    values = {f["name"]: _value_set(data[f["name"]]) for f in open_}
    by_size = sorted(open_, key=lambda f: -len(values[f["name"]]))
    for i, feature in enumerate(by_size):
        own = values[feature["name"]]
        for larger in by_size[:i]:
            alike = _words(feature["name"]) & _words(larger["name"])
            if not alike or "table" in larger or larger["type"] != feature["type"] or len(own) < SHARED_FROM:
                continue
            shared = len(own & values[larger["name"]]) / len(own)
            if shared >= SHARED:
                feature.pop("min_count", None)  # belongs to the table, so it is equal in both
                feature |= {"table": larger["name"]} | rare(len(values[larger["name"]]))
                reasons[feature["name"]] += f"; {shared:.0%} of them are values of {larger['name']}"
                break


def _words(name: str) -> set[str]:
    """Returns the words of a name, singular. Names decide, as small integers occur in any column of
    integers.
    """
    return {word.rstrip("s") for word in name.lower().split("_")} - {"id", ""}


def _value_set(column: pa.ChunkedArray) -> frozenset[Any]:
    flat = pc.list_flatten(column) if pt.is_nested(column.type) else column
    return frozenset(pc.unique(flat).to_pylist()) - {None}


def _split(
    time: str | None, group: str | None, categorical: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    if time is not None:
        return {"rule": "time", "columns": [time]}, "train on the past, test on the future"
    if group is not None:
        return {"rule": "hash", "columns": [group]}, "no time found: whole requests, by a hash"
    single = [f for f in categorical if "pooling" not in f]
    # a user and an item: in a hash split by user alone, all users of the test rows would be new
    contexts = [f["name"] for f in single if f.get("role") == "context"]
    candidates = [f["name"] for f in single if f.get("role") != "context"]
    columns = (contexts[:1] + candidates + contexts[1:])[:2]
    return {"rule": "hash", "columns": columns}, "no time and no group found: by a hash of ids"


def _is_time(name: str, type_: pa.DataType) -> bool:
    dated = pt.is_timestamp(type_) or pt.is_date(type_)  # not a time of day or a duration
    return bool(dated or (pt.is_integer(type_) and TIME.search(name.lower())))


def _auc_alone(column: pa.ChunkedArray, label: pa.ChunkedArray, above: float) -> float:
    """Returns the AUC of a column's values, or of their negatives if greater, for the label above a value.

    A text column of few values counts as the share of positive rows with its value; for others it is 0.5.
    """
    labels = floats(label)
    known = np.isfinite(labels)
    positive = (labels > above).astype(np.float64)
    clicks = positive[known].sum()
    if is_number(column.type):
        values = floats(column)
    elif is_text(column.type) and len(pc.unique(column)) * FEWEST <= min(clicks, known.sum() - clicks):
        codes = 1 + value_codes(column)
        values = (np.bincount(codes, positive) / np.maximum(np.bincount(codes), 1))[codes]
    else:
        return 0.5
    known &= np.isfinite(values)
    if not 0 < positive[known].sum() < known.sum():
        return 0.5
    found = auc(values[known], positive[known])
    return max(found, 1 - found)


def _name(path: DataPath) -> str:
    """Returns a name for the schema, derived from the file's name."""
    found = re.sub(r"\W+", "_", path.stem, flags=re.ASCII).strip("_")[:64]
    return found if re.match(r"[A-Za-z_]", found) else f"data_{found}"


def _inline_yaml(value: object) -> str:
    """Formats a value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
