"""Calibrates a model: counts accesses over training rows and puts every table in popularity order.

One streaming pass produces everything that an encoder needs besides the schema: a vocabulary per table, with
rows ranked by accesses, and mean and deviation of the dense features. Accesses are counted as in serving: a
context's accesses count once per request, not once per candidate. All rows count by default. FAE (VLDB'22,
section 3) samples 5% of the inputs, but the vocabularies need a pass over all training rows anyway, so a
sample saves nothing and cannot rank rare rows.

A calibration is stored as one safetensors file; bundles store their vocabularies in the same arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyrec.models.data.counts import AccessCounts
from polyrec.models.data.moments import Moments
from polyrec.models.data.reader import DataReader
from polyrec.models.data.split import TRAIN, Splitter
from polyrec.models.errors import DataError
from polyrec.models.files import Strict, atomic_path
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.batch import I64
from polyrec.models.schema.continuation import PreviousVocabularies
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.models.schema.vocabulary import Vocabulary

HOTTEST = (0.01, 0.05, 0.10)

FORMAT = "polyrec-calibration-1"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of one pass over the training rows.

    vocabularies: by table, in popularity order. standards: by dense feature.
    rows: training rows seen. sampled_rows: rows whose accesses determine the order.
    """

    vocabularies: dict[str, Vocabulary]
    standards: dict[str, Standard]
    rows: int
    sampled_rows: int

    def fingerprint(self) -> str:
        """Returns the sha256 of values, ranks, counts and standards, as hex digits."""
        digest = hashlib.sha256(repr(sorted(self.standards.items())).encode())
        for name, array in sorted(vocabulary_tensors(self.vocabularies)[0].items()):
            digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()


def calibrate(
    reader: DataReader,
    schema: Schema,
    splitter: Splitter,
    *,
    which: Sequence[int] = (TRAIN,),
    sample: float | None = None,
    seed: int = 0,
    progress: RowsDone = ignore_rows,
    previous: PreviousVocabularies | None = None,
) -> Calibration:
    """Calibrates on the rows of the splits `which`, in one pass.

    sample: share of the rows whose accesses determine the order, in (0, 1]; None for all rows.
    progress: called with the number of rows of each batch read.
    previous: vocabularies to continue, see models/schema/continuation.py.

    A context feature is accessed once per run of rows with the same value in the schema's group column. Ties
    in popularity go to the row looked up last, in data order. Ids are ordered by the count over all training
    rows, ties by value.
    Raises DataError if these splits have no rows.
    """
    if sample is not None and not 0.0 < sample <= 1.0:
        raise DataError(f"a sample of {sample} is not a share in (0, 1]")
    counters = {table: AccessCounts(features) for table, features in schema.tables.items()}
    moments = [Moments(d) for d in schema.numbers]
    random = np.random.default_rng(seed)
    requests = _Requests(schema.group)
    rows = sampled_rows = 0
    for data in reader.batches(schema.encoded_columns):
        sampled = random.random(data.num_rows) < (1.0 if sample is None else sample)
        wanted = np.isin(splitter(data), which)
        if not wanted.all():
            data, sampled = data.filter(pa.array(wanted)), sampled[wanted]
        rows += data.num_rows
        sampled_rows += int(sampled.sum())
        first = sampled & requests.first(data)
        for features, counter in zip(schema.tables.values(), counters.values(), strict=True):
            for feature in features:
                counted = first if feature.role == "context" else sampled
                counter.add(feature, data.column(feature.name), counted)
        for moment in moments:
            moment.add(data.column(moment.feature.name).to_numpy(zero_copy_only=False))
        progress(wanted.size)
    if not rows:
        raise DataError(f"{reader.path}: there are no rows to calibrate on")
    return Calibration(
        {t: counter.vocabulary(t, sampled_rows == rows, previous) for t, counter in counters.items()},
        {moment.feature.name: moment.standard() for moment in moments},
        rows,
        sampled_rows,
    )


class _Requests:
    """Finds the first row of each request in a stream of batches; rows of a request must be consecutive."""

    def __init__(self, group: str | None) -> None:
        self._group = group
        self._last: Any = None

    def first(self, data: pa.RecordBatch) -> NDArray[np.bool_]:
        """Returns bool [rows], True for the first row of each request; all True if the schema has no
        group.
        """
        if self._group is None or not data.num_rows:
            return np.ones(data.num_rows, bool)
        codes = data.column(self._group).dictionary_encode()
        number = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        last, self._last = self._last, codes.dictionary[number[-1]].as_py() if number[-1] >= 0 else None
        head = number[0] < 0 or codes.dictionary[number[0]].as_py() != last
        first: NDArray[np.bool_] = np.append(head, number[1:] != number[:-1]) | (number < 0)
        return first


