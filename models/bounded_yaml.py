"""Parses YAML at a bounded cost: plain data, its size and depth limited with aliases followed.

A few hundred bytes of aliases and merge keys (`<<`) may stand for billions of values ("billion laughs"). So
values are counted while a document is composed, an alias as what it stands for.
"""

from __future__ import annotations

from typing import Any

import yaml

MOST_BYTES = 2**20
MOST_VALUES = 20_000
"""Scalars, lists and mappings, aliases followed: parsing them takes about a second at the most."""
MOST_DEPTH = 32


class UnboundedYaml(yaml.YAMLError):
    """A document that is larger or deeper than a person would write."""


def parse_yaml(text: str) -> Any:
    """The data of a document. Raises yaml.YAMLError, also for one beyond the bounds, and ValueError."""
    if len(text) > MOST_BYTES:
        raise UnboundedYaml(f"it has more than {MOST_BYTES} characters")
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    """Counts what is composed, before anything is constructed of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._depth = 0
        self._values_of: dict[int, int] = {}
        self._complete: set[int] = set()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A node, and with an alias the node that it names; counted either way."""
        before = self._values
        aliased = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise UnboundedYaml(f"it is nested more than {MOST_DEPTH} deep")
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

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MOST_VALUES:
            raise UnboundedYaml(f"it has more than {MOST_VALUES} values, aliases followed")
