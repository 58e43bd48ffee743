"""Values that came while serving, and the reserved ids that they have.

A value that no table knows gets a reserved id with its first vector; from then on requests with the value get
that row. It leaves by a retraction or when its time is over, and its id can be given again. An id changes
hands together with its vector, in one view (polyrec.models.tiers.view): a batch sees both or neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from polyrec.models.errors import PolyrecError
from polyrec.models.schema.vocabulary import Value, Vocabulary


class NoReservedRow(PolyrecError):
    """New values for a table that has no reserved row left."""


NAME_BYTES = 24
"""Bytes of a name in a log, without its text."""


@dataclass(frozen=True, slots=True)
class NamedId:
    """A change of names: the value has the id from now on.

    id: None: it has none any more. expires: Unix time at which the value leaves, in seconds; 0: it stays.
    """

    value: Value
    id: int | None
    expires: float = 0.0


NameChanges = Mapping[str, Sequence[NamedId]]
"""Changes of names by table, in their order."""


class Names:
    """The values with reserved ids, by table. Not thread-safe.

    added: table -> value -> id. The mappings are replaced, never changed, since encoders have them.
    """

    def __init__(self) -> None:
        self.added: dict[str, dict[Value, int]] = {}
        self._expires: dict[tuple[str, Value], float] = {}
        self._free: dict[str, dict[int, None]] = {}
        """Ids that were freed, in that order; they are given again after those that were never given."""
        self._given: dict[str, set[int]] = {}
        self.bytes = 0
        """About what all names take in a log."""

    def apply(self, changes: NameChanges) -> None:
        """Makes the changes."""
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
        """Yields the ids that new values of a table can have."""
        table = vocabulary.table
        given = self._given.get(table, set())
        return chain(
            (id for id in vocabulary.reserved().tolist() if id not in given), self._free.get(table, {})
        )

    def named(self, vocabulary: Vocabulary, values: Iterable[Value], expires: float) -> list[NamedId]:
        """Returns the change that gives ids to values which have none. values: distinct.

        Raises NoReservedRow.
        """
        wanted = list(values)
        if not wanted:
            return []
        found = [NamedId(v, id, expires) for v, id in zip(wanted, self.free(vocabulary), strict=False)]
        if len(found) < len(wanted):
            reserved = vocabulary.reserved().size
            raise NoReservedRow(
                f"update: {len(wanted)} new values of table '{vocabulary.table}', and {len(found)} of its "
                f"{reserved} reserved rows are free; `polyrec reserve` makes a bundle with more"
            )
        return found

    def expiring(self, table: str, values: Iterable[Value], expires: float) -> list[NamedId]:
        """Returns the change that sets when values leave that have a reserved id."""
        added = self.added.get(table, {})
        return [
            NamedId(v, added[v], expires)
            for v in values
            if v in added and self._expires.get((table, v), 0.0) != expires
        ]

    def expired(self, now: float) -> dict[str, list[Value]]:
        """Returns the values whose time is over, by table. now: Unix time."""
        found: dict[str, list[Value]] = {}
        for (table, value), expires in self._expires.items():
            if expires <= now:
                found.setdefault(table, []).append(value)
        return found

    def next_expiry(self) -> float | None:
        """Returns the Unix time at which the next value leaves; None if all stay."""
        return min(self._expires.values(), default=None)

    def everything(self) -> dict[str, list[NamedId]]:
        """Returns the changes that make these names out of none."""
        return {
            table: [NamedId(v, id, self._expires.get((table, v), 0.0)) for v, id in added.items()]
            for table, added in self.added.items()
            if added
        }


def _bytes(value: Value) -> int:
    return NAME_BYTES + (len(value.encode()) if isinstance(value, str) else 0)
