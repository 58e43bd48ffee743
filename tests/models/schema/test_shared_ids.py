"""Bundles of one plan share schema and ids; their order by popularity may differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.shared_ids import obstacle


def with_vocabulary(encoder: Encoder, **changed: object) -> Encoder:
    """The encoder with another vocabulary of users."""
    users = replace(encoder.vocabularies["user_id"], **changed)  # type: ignore[arg-type]
    return Encoder(encoder.schema, {**encoder.vocabularies, "user_id": users}, encoder.standards)


def test_another_popularity_order_is_no_obstacle(bundle: Bundle) -> None:
    encoder = bundle.encoder
    users = encoder.vocabularies["user_id"]
    other = with_vocabulary(encoder, rank_of_id=users.rank_of_id[::-1].copy())
    assert obstacle({"one": encoder}) is None
    assert obstacle({"one": encoder, "same": load_bundle(bundle.path).encoder, "other": other}) is None


def test_other_values_or_another_schema_are_named_with_the_bundle(bundle: Bundle, shop_dir: str) -> None:
    encoder = bundle.encoder
    values = encoder.vocabularies["user_id"].values
    assert values is not None
    swapped = values.take(pa.array(np.roll(np.arange(len(values)), 1)))
    for other in (with_vocabulary(encoder, values=swapped), with_vocabulary(encoder, values=None)):
        found = obstacle({"one": encoder, "same": encoder, "other": other})
        assert found is not None
        assert found.startswith(
            "'one' and 'other' have different vocabularies; train both from one calibration"
        )
    found = obstacle({"one": encoder, "shop": load_bundle(shop_dir).encoder})
    assert found == "'one' and 'shop' have different schemas; a plan serves one"
