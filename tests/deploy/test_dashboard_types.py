"""Checks every value of the dashboards against Grafana's own types, from its foundation SDK.

The SDK's `from_json` does not validate: it takes any value for any field and drops what it does not know. So
the annotations of its classes are walked beside the JSON.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common, dashboard, heatmap, prometheus, stat, table, timeseries

FILES = sorted((Path(__file__).parents[2] / "deploy/grafana/dashboards").glob("*.json"))
OPTIONS = {m.__name__.rpartition(".")[2]: m.Options for m in (heatmap, stat, table, timeseries)}
CUSTOM = {
    "heatmap": heatmap.FieldConfig,
    "stat": dict[str, object],
    "table": common.TableFieldOptions,
    "timeseries": timeseries.FieldConfig,
}
OMITTED = {
    # Grafana writes and reads them itself; its schema lacks them
    "AnnotationQuery.step": str,
    "AnnotationQuery.title_format": str,
    "VariableModel.definition": str,
}


def mistakes(value: Any, hint: Any, where: str, panel: str = "") -> Iterator[str]:
    """Yields what of a JSON value does not fit a type. panel: the kind of the panel that it is in."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return
    if origin in (Union, types.UnionType):
        some = [part for part in parts if value is None or part is not type(None)]
        found = [list(mistakes(value, part, where, panel)) for part in some]
        if all(found):
            # of the alternatives the one that fits best, which tells most
            yield from min(found, key=len)
    elif origin is Literal:
        if value not in parts:
            yield f"{where}: {value!r} is none of {parts}"
    elif origin in (list, dict):
        if not isinstance(value, origin):
            yield f"{where}: {value!r} is no {origin.__name__}"
        elif origin is list:
            for i, item in enumerate(value):
                yield from mistakes(item, parts[0], f"{where}[{i}]", panel)
        else:
            for name, item in value.items():
                yield from mistakes(item, parts[1], f"{where}.{name}", panel)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if value not in [member.value for member in hint]:
            yield f"{where}: {value!r} is none of {[member.value for member in hint]}"
    elif hint in (str, bool, int, float, type(None)):
        accepted = (int, float) if hint is float else hint
        if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
            yield f"{where}: {value!r} is no {hint.__name__}"
    elif hint is Dataquery:
        yield from mistakes(value, prometheus.Dataquery, where, panel)
    elif not isinstance(value, dict):
        yield f"{where}: {value!r} is no {hint.__name__}"
    else:
        yield from object_mistakes(value, hint, where, panel)


def object_mistakes(value: dict[str, Any], hint: type, where: str, panel: str) -> Iterator[str]:
    if hint is dashboard.Panel:
        panel = value["type"]
        if panel not in OPTIONS:
            yield f"{where}: a panel of type {panel!r}"
            return
    fields = get_type_hints(hint)
    for key, item in value.items():
        name = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m[1].lower(), key)
        field = fields.get(name, fields.get(f"{name}_val", OMITTED.get(f"{hint.__name__}.{name}")))
        if hint is dashboard.Panel and name == "options":
            field = OPTIONS[panel]
        elif hint is dashboard.FieldConfig and name == "custom":
            field = CUSTOM[panel]
        elif field is None:
            yield f"{where}: {hint.__name__} has no {key!r}"
            continue
        yield from mistakes(item, field, f"{where}.{key}", panel)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_value_has_the_type_that_grafana_expects(file: Path) -> None:
    assert list(mistakes(json.loads(file.read_text()), dashboard.Dashboard, file.stem)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda panel: panel.update(title=3), "title: 3 is no str"),
        (lambda panel: panel.update(tittle="x"), "Panel has no 'tittle'"),
        (lambda panel: panel["gridPos"].update(w="8"), "gridPos.w: '8' is no int"),
        (lambda panel: panel["options"]["legend"].update(placement="left"), "'left' is none of"),
        (
            lambda panel: panel["fieldConfig"]["defaults"]["custom"].update(drawStyle="lines"),
            "'lines' is none",
        ),
        (lambda panel: panel["targets"][0].update(instant="no"), "instant: 'no' is no bool"),
        (lambda panel: panel["targets"][0].update(expression="up"), "Dataquery has no 'expression'"),
    ],
)
def test_a_mistake_in_a_panel_is_found(change: Any, told: str) -> None:
    board = deepcopy(json.loads(FILES[0].read_text()))
    change(next(panel for panel in board["panels"] if panel["type"] == "timeseries"))
    assert any(told in mistake for mistake in mistakes(board, dashboard.Dashboard, "board"))
