"""Specializes the OpenAPI document to a served model: its name, features, limits, tensors and examples.

The application's document (`server/http/openapi.py`) is generic. This module copies it and adds row schemas
with a property per feature, path parameters with the served names and versions, and example requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, Categorical, Dense, Role, Schema
from polyrec.server.app.served_model import ALIAS
from polyrec.server.app.serving import Serving
from polyrec.server.codecs.oip_inputs import TensorSpec
from polyrec.server.http.docs.example_rows import CANDIDATES, ExampleRows, example_rows

MAX_LISTED_VALUES = 50
"""Maximum number of values listed for a feature that rejects unknown values."""

Json = dict[str, Any]


def specialize(document: Json, serving: Serving) -> Json:
    """Returns a copy of the application's document, specialized to the served model."""
    document = deepcopy(document)
    encoder, limits = serving.paths[0].encoder, serving.plan.limits
    model, names = serving.model, ", ".join(f"`{path.name}`" for path in serving.paths)
    document["info"]["description"] += (
        f"\nThis server has the model `{model.name}`, version `{model.version}` (in the inference protocol "
        f"`{model.number}`), and these paths: {names}.\n"
    )
    schemas, inputs = document["components"]["schemas"], serving.oip_codec.inputs
    _specialize_rows(schemas, encoder, limits.max_request_rows)
    tensors = dict.fromkeys((*inputs.plain, *inputs.ranking))
    schemas["InferenceInput"]["anyOf"] = [_tensor(spec, limits.max_request_rows) for spec in tensors]
    examples = example_rows(encoder)
    paths = document["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            _name_model(operation.get("parameters", ()), serving)
            if path.endswith("/infer"):
                _give_examples(operation, {"plain": infer_example(encoder.schema, examples)})
    columns = {"columns": examples.columns}
    _give_examples(
        paths["/v1/predict"]["post"], {"instances": {"instances": examples.rows}, "columns": columns}
    )
    rankings: Json = {"objects": {"context": examples.context, "candidates": _objects(examples)}}
    # without features of the candidate there is no column to tell their number
    if examples.candidates:
        of_columns = {"context": examples.context, "candidates": examples.candidates, "top_k": 2}
        rankings = {"columns": of_columns} | rankings
    _give_examples(paths["/v1/rank"]["post"], rankings)
    return document


def _specialize_rows(schemas: Json, encoder: Encoder, max_rows: int) -> None:
    """Replaces the generic row and column schemas by ones with features. max_rows: per request."""
    schema = encoder.schema
    values = {f.name: _value(f, encoder) for f in _features(schema, ROLES)}
    everything = list(values)
    if schema.request and schema.group is not None and schema.group not in values:
        everything.append(schema.group)
        values[schema.group] = {
            "type": ["string", "integer", "null"],
            "description": "Identifies the request of each row, for several requests in one call. "
            "If omitted, all rows belong to one request.",
        }
    context, candidate = ([f.name for f in _features(schema, (role,))] for role in ROLES)

    def row(name: str, description: str, names: Sequence[str]) -> None:
        schemas[name] = _row(description, names, values, _required(encoder, names))

    def columns(name: str, description: str, names: Sequence[str]) -> None:
        schemas[name] = _columns(description, names, values, _required(encoder, names), max_rows)

    row("ContextRow", "The features of the context.", context)
    row("CandidateRow", "The features of a candidate.", candidate)
    row("FeatureRow", schemas["FeatureRow"]["description"], everything)
    columns("FeatureColumns", schemas["FeatureColumns"]["description"], everything)
    columns("CandidateColumns", "Candidates: a list by feature, all of the same length.", candidate)
    del schemas["FeatureValue"]
    schemas["PredictInstances"]["properties"]["instances"]["maxItems"] = max_rows
    ranking = schemas["RankingRequest"]
    given = ranking["properties"]
    objects = {"type": "array", "minItems": 1, "maxItems": max_rows, "items": _reference("CandidateRow")}
    given["candidates"]["anyOf"] = [_reference("CandidateColumns"), objects]
    given["context"] = {"anyOf": [_reference("ContextRow"), {"type": "null"}]}
    if _required(encoder, context):
        ranking["required"] = ["candidates", "context"]
        given["context"] = _reference("ContextRow")
    given["top_k"]["anyOf"][0]["maximum"] = max_rows


def infer_example(schema: Schema, examples: ExampleRows) -> Json:
    """Returns an inference request with the example rows, in its plain form."""
    columns = examples.columns
    singles = schema.singles
    tensors: list[Json] = []
    if schema.dense:
        dense = [columns[d.name] for d in schema.dense]
        tensors.append(_data("dense", "FP32", _transposed(dense), len(dense)))
    ids = {
        name: [*column, *[column[-1]] * (CANDIDATES - len(column))] for name, column in examples.ids.items()
    }
    if singles:
        tensors.append(_data("sparse", "INT64", _transposed([ids[f.name] for f in singles]), len(singles)))
    for f in schema.categorical:
        if f.multi:
            flat = [i for some in ids[f.name] for i in some]
            lengths = [len(some) for some in ids[f.name]]
            for part, data in (("values", flat), ("lengths", lengths)):
                tensors.append(
                    {"name": f"{f.name}.{part}", "datatype": "INT64", "shape": [len(data)], "data": data}
                )
    return {"inputs": tensors}


def _features(schema: Schema, roles: Iterable[Role]) -> list[Dense | Categorical]:
    every: tuple[Dense | Categorical, ...] = (*schema.dense, *schema.categorical)
    return [f for role in roles for f in every if f.role == role]


def _required(encoder: Encoder, names: Sequence[str]) -> list[str]:
    """Returns the features that a row must have, since their tables have no row for missing values."""
    return [
        f.name
        for f in encoder.schema.categorical
        if f.name in names and not f.multi and not encoder.vocabulary(f).specials
    ]


def _value(feature: Dense | Categorical, encoder: Encoder) -> Json:
    """Returns the schema of one value of a feature."""
    role = "of the context" if feature.role == "context" else "of the candidate"
    if isinstance(feature, Dense):
        steps = f"; transformed by {', '.join(feature.transform)}" if feature.transform else ""
        return {
            "type": ["number", "null"],
            "description": f"A number {role}{steps}. Missing: {feature.missing:g} after that.",
        }
    vocabulary = encoder.vocabulary(feature)
    shared = f" (table `{feature.table_name}`)" if feature.table_name != feature.name else ""
    unknown = (
        "others are served by the out-of-vocabulary row"
        if vocabulary.oov == "row" and vocabulary.specials
        else "others are an error"
    )
    text = f"id {role}{shared}; {vocabulary.size:,} known values, {unknown}."
    one: Json = {"type": feature.type}
    if vocabulary.oov == "refuse" or not vocabulary.specials:
        if vocabulary.values is None:
            one |= {"minimum": 0, "maximum": vocabulary.size - 1}
        elif vocabulary.size <= MAX_LISTED_VALUES:
            one |= {"enum": vocabulary.values.to_pylist()}
    if feature.multi:
        return {
            "type": ["array", "null"],
            "items": one,
            "maxItems": feature.max_length,
            "description": f"A list: {text} Missing: an empty list.",
        }
    if vocabulary.specials:
        one["type"] = [feature.type, "null"]
        if "enum" in one:
            one["enum"].append(None)
    return one | {"description": f"An {text}"}


def _row(description: str, names: Sequence[str], values: Json, required: Sequence[str]) -> Json:
    return {
        "type": "object",
        "description": description,
        "properties": {name: values[name] for name in names},
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
    }


def _columns(
    description: str, names: Sequence[str], values: Json, required: Sequence[str], rows: int
) -> Json:
    return {
        "type": "object",
        "description": description,
        "properties": {
            name: {
                "type": "array" if name in required else ["array", "null"],
                "items": values[name],
                "minItems": 1,
                "maxItems": rows,
            }
            for name in names
        },
        "additionalProperties": False,
        "minProperties": 1,
        **({"required": list(required)} if required else {}),
    }


def _tensor(spec: TensorSpec, max_rows: int) -> Json:
    """Returns the schema of one input. Clients may send a one-dimensional input as [n, 1]."""
    sizes: list[Json] = [
        {"type": "integer", "minimum": 0} if size < 0 else {"const": size} for size in spec.shape
    ]
    shape: Json = {"prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)}
    if len(sizes) == 1:
        shape = {"prefixItems": [*sizes, {"const": 1}], "minItems": 1, "maxItems": 2}
    else:
        sizes[0]["maximum"] = max_rows
    return {
        "title": spec.name,
        "properties": {
            "name": {"const": spec.name},
            "datatype": {"enum": list(spec.accepted)},
            "shape": shape,
        },
    }


def _name_model(parameters: Iterable[Json], serving: Serving) -> None:
    """Sets the allowed names and versions of path parameters."""
    model = serving.model
    served = {
        "model": list(dict.fromkeys((model.name, ALIAS))),
        "version": list(dict.fromkeys((model.number, model.version))),
    }
    for parameter in parameters:
        if parameter.get("in") == "path":
            parameter["schema"] |= {"enum": served[parameter["name"]]}
            parameter["example"] = served[parameter["name"]][0]


def _give_examples(operation: Json, examples: Json) -> None:
    operation["requestBody"]["content"]["application/json"]["examples"] = {
        name: {"value": value} for name, value in examples.items()
    }


def _objects(examples: ExampleRows) -> list[Json]:
    return [{name: column[i] for name, column in examples.candidates.items()} for i in range(CANDIDATES)]


def _transposed(columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(row) for row in zip(*columns, strict=True)]


def _data(name: str, datatype: str, rows: list[list[Any]], width: int) -> Json:
    return {"name": name, "datatype": datatype, "shape": [len(rows), width], "data": rows}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
