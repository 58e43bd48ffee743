"""Splits the requests of a rollout between its arms, and records the outcomes of each arm.

server/http/call.py asks `RolloutTraffic.choose` for each request and reports the outcome to the chosen arm.

Only requests that both versions could answer are split and counted, so that both arms get the same kind of
requests. The stable version answers all others: requests that name a version, tensors of ids if the versions'
ids differ, and requests without the header, or exactly one value of the feature, by which traffic is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from zlib import crc32

from polyrec.models.bundle.manifest import VOCABULARY
from polyrec.models.schema.encoder import Encoder
from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.comparison import GROUPS
from polyrec.planner.rollout.decision import RolloutDecision
from polyrec.planner.rollout.split import Split
from polyrec.planner.routing.lanes.breaker import OVERDUE_EXTRA_S
from polyrec.server.app.serving import Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import Columns, RankedTensors, Rows, Tensors
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import Invalid
from polyrec.server.rollout.lane_waits import Waits, WaitSample
from polyrec.server.rollout.shadow import Shadow

MAX_SCORED = 2000
"""Maximum requests per arm and comparison whose scores are kept; others are only counted."""
RECENT_S = 0.2
"""Time before a rejection (up to twice as long) in which waits of lanes for a CPU may explain it."""
HEADER = "header:"
Headers = Iterable[tuple[bytes, bytes]]
ValueOf = Callable[[Rows, Headers], bytes | None]
"""Reads the value that traffic is split by from a request: the first one of a header, the one of a feature.

None if it is absent, or if rows differ in the feature.
"""


class Arm:
    """One version in a rollout.

    header: response header that identifies the arm.
    shadow: repeats answered requests on the canary.
    groups: the arm's requests by group of values or clients.
    min_budget_s: requests with a smaller budget are answered but failing them does not count against the
        version; the server's default budget until the first comparison.
    sample: reads how long the canary's lanes have waited for a CPU.
    scored: number of requests whose scores were kept since the last comparison.
    """

    __slots__ = (
        "_before",
        "_last",
        "_sample",
        "groups",
        "header",
        "is_canary",
        "min_budget_s",
        "scored",
        "serving",
        "shadow",
    )

    def __init__(
        self,
        serving: Serving,
        is_canary: bool,
        min_budget_s: float,
        shadow: Shadow | None = None,
        sample: Callable[[], WaitSample] = WaitSample,
    ) -> None:
        self.serving = serving
        self.is_canary = is_canary
        self.min_budget_s = min_budget_s
        self.shadow = shadow
        self.scored = 0
        self.header = (b"x-polyrec-arm", b"canary" if is_canary else b"stable")
        self.groups = tuple(ArmGroup(self, number) for number in range(GROUPS))
        self._sample = sample
        self._before = self._last = sample()

    def group(self, value: bytes) -> ArmGroup:
        """Returns the group of a value that traffic is split by, or of a client."""
        return self.groups[crc32(value) % GROUPS]

    def take(self) -> list[ArmRecords]:
        """Returns the records since the last call, by group."""
        self.scored = 0
        return [group.take() for group in self.groups]

    def waited(self) -> Waits:
        """Returns the seconds that each of the canary's lanes has waited for a CPU so far."""
        sampled = self._sample()
        if sampled.at_s >= self._last.at_s + RECENT_S:
            self._before, self._last = self._last, sampled
        return sampled.waits

    def watch(self, now_s: float) -> None:
        """Reads the lanes' waits every RECENT_S, even if the canary gets few requests."""
        if now_s >= self._last.at_s + RECENT_S:
            self.waited()

    def recent_wait_s(self) -> float:
        """Returns the recent wait of the lane that waited most, in seconds.

        "Recent" is the last RECENT_S to 2 * RECENT_S, or longer if both versions together get fewer requests.
        """
        now = self.waited()
        return max(_waited_since(self._before.waits, now), default=0.0)

    def budget_s(self, budget_s: float) -> float:
        """Returns a request's budget at this arm. A canary's leaves the stable version time for a retry."""
        half_s = budget_s / 2
        return half_s if self.is_canary and half_s >= self.min_budget_s else budget_s


