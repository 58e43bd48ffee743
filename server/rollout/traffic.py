"""The traffic of a rollout: which arm answers a request, and what the arms did.

A request is eligible if either version could answer it; only eligible ones are split and counted, so that
both arms have requests of the same kind. Not eligible, so answered by the stable version: a request that
names a version, tensors of ids if the versions' ids differ, and one without the field of the split or with
several values of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polyrec.models.schema.schema import Schema
from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.split import Split
from polyrec.server.app.serving import Serving
from polyrec.server.codecs.rows import Columns, RankedTensors, Rows, Tensors
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import Invalid
from polyrec.server.rollout.shadow import Shadow

MAX_SCORED = 2000
"""Requests between two looks whose scores are kept; the others are counted only."""
HEADER = "header:"
Headers = Iterable[tuple[bytes, bytes]]
ValueOf = Callable[[Rows, Headers], bytes | None]
"""Reads the field of a request; None: absent, or several values."""


class Arm:
    """One version in a rollout. header: names it in its answers. shadow: gets what it answered, too."""

    __slots__ = ("_records", "header", "is_canary", "serving", "shadow")

    def __init__(self, serving: Serving, is_canary: bool, shadow: Shadow | None = None) -> None:
        self.serving = serving
        self.is_canary = is_canary
        self.shadow = shadow
        self.header = (b"x-polyrec-arm", b"canary" if is_canary else b"stable")
        self._records = ArmRecords()

    def answered(self, took_s: float, in_time: bool, answer: Answer, rows: Rows) -> None:
        """Records an answer that is written. took_s: of the request, seconds."""
        records = self._records
        records.took_s.append(took_s)
        records.late += not in_time
        scores = answer.probabilities.copy()  # a lane may write its next answers into the same memory
        if len(records.scores) < MAX_SCORED:
            records.scores.append(scores)
        if self.shadow is not None and answer.reason is None:
            self.shadow.offer(rows, scores)

    def failed(self) -> None:
        """Records a request that this version did not answer."""
        self._records.failed += 1

    def take(self) -> ArmRecords:
        """Returns what was recorded since the last call."""
        taken, self._records = self._records, ArmRecords()
        return taken


@dataclass(slots=True)
class RolloutTraffic:
    """Both arms and the split between them.

    value_of: reads the field of the split; None: a share of all requests. same_ids: whether tensors of ids
    mean the same to both.
    """

    stable: Arm
    canary: Arm
    split: Split
    value_of: ValueOf | None
    same_ids: bool

    def choose(self, rows: Rows, headers: Headers, pinned: bool) -> Arm | None:
        """Returns the arm that answers a request; None: the stable version, and the request is not counted.

        pinned: whether the request names a version.
        """
        if pinned or not (self.same_ids or isinstance(rows, Columns)):
            return None
        if self.value_of is None:
            return self.canary if self.split.takes_next() else self.stable
        value = self.value_of(rows, headers)
        if value is None:
            return None
        return self.canary if self.split.takes(value) else self.stable


def value_reader(by: str, schema: Schema) -> ValueOf:
    """Returns the reader of `header:NAME` or of a context feature. Raises Invalid for what is neither."""
    if by.startswith(HEADER):
        name = by.removeprefix(HEADER).strip().lower().encode()
        if not name:
            raise Invalid("by: the header has no name; example: header:x-user-id")
        return lambda rows, headers: next((value for n, value in headers if n == name), None)
    singles = [f for f in schema.categorical if not f.multi]
    of_context = [f.name for f in singles if f.role == "context"]
    if by not in of_context:
        known = ", ".join(f"'{name}'" for name in of_context) or "none"
        raise Invalid(
            f"by: '{by}' is no single-valued context feature (there is {known}) and no header, like "
            "header:x-user-id"
        )
    of_ranked, of_plain = of_context.index(by), [f.name for f in singles].index(by)

    def value(rows: Rows, headers: Headers) -> bytes | None:
        if isinstance(rows, Columns):
            column = rows.context[rows.names[0].index(by)]
            if not column or column[0] is None or any(other != column[0] for other in column):
                return None
            return str(column[0]).encode("utf-8", "replace")
        if isinstance(rows, RankedTensors):
            ids = rows.context.sparse[:, of_ranked]
        else:
            assert isinstance(rows, Tensors)
            ids = rows.sparse[:, of_plain]
        return b"%d" % ids[0] if ids.size and (ids == ids[0]).all() else None

    return value
