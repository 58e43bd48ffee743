"""Parses YAML of plain data at a bounded cost, by limiting its size, depth and number of values.

A few hundred bytes of aliases and merge keys (`<<`) may expand to billions of values ("billion laughs"). So
values are counted while a document is composed, and an alias counts as the values that it expands to. A key
that is written twice in one mapping is refused: of the two, YAML would silently use the last.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_BYTES = 2**20
MAX_VALUES = 20_000
"""Maximum scalars, lists and mappings, aliases expanded; parsing them takes at most about a second."""
MAX_DEPTH = 32
MERGE = "tag:yaml.org,2002:merge"


class UnboundedYaml(yaml.YAMLError):
    """Raised for a document that is larger or deeper than a person would write."""


def parse_yaml(text: str) -> Any:
    """Returns the data of a document. Raises ValueError or yaml.YAMLError (UnboundedYaml beyond a limit)."""
    if len(text) > MAX_BYTES:
        raise UnboundedYaml(f"it has more than {MAX_BYTES} characters")
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    """Counts the values of a document while it is composed, before any of them is constructed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._depth = 0
        self._values_of: dict[int, int] = {}
        self._complete: set[int] = set()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes a node, or resolves an alias to its node, and counts the values of either."""
        before = self._values
        aliased = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnboundedYaml(f"it is nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if aliased:
            if id(node) not in self._complete:
                raise UnboundedYaml("an alias stands inside what it names")
            self._count(self._values_of[id(node)])
        else:
            self._count(1)
            self._complete.add(id(node))
            self._values_of[id(node)] = self._values - before
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Composes a mapping. Raises a YAMLError if a key is written twice."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if (key.tag, key.value) in seen:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"line {line}: the key {key.value!r} is written twice")
                seen.add((key.tag, key.value))
        return node

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise UnboundedYaml(f"it has more than {MAX_VALUES} values, aliases followed")