def counted_lookups(schema: Schema, accesses: Mapping[str, int]) -> dict[Role, float]:
    """Estimates how many contexts and candidates a calibration has counted; 0 where no table tells.

    accesses: table -> sum of its counts. A single-valued feature is looked up once per context or candidate,
    so a table of only such features reveals the number. The smallest estimate is used, because some counts
    include estimates for unseen values.
    """
    found: dict[Role, float] = {}
    for role in ROLES:
        estimates = [
            accesses[table] / len(features)
            for table, features in schema.tables.items()
            if accesses[table]
            and not any(f.multi for f in features)
            and (schema.group is None or {f.role for f in features} == {role})
        ]
        found[role] = min(estimates, default=0.0)
    for role, other in (ROLES, ROLES[::-1]):
        found[role] = found[role] or found[other]
    return found


def skew(counts: I64) -> dict[float, float]:
    """Returns the share of accesses that go to the hottest 1%, 5% and 10% of a table's rows.

    counts: int64 [rows], in rank order. The shares of a table without accesses are 0.
    """
    ends = np.cumsum(counts)
    total = max(int(ends[-1]), 1)
    return {share: int(ends[max(round(counts.size * share), 1) - 1]) / total for share in HOTTEST}


class VocabularyDescriptor(Strict):
    """Metadata of one vocabulary that its arrays do not contain.

    values: `range` if the values are the integers 0 ... size-1, which need no array.
    """

    type: Literal["string", "integer"]
    size: Annotated[int, Field(ge=0)]
    values: Literal["range", "integers", "strings"]
    specials: bool = True
    oov: Literal["row", "refuse"] = "row"


def vocabulary_tensors(
    vocabularies: Mapping[str, Vocabulary],
) -> tuple[Arrays, dict[str, VocabularyDescriptor]]:
    """Converts vocabularies to arrays to store, and one descriptor per table.

    The arrays of table t are `t.rank_of_id`, int32 or int64 [rows], and `t.counts`, int64 [rows]. Integer
    values are `t.values`, int64 [size]. Strings are `t.values`, uint8 (concatenated UTF-8), and `t.offsets`,
    int64 [size + 1]. Reserved ids, if any, are `t.reserved`, int64 [n].
    """
    arrays: Arrays = {}
    descriptors: dict[str, VocabularyDescriptor] = {}
    for table, v in vocabularies.items():
        arrays[f"{table}.rank_of_id"] = v.rank_of_id.astype(np.min_scalar_type(-max(v.rows, 1 << 16)))
        arrays[f"{table}.counts"] = v.counts
        kind: Literal["range", "integers", "strings"] = "range"
        if v.values is not None and v.type == "integer":
            kind = "integers"
            arrays[f"{table}.values"] = v.values.fill_null(0).to_numpy().astype(np.int64)
        elif v.values is not None:
            kind = "strings"
            binary = v.values.fill_null("").cast(pa.large_string())
            _, offsets, data = binary.buffers()
            ends = np.frombuffer(offsets, np.int64, v.size + 1, binary.offset * 8)
            arrays[f"{table}.offsets"] = ends - ends[0]
            arrays[f"{table}.values"] = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        if (reserved := v.reserved()).size:
            arrays[f"{table}.reserved"] = reserved
        descriptors[table] = VocabularyDescriptor(
            type=v.type, size=v.size, values=kind, specials=v.specials, oov=v.oov
        )
    return arrays, descriptors


def vocabularies_from_tensors(
    arrays: Mapping[str, NDArray[Any]], descriptors: Mapping[str, VocabularyDescriptor]
) -> dict[str, Vocabulary]:
    """Inverts `vocabulary_tensors`. Raises DataError if the arrays are inconsistent."""
    vocabularies = {}
    for table, d in descriptors.items():
        try:
            vocabularies[table] = Vocabulary(
                table,
                d.type,
                d.size,
                arrays[f"{table}.rank_of_id"].astype(np.int64),
                arrays[f"{table}.counts"].astype(np.int64),
                vocabulary_values(table, d, arrays),
                d.specials,
                d.oov,
            )
        except KeyError as e:
            raise DataError(f"the vocabulary of table '{table}' lacks its array {e}") from None
        except (ValueError, pa.ArrowException) as e:
            raise DataError(f"the vocabulary of table '{table}' is corrupt: {e}") from None
    return vocabularies


