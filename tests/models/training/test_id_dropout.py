from __future__ import annotations

from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.training.id_dropout import drop_from_large_tables, make_id_dropout


def test_id_dropout_affects_the_given_share_of_large_tables_only(bundle: Bundle, clicks: Path) -> None:
    schema, encoder = bundle.manifest.schema_, bundle.encoder
    reader = open_data(clicks, schema)
    with encode(reader, encoder, fit_splitter(reader, schema)) as data:
        batch = data.batch(np.arange(data.rows))
    hide = make_id_dropout(encoder, drop_from_large_tables(encoder, rate=0.3, from_rows=100))
    assert hide is not None
    hidden = hide(batch, np.random.default_rng(0))
    for role in ("context", "candidate"):
        before, after = getattr(batch, role), getattr(hidden, role)
        for i, feature in enumerate(schema.layout(role).singles):
            vocabulary = encoder.vocabulary(feature)
            changed = before.ranks[:, i] != after.ranks[:, i]
            if vocabulary.rows < 100:
                assert not changed.any(), feature.name
                continue
            assert (after.ranks[changed, i] == vocabulary.oov_rank).all()
            missing = before.ranks[:, i] == vocabulary.missing_rank
            assert not changed[missing].any()
            known = ~missing & (before.ranks[:, i] != vocabulary.oov_rank)
            assert abs(changed[known].mean() - 0.3) < 4 * (0.3 * 0.7 / known.sum()) ** 0.5


def test_no_dropout_function_if_no_id_is_to_be_hidden(bundle: Bundle) -> None:
    for rate, from_rows in ((0.0, 1), (0.5, 10**9)):
        nothing = drop_from_large_tables(bundle.encoder, rate, from_rows)
        assert make_id_dropout(bundle.encoder, nothing) is None
