"""Plans a training: form of exchange, replicated rows, memories, and type and number of nodes.

For each number of nodes, all forms and some budgets of replicated rows are evaluated, and the fastest is
kept. The proposal is the cheapest node type and number that reach the desired speed. All figures are computed
from the description; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from polyrec.models.amounts import size
from polyrec.planner.training.description import TrainingDescription, TrainingNode, TrainingPlanError
from polyrec.planner.training.exchange import FORMS, REPLICATING, Form, Step, expected_exchange
from polyrec.planner.training.node_placement import NodePlacement, buffer_bytes, place, slow_seconds
from polyrec.planner.training.popularity import Popularity

Limit = Literal["compute", "network", "slow memory", "disk"]
MIN_SHARE = 2**-12
MIN_POPULAR = 0.01
"""Share of popular rows below which fae cannot draw a batch of them and only copies replicas."""
DENSE_COUNTS = 16
GROWTH = 1.1
"""All numbers of nodes up to DENSE_COUNTS are evaluated, then each about GROWTH times the previous one."""


@dataclass(frozen=True, slots=True)
class TrainingOption:
    """One way to train.

    binds: the limit that determines a step's time. rows_per_s: training rows per second of all nodes.
    sent_per_row: bytes that workers send per training row. seconds: seconds per step, by limit; compute and
    network add up, the others overlap with them. popular: see Exchange. tables: by table, rows that are
    `replicated` and rows in `memory`, `slow memory` and `disk`, of all nodes together.
    """

    node: str
    nodes: PositiveInt
    form: Form
    rows_per_s: float
    binds: Limit
    sent_per_row: float
    popular: float
    replicated_bytes: int
    seconds: dict[str, float]
    tables: dict[str, dict[str, NonNegativeInt]]
    price_per_hour: float

    @property
    def price_per_billion_rows(self) -> float:
        """Dollars for 1e9 training rows."""
        return self.price_per_hour / 3600 * 1e9 / self.rows_per_s


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training plan.

    chosen: the proposal. baseline: the option that exchanges every lookup; None if it does not fit. fastest:
    by node type, the fastest options for numbers of nodes. min_nodes: by node type, the minimum number of
    nodes for the wanted speed.
    """

    chosen: TrainingOption
    baseline: TrainingOption | None
    wanted_rows_per_s: float | None
    fastest: dict[str, list[TrainingOption]]
    min_nodes: dict[str, int | None]

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as plain data."""
        return {"computed": "from a description; nothing was measured"} | asdict(self)


def plan_training(description: TrainingDescription, popularity: Popularity) -> TrainingPlan:
    """Plans a training. Raises TrainingPlanError if no described node can hold it."""
    fastest: dict[str, list[TrainingOption]] = {}
    for node in description.nodes:
        found = [_fastest(description, popularity, node, n) for n in node_counts(node.most)]
        fastest[node.name] = [option for option in found if option is not None]
    options = [option for by_count in fastest.values() for option in by_count]
    if not options:
        raise TrainingPlanError(_too_small(description, popularity))
    wanted = description.rows_per_s
    enough = [option for option in options if wanted is None or option.rows_per_s >= wanted]
    if wanted is None:
        # without a wanted speed, the fewest nodes that hold the rows
        chosen = min(enough, key=lambda o: (o.nodes, o.price_per_hour, -o.rows_per_s))
    elif enough:
        chosen = min(enough, key=lambda o: (o.price_per_hour, o.nodes, -o.rows_per_s))
    else:
        chosen = max(options, key=lambda o: o.rows_per_s)
    node = next(n for n in description.nodes if n.name == chosen.node)
    baseline = option_of(description, popularity, node, chosen.nodes, "every lookup", 0)
    least = {
        name: next((o.nodes for o in by_count if wanted is None or o.rows_per_s >= wanted), None)
        for name, by_count in fastest.items()
    }
    return TrainingPlan(chosen, baseline, wanted, fastest, least)


def _too_small(description: TrainingDescription, popularity: Popularity) -> str:
    """Returns why no described node can hold a training."""
    need = popularity.total_rows * description.record_bytes
    for node in description.nodes:
        below = sum(part.bytes for part in (node.slow_memory, node.disk) if part is not None)
        beside = description.fixed_bytes + buffer_bytes(description, node.most, popularity)
        if node.memory < beside and node.most * below >= need:
            return (
                f"node '{node.name}' has {size(node.memory)} of memory; fixed_bytes and the rows of two "
                f"batches take {size(beside)}"
            )
    need += description.fixed_bytes
    return f"no described node can hold {need:,} bytes, not even as many as allowed"


def node_counts(max_nodes: int) -> list[int]:
    """Returns the numbers of nodes to evaluate, up to `max_nodes`."""
    counts = list(range(1, min(max_nodes, DENSE_COUNTS) + 1))
    while counts[-1] < max_nodes:
        counts.append(min(max_nodes, int(counts[-1] * GROWTH) + 1))
    return counts


def option_of(
    description: TrainingDescription,
    popularity: Popularity,
    node: TrainingNode,
    nodes: int,
    form: Form,
    hot: int,
) -> TrainingOption | None:
    """Evaluates one option; returns None if it does not fit. hot: number of replicated rows."""
    placed = place(description, node, nodes, popularity, hot)
    if placed is None:
        return None
    whole = description.rows_per_request if description.whole_requests else 1.0
    step = Step(nodes, description.batch_rows, description.width, description.net_bytes, whole)
    exchange = expected_exchange(form, popularity, step, hot)
    compute_s = description.batch_rows / nodes / node.rows_per_s
    fetch_s = exchange.fetched / node.bytes_per_s
    network_s = exchange.sent / node.bytes_per_s + exchange.messages * node.latency_us * 1e-6
    if form == "hotline":
        network_s -= min(fetch_s, exchange.popular * compute_s)
    # in fae the owners' rows are read in cold batches, which hold replicated rows too
    skipped = hot if form == "hotline" else 0
    slow_s, disk_s = slow_seconds(description, node, nodes, popularity, placed, skipped)
    seconds = {"compute": compute_s, "network": network_s, "slow memory": slow_s, "disk": disk_s}
    step_s = max(compute_s + network_s, slow_s, disk_s)
    binds: Limit = "disk" if step_s == disk_s else "slow memory"
    if step_s == compute_s + network_s:
        binds = "compute" if compute_s >= network_s else "network"
    return TrainingOption(
        node=node.name,
        nodes=nodes,
        form=form,
        rows_per_s=description.batch_rows / step_s,
        binds=binds,
        sent_per_row=exchange.sent * nodes / description.batch_rows,
        popular=exchange.popular,
        replicated_bytes=hot * description.record_bytes,
        seconds=seconds,
        tables=_tables(popularity, placed),
        price_per_hour=nodes * node.price_per_hour,
    )


def _fastest(
    description: TrainingDescription, popularity: Popularity, node: TrainingNode, nodes: int
) -> TrainingOption | None:
    """Returns the fastest option with this number of nodes; among equals, the one that sends least."""
    options = [
        option
        for form in (FORMS if nodes > 1 else FORMS[1:2])
        for hot in _budgets(description, node, popularity, form)
        if (option := option_of(description, popularity, node, nodes, form, hot)) is not None
        and not (form == "fae" and option.popular < MIN_POPULAR)
    ]
    return max(options, key=lambda o: (o.rows_per_s, -o.sent_per_row), default=None)


def _budgets(
    description: TrainingDescription, node: TrainingNode, popularity: Popularity, form: Form
) -> Iterator[int]:
    """Yields the numbers of replicated rows to try: the memory, halved repeatedly, and all rows."""
    if form not in REPLICATING:
        yield 0
        return
    memory_rows = max(node.memory - description.fixed_bytes, 0) // description.record_bytes
    share = 1.0
    while share >= MIN_SHARE:
        rows = int(memory_rows * share)
        if 0 < rows <= popularity.total_rows:
            yield rows
        share /= 2
    if popularity.total_rows < memory_rows:
        yield popularity.total_rows


def _tables(popularity: Popularity, placed: NodePlacement) -> dict[str, dict[str, int]]:
    """Returns rows by table and place, without empty places."""
    places = {
        "replicated": (0, placed.replicated),
        "memory": (0, placed.memory),
        "slow memory": (placed.memory, placed.slow),
        "disk": (placed.slow, placed.disk),
    }
    found: dict[str, dict[str, int]] = {name: {} for name in popularity.names}
    for where, (first, last) in places.items():
        for name, rows in popularity.by_table(popularity.between(first, last)).items():
            found[name][where] = rows
    return found
