"""Gives a bundle the names, roles and label of another schema that describes the same model."""

from __future__ import annotations

from dataclasses import replace

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.renaming import check_same_features, check_same_order
from polyrec.models.schema.schema import Schema


def with_schema(bundle: Bundle, schema: Schema) -> Bundle:
    """Returns the bundle with another schema; ids, rows and the net stay the same.

    Raises SchemaError if the schema describes another model, or if its roles change the order of the model's
    inputs.
    """
    was = bundle.manifest.schema_
    tables = check_same_features(was, schema)
    check_same_order(was, schema)
    encoder = bundle.encoder
    vocabularies = {now: replace(encoder.vocabularies[t], table=now) for t, now in tables.items()}
    standards = {
        now.name: encoder.standards[old.name]
        for old, now in zip(was.numbers, schema.numbers, strict=True)
        if old.name in encoder.standards
    }
    representation = bundle.manifest.representation
    by_table = {
        key: {tables[t]: n for t, n in getattr(representation, key).items()} for key in ("cuts", "first_rows")
    }
    manifest = bundle.manifest.model_copy(
        update={
            "schema_": schema,
            "representation": representation.model_copy(update=by_table),
        }
    )
    return replace(bundle, manifest=manifest, encoder=Encoder(schema, vocabularies, standards))
