"""Reads which rows a bundle stores and how often each is accessed, without opening the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from polyrec.models.bundle.encoding import encoder_of
from polyrec.models.bundle.manifest import VOCABULARY, Manifest
from polyrec.models.errors import BundleError, DataError
from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import counted_lookups
from polyrec.models.schema.shared_ids import obstacle
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.profile import Memory, ProfileError


def read_tables(folder: Path, manifest: Manifest, memory: Memory) -> Tables:
    """Reads the access counts of the rows that a path of the bundle stores, according to `memory`.

    Raises BundleError if the counts cannot be read, ProfileError if it is not the bundle that was profiled.
    """
    try:
        with safe_open(folder / VOCABULARY, "np") as f:
            accesses = {t: f.get_tensor(f"{t}.counts").astype(np.int64) for t in manifest.schema_.tables}
    except (OSError, SafetensorError) as e:
        raise BundleError(f"bundle '{folder}': {VOCABULARY} cannot be read: {e}") from None
    try:
        return tables_from_counts(manifest, accesses, memory)
    except ValueError as e:
        raise ProfileError(
            f"bundle '{folder}' is not the one that was profiled: {e}; profile it again"
        ) from None


def require_shared_ids(bundles: Mapping[str, tuple[Path, Manifest]]) -> None:
    """Raises ProfileError if one plan cannot serve these bundles (models/schema/shared_ids.py).

    bundles: folder and manifest of each, by the name of one of its paths. Reads vocabularies only if their
    files differ. Raises BundleError if one cannot be read.
    """
    distinct: dict[str, tuple[str, Path, Manifest]] = {}
    for name, (folder, manifest) in bundles.items():
        key = f"{manifest.files[VOCABULARY].sha256} {manifest.schema_}"
        distinct.setdefault(key, (name, folder, manifest))
    if len(distinct) < 2:
        return
    found = obstacle({name: _read_encoder(folder, of) for name, folder, of in distinct.values()})
    if found is not None:
        raise ProfileError(f"the profile's bundles of paths {found}, and profile those")


def _read_encoder(folder: Path, manifest: Manifest) -> Encoder:
    """Reads the vocabularies of a bundle without opening the model. Raises BundleError."""
    try:
        with safe_open(folder / VOCABULARY, "np") as f:
            arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
        return encoder_of(manifest, arrays)
    except (OSError, SafetensorError, DataError) as e:
        raise BundleError(f"bundle '{folder}': {VOCABULARY} cannot be read: {e}") from None


def expected_accesses(counts: I64) -> F64:
    """Estimates future accesses, float64 [rows], from sampled ones by rank, int64 [rows].

    Rows that the sample missed share the accesses of rows seen once (Turing's estimate; Good, Biometrika
    1953), each at most as many as a row seen once. The other rows are scaled down by the same amount.
    """
    total, once = float(counts.sum()), float((counts == 1).sum())
    unseen = counts.size - int(np.count_nonzero(counts))
    if not total or not unseen or once == total:
        return counts.astype(np.float64)
    kept = 1.0 - once / total
    return np.where(counts > 0, counts * kept, min(once / unseen, kept))


def tables_from_counts(
    manifest: Manifest, accesses: Mapping[str, I64], memory: Memory, unseen: bool = True
) -> Tables:
    """Builds the stored tables.

    accesses: by table, in rank order. unseen: whether rows without accesses get their expected share.

    The number of sampled rows gives the lookups per row of bags and of shared contexts. Where the manifest
    does not have it, single-valued candidate features show it, as they are looked up once per row. Raises
    ValueError if `memory` has rows that are not stored.
    """
    schema, representation = manifest.schema_, manifest.representation
    counts: dict[str, F64] = {}
    estimated = counted_lookups(schema, {t: int(accesses[t].sum()) for t in schema.tables})
    sampled = manifest.counted_rows.get("candidate") or estimated["candidate"]
    for table in schema.tables:
        all_rows = accesses[table]
        stored = all_rows.size
        if representation.kind in ("dhe", "select"):
            stored = representation.cuts.get(table, 0)
        if stored and memory.tables.get(table):
            expected = expected_accesses(all_rows) if unseen else all_rows.astype(np.float64)
            counts[table] = expected[:stored]
    for table, size in memory.tables.items():
        if size and table not in counts:
            raise ValueError(f"it stores no rows of table '{table}'")
    row_bytes = tuple(memory.tables[t] / c.size for t, c in counts.items())
    # if neither is known, every table counts as looked up once per row
    sampled = sampled or max((float(c.sum()) for c in accesses.values()), default=1.0)
    lookups = sum(float(c.sum()) for c in counts.values()) / max(sampled, 1.0)
    ranked = tuple(RankedAccesses.from_counts(c) for c in counts.values())
    return Tables(tuple(counts), ranked, row_bytes, lookups)
