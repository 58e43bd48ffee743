"""Makes the models of benchmarks/peers, seeded, as bundles.

    kaggle   26 tables of the Criteo Kaggle set, 2.0 M rows in all, x 16; bottom 13-512-256-64-16, dot,
             top 367-512-256-1
    large    the same tables with 20 M rows x 64, beyond every cache; bottom 13-512-256-64, dot,
             top 415-512-256-1
    user     kaggle with all dense features in the context, as numbers of a user or a query are

Weights are random, since only speed is measured. The first half of the dense and sparse features belongs to
the context, so that a model takes independent rows as well as one context with candidates. In `user`, half of
the interaction's vectors are the context's too, and the bottom MLP depends only on the context. Ids are in
random order; rows are in popularity order, as after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.queries import draw
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.dlrm.activations import Activations, observe_activations
from polyrec.models.dlrm.dlrm import DLRM, Architecture, dense_slots, initial_net
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.stage import Stage
from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense, Label, Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary, ids_of_ranks

DENSE = 13
SEED = 1
SPREAD = 0.5
"""Rows are uniform within this range, which is large enough for every lookup to affect the answer."""
CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of C1 ... C26 in the Criteo Kaggle set."""
CALIBRATED_ROWS = 2**13
"""Number of rows from which the layers' largest inputs are computed."""
COUNTED = 1e9
"""Accesses of each table, if access counts are written."""
SPECIALS = 2
"""Rows of a table besides its values: missing and out of vocabulary."""


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A model. rows: approximate total. context_dense: number of the context's dense features."""

    name: str
    rows: int
    architecture: Architecture
    context_dense: int = DENSE // 2 + 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each table."""
        return capped(CARDINALITIES, self.rows)

    @property
    def schema(self) -> Schema:
        """A schema of Criteo's features, the first half of the tables in the context."""
        half = len(self.sizes) // 2
        return Schema(
            name=self.name,
            dense=tuple(
                Dense(name=f"I{i + 1}", role="context" if i < self.context_dense else "candidate")
                for i in range(DENSE)
            ),
            categorical=tuple(
                Categorical(
                    name=f"C{i + 1}",
                    type="integer",
                    cardinality=size,
                    role="context" if i < half else "candidate",
                )
                for i, size in enumerate(self.sizes)
            ),
            label=Label(column="label"),
            split=Split(rule="column", columns=("split",)),
        )


def _dlrm(width: int, bottom: Sequence[int]) -> Architecture:
    return Architecture(width=width, bottom=tuple(bottom), top=(512, 256), interaction="dot")


MODELS = {
    model.name: model
    for model in (
        PeerModel("kaggle", 2_000_000, _dlrm(16, (512, 256, 64))),
        PeerModel("large", 20_000_000, _dlrm(64, (512, 256))),
        PeerModel("user", 2_000_000, _dlrm(16, (512, 256, 64)), context_dense=DENSE),
    )
}


def capped(sizes: Sequence[int], total: int) -> tuple[int, ...]:
    """Limits the largest sizes to a common cap, so that all add up to at most `total`."""
    low, high = 1, max(sizes)
    while low < high:
        cap = (low + high + 1) // 2
        if sum(min(size, cap) for size in sizes) <= total:
            low = cap
        else:
            high = cap - 1
    return tuple(min(size, low) for size in sizes)


def ranks(size: int, random: np.random.Generator) -> I64:
    """Draws the rank of each id of a table of `size` values; the special rows are never accessed."""
    return np.concatenate((random.permutation(size), np.arange(size, size + SPECIALS)))


def zipf_counts(size: int, exponent: float | None) -> I64:
    """Returns the expected accesses of each rank of a table, special rows last; zeros without an exponent."""
    counts = np.zeros(size + SPECIALS, np.int64)
    if exponent is not None:
        # the continuous law that requests are drawn by; ranks share their accesses fairly
        ends = np.arange(1.0, size + 2) ** (1 - exponent)
        counts[:size] = COUNTED * np.diff(ends) / (ends[-1] - ends[0])
    return counts


def open_model(name: str, folder: Path) -> Bundle:
    """Loads a model's bundle from `folder`; makes it if it does not exist."""
    path = folder / name
    return load_bundle(path) if path.exists() else write_model(MODELS[name], path)


def write_model(
    model: PeerModel, path: Path, exponent: float | None = None, representation: Representation | None = None
) -> Bundle:
    """Writes a model as a bundle; needs twice its rows' bytes in memory.

    exponent: Zipf exponent of the access counts, which treat all features as the candidate's; None: no
    counts. representation: None stores all rows.
    """
    random = np.random.default_rng(SEED)
    torch.manual_seed(SEED)
    schema = model.schema
    if exponent is not None:
        features = [
            [feature.model_copy(update={"role": "candidate"}) for feature in own]
            for own in (schema.dense, schema.categorical)
        ]
        schema = schema.model_copy(update={"dense": tuple(features[0]), "categorical": tuple(features[1])})
    vocabularies = {
        table: Vocabulary(table, "integer", size, ranks(size, random), zipf_counts(size, exponent))
        for table, size in zip(schema.tables, model.sizes, strict=True)
    }
    rows = {table: vocabulary.rows for table, vocabulary in vocabularies.items()}
    width = model.architecture.width
    if representation is None:
        representation = Representation()
        weight = random.random((sum(rows.values()), width), np.float32)
        weight -= 0.5
        weight *= 2 * SPREAD
        stage: Stage = TableStage(schema, rows, torch.from_numpy(weight))
    else:
        stage = initial_stage(representation, schema, vocabularies, width, SEED, SPREAD)
    net = initial_net(model.architecture, dense_slots(schema), stage.slots)
    encoder, made = Encoder(schema, vocabularies, {}), DLRM(stage, net)
    activations = _activations(made, encoder)
    return write_bundle(path, made, representation, encoder, {}, {}, activations=activations)


def _activations(model: DLRM, encoder: Encoder) -> Activations | None:
    """Returns the largest inputs of the net's layers over rows like those of requests."""
    vocabularies = [encoder.vocabularies[table] for table in encoder.schema.tables]
    ids = [ids_of_ranks(vocabulary.rank_of_id) for vocabulary in vocabularies]
    drawn = draw(encoder.schema, ids, 1, CALIBRATED_ROWS, SEED)
    dense, sparse = drawn.dense[0], drawn.sparse[0]

    def batch(rows: I64) -> Batch:
        return encoder.from_ids(dense[rows], sparse[rows], {})

    return observe_activations(model, batch, np.arange(CALIBRATED_ROWS))


def value_of_rank(bundle: Bundle) -> list[I64]:
    """Returns the ids of each table in popularity order, special rows last; int64 [rows] each."""
    vocabularies = bundle.encoder.vocabularies
    return [ids_of_ranks(vocabularies[table].rank_of_id) for table in bundle.manifest.schema_.tables]