class ArmGroup:
    """The requests of one arm from one group of values or clients, which the comparison treats as a unit."""

    __slots__ = ("_number", "_records", "arm")

    def __init__(self, arm: Arm, number: int = 0) -> None:
        self.arm = arm
        self._number = number
        self._records = ArmRecords()

    def answered(self, took_s: float, budget_s: float, answer: Answer, rows: Rows, since: Waits = ()) -> None:
        """Records an answer that was written.

        took_s: duration of the request.
        since: `Arm.waited` when the request was queued.
        """
        records = self._records
        waits = _waited_since(since, self.arm.waited())
        waited_s = min(took_s, waits[answer.lane]) if waits else 0.0
        records.took_s.append(took_s)
        records.waited_s.append(waited_s)
        records.late += took_s - waited_s > budget_s >= self.arm.min_budget_s
        scores = answer.probabilities.copy()  # a lane may reuse the memory for its next answer
        arm = self.arm
        if arm.scored < MAX_SCORED:
            arm.scored += 1
            records.scores.append(scores)
        if arm.shadow is not None:
            arm.shadow.repeat(rows, answer, scores, self._number)

    def failed(self, budget_s: float = math.inf, since: Waits = ()) -> None:
        """Records a request that this version did not answer.

        budget_s: the request's budget if it was too small, otherwise infinite.
        since: `Arm.waited` when the request was queued. The longest wait of a lane since then is deducted
            from the budget.
        """
        waited_s = max(_waited_since(since, self.arm.waited()), default=0.0)
        self._unanswered(budget_s, is_excused=budget_s - waited_s < self.arm.min_budget_s)

    def rejected(self, budget_s: float) -> None:
        """Records a request that the canary rejected and the stable version answered.

        A lane that waits for a CPU is overdue and its queue grows. So the rejection does not count if a lane
        has recently waited long enough to explain it; the canary's answers show whether it is too slow.
        """
        self._unanswered(budget_s, is_excused=self.arm.recent_wait_s() >= OVERDUE_EXTRA_S)

    def _unanswered(self, budget_s: float, is_excused: bool) -> None:
        if budget_s >= self.arm.min_budget_s:
            self._records.excused += is_excused
            self._records.failed += not is_excused

    def take(self) -> ArmRecords:
        """Returns the records since the last call."""
        taken, self._records = self._records, ArmRecords()
        return taken


def _waited_since(since: Waits, now: Waits) -> Waits:
    return tuple(max(0.0, end_s - begin_s) for begin_s, end_s in zip(since, now, strict=False))


@dataclass(slots=True)
class RolloutTraffic:
    """Both arms and the split between them.

    value_of: reads the value that traffic is split by; None splits requests individually.
    same_ids: whether both versions have the same ids, so that either can answer tensors of ids.
    decision: the last decision about the rollout.
    """

    stable: Arm
    canary: Arm
    split: Split
    value_of: ValueOf | None
    same_ids: bool
    decision: RolloutDecision | None = None

    def choose(self, rows: Rows, headers: Headers, pinned: bool, sender: bytes) -> ArmGroup | None:
        """Returns the arm's group that answers a request; None for the stable version without counting it.

        pinned: whether the request names a version.
        sender: identifies the client.
        """
        self.canary.watch(clock())
        if pinned or not (self.same_ids or isinstance(rows, Columns)):
            return None
        if self.value_of is None:
            return (self.canary if self.split.takes_next() else self.stable).group(sender)
        value = self.value_of(rows, headers)
        if value is None:
            return None
        return (self.canary if self.split.takes(value) else self.stable).group(value)


def fits(rows: Rows, serving: Serving, known: Iterable[Serving]) -> bool:
    """Whether rows have the same meaning to `serving` as to one of `known`, which they fit.

    Raw values require the same schema, ids also the same vocabularies. Vocabularies are compared by checksum,
    since comparing millions of values would delay all requests; so ids in another popularity order do not
    fit.
    """
    return any(
        serving is other
        or (
            serving.bundle.manifest.schema_ == other.bundle.manifest.schema_
            and (isinstance(rows, Columns) or _vocabularies(serving) == _vocabularies(other))
        )
        for other in known
    )


def _vocabularies(serving: Serving) -> str:
    return serving.bundle.manifest.files[VOCABULARY].sha256


def value_reader(by: str, encoder: Encoder) -> ValueOf:
    """Returns a reader of `header:NAME` or of a context feature. Raises Invalid if `by` is neither.

    encoder: gives ids the values that JSON requests have. An id without a value, such as that of all unknown
    values, has none.
    """
    if by.startswith(HEADER):
        name = by.removeprefix(HEADER).strip().lower().encode()
        if not name:
            raise Invalid("by: the header has no name; example: header:x-user-id")
        return lambda rows, headers: next((value for n, value in headers if n == name), None)
    schema = encoder.schema
    context, both = (schema.tensor_columns(role)[1] for role in ("context", None))
    if by not in context:
        known = ", ".join(f"'{name}'" for name in context) or "none"
        raise Invalid(
            f"by: '{by}' is no single-valued context feature (there is {known}) and no header, like "
            "header:x-user-id"
        )
    ranked_column, plain_column = context.index(by), both.index(by)
    vocabulary = encoder.vocabulary(next(f for f in schema.categorical if f.name == by))

    def value(rows: Rows, headers: Headers) -> bytes | None:
        if isinstance(rows, Columns):
            column = rows.context[rows.names[0].index(by)]
            if not column or any(other != column[0] for other in column):
                return None
            found = column[0]
        else:
            if isinstance(rows, RankedTensors):
                ids = rows.context.sparse[:, ranked_column]
            else:
                assert isinstance(rows, Tensors)
                ids = rows.sparse[:, plain_column]
            if not ids.size or (ids != ids[0]).any():
                return None
            found = vocabulary.value_of_id(int(ids[0]))
        return None if found is None else str(found).encode("utf-8", "replace")

    return value
