"""Assigns reserved ids to values that are added while serving.

A value that its table does not know gets a reserved id together with its first vector; later requests with
the value use that row. A retraction or its expiry removes it, and its id can be assigned again. Id and vector
are installed in one view (models/tiers/view.py), so a batch sees both or neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from polyrec.models.errors import PolyrecError
from polyrec.models.schema.vocabulary import Value, Vocabulary


class NoReservedRow(PolyrecError):
    """Raised when a table has no reserved row left for a new value."""


NAME_BYTES = 24
"""Approximate bytes of a name in a log, without its text."""


@dataclass(frozen=True, slots=True)
class NamedId:
    """A change of names that assigns the id to the value.

    id: None removes the value. expires: Unix time in seconds at which the value is removed; 0: never.
    """

    value: Value
    id: int | None
    expires: float = 0.0


NameChanges = Mapping[str, Sequence[NamedId]]
"""Changes of names by table, in their order."""


class Names:
    """The values with reserved ids, by table. Not thread-safe.

    added: table -> value -> id. The mappings are replaced and never modified, since encoders hold them.
    """

    def __init__(self) -> None:
        self.added: dict[str, dict[Value, int]] = {}
        self._expires: dict[tuple[str, Value], float] = {}
        self._free: dict[str, dict[int, None]] = {}
        """Freed ids, oldest first; they are assigned again after those that were never assigned."""
        self._given: dict[str, set[int]] = {}
        self.bytes = 0
        """Approximate bytes of all names in a log."""

    def apply(self, changes: NameChanges) -> None:
        """Applies changes."""
        for table, names in changes.items():
            added = dict(self.added.get(table, {}))
            free, given = self._free.setdefault(table, {}), self._given.setdefault(table, set())
            for name in names:
                self._expires.pop((table, name.value), None)
                if (before := added.pop(name.value, None)) is not None:
                    free[before] = None
                    self.bytes -= _bytes(name.value)
                if name.id is not None:
                    added[name.value] = name.id
                    self.bytes += _bytes(name.value)
                    given.add(name.id)
                    free.pop(name.id, None)
                    if name.expires:
                        self._expires[table, name.value] = name.expires
            self.added[table] = added

    def free(self, vocabulary: Vocabulary) -> Iterator[int]:
        """Yields the ids that are free for new values of a table."""
        table = vocabulary.table
        given = self._given.get(table, set())
        reserved = vocabulary.reserved()
        # ids are assigned in ascending order, so the assigned ones are mostly the first
        ascending = chain(range(len(given), reserved.size), range(min(len(given), reserved.size)))
        never = (id for i in ascending if (id := int(reserved[i])) not in given)
        return chain(never, self._free.get(table, {}))

    def assign_ids(self, vocabulary: Vocabulary, values: Iterable[Value], expires: float) -> list[NamedId]:
        """Returns the changes that assign ids to values. values: distinct, without ids.

        Raises NoReservedRow.
        """
        wanted = list(values)
        if not wanted:
            return []
        assigned = [NamedId(v, id, expires) for v, id in zip(wanted, self.free(vocabulary), strict=False)]
        if len(assigned) < len(wanted):
            reserved = vocabulary.reserved().size
            raise NoReservedRow(
                f"update: {len(wanted)} new values of table '{vocabulary.table}', and {len(assigned)} of its "
                f"{reserved} reserved rows are free; `polyrec reserve` makes a bundle with more"
            )
        return assigned

    def expiry_changes(self, table: str, values: Iterable[Value], expires: float) -> list[NamedId]:
        """Returns the changes that set the expiry of those values that have a reserved id."""
        added = self.added.get(table, {})
        return [
            NamedId(v, added[v], expires)
            for v in values
            if v in added and self._expires.get((table, v), 0.0) != expires
        ]

    def expired(self, now: float) -> dict[str, list[Value]]:
        """Returns the expired values by table. now: Unix time."""
        found: dict[str, list[Value]] = {}
        for (table, value), expires in self._expires.items():
            if expires <= now:
                found.setdefault(table, []).append(value)
        return found

    def next_expiry(self) -> float | None:
        """Returns the Unix time of the next expiry; None if no value expires."""
        return min(self._expires.values(), default=None)

    def everything(self) -> dict[str, list[NamedId]]:
        """Returns the changes that recreate all present names."""
        return {
            table: [NamedId(v, id, self._expires.get((table, v), 0.0)) for v, id in added.items()]
            for table, added in self.added.items()
            if added
        }


def _bytes(value: Value) -> int:
    return NAME_BYTES + (len(value.encode()) if isinstance(value, str) else 0)