def vocabulary_values(
    table: str, d: VocabularyDescriptor, arrays: Mapping[str, NDArray[Any]]
) -> pa.Array | None:
    """Returns `Vocabulary.values` of one table from stored arrays.

    Raises KeyError if an array is absent, ValueError or ArrowException if the arrays are inconsistent.
    """
    if d.values == "range":
        return None
    given = _given_values(table, d, arrays)
    reserved = arrays.get(f"{table}.reserved")
    if reserved is None:
        return given
    is_reserved = np.zeros(d.size, bool)
    try:
        is_reserved[reserved] = True
    except IndexError as e:
        raise ValueError(f"its reserved ids are out of range: {e}") from None
    return pc.if_else(pa.array(is_reserved), pa.scalar(None, given.type), given)


def _given_values(table: str, d: VocabularyDescriptor, arrays: Mapping[str, NDArray[Any]]) -> pa.Array:
    values = arrays[f"{table}.values"]
    if d.values == "integers":
        return pa.array(values, pa.int64())
    offsets = np.ascontiguousarray(arrays[f"{table}.offsets"], np.int64)
    if offsets.shape != (d.size + 1,) or offsets[0] != 0 or offsets[-1] != values.size:
        raise ValueError("its offsets do not cover its values")
    if (np.diff(offsets) < 0).any():
        raise ValueError("its offsets decrease")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values, np.uint8))]
    strings = pa.Array.from_buffers(pa.large_string(), d.size, buffers)
    strings.validate(full=True)
    return strings.cast(pa.string())


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Writes a calibration atomically to one safetensors file, with its description in the header."""
    arrays, descriptors = vocabulary_tensors(calibration.vocabularies)
    header = {
        "format": FORMAT,
        "rows": calibration.rows,
        "sampled_rows": calibration.sampled_rows,
        "standards": {n: [s.mean, s.deviation] for n, s in calibration.standards.items()},
        "vocabularies": {t: d.model_dump() for t, d in descriptors.items()},
    }
    path = Path(path)
    try:
        with atomic_path(path) as partial:
            partial.touch()
            mode = partial.stat().st_mode
            save_file(arrays, partial, {"calibration": json.dumps(header)})
            partial.chmod(mode)  # safetensors creates files that only their owner can read
    except (OSError, SafetensorError) as e:
        raise DataError(f"cannot write '{path}': {e}") from None


def load_calibration(path: str | Path, schema: Schema | None = None) -> Calibration:
    """Reads a file written by `save_calibration`.

    Raises DataError: no such file, not a calibration, or a calibration of another schema than `schema`.
    """
    try:
        with safe_open(path, "np") as f:
            header = json.loads((f.metadata() or {}).get("calibration", "{}"))
            arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"no calibration file '{path}'") from None
    except (OSError, SafetensorError, ValueError) as e:
        raise DataError(f"'{path}' is not a calibration file: {e}") from None
    if header.get("format") != FORMAT:
        raise DataError(f"'{path}' is not a calibration file (of format {FORMAT})")
    descriptors = {t: VocabularyDescriptor.model_validate(d) for t, d in header["vocabularies"].items()}
    calibration = Calibration(
        vocabularies_from_tensors(arrays, descriptors),
        {n: Standard(mean, deviation) for n, (mean, deviation) in header["standards"].items()},
        header["rows"],
        header["sampled_rows"],
    )
    if schema is not None:
        _check_schema(calibration, schema, f"'{path}' was made with another schema")
    return calibration


def _check_schema(calibration: Calibration, schema: Schema, where: str) -> None:
    for table, (head, *_) in schema.tables.items():
        v = calibration.vocabularies.get(table)
        if v is None:
            raise DataError(f"{where}: it has no table '{table}'")
        fixed = v.size if v.values is None else None
        if (v.type, v.oov, fixed) != (head.type, head.oov, head.cardinality):
            raise DataError(f"{where}: table '{table}' has another type, cardinality or oov rule")
    for d in schema.numbers:
        if d.name not in calibration.standards:
            raise DataError(f"{where}: it has no dense feature '{d.name}'")
