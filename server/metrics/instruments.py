"""Counters, gauges and histograms of one server, and their Prometheus text.

Both counting and scraping happen on the event loop and delay requests. prometheus_client's `observe` takes a
lock and several microseconds, and its text of 2,000 lines blocks the loop for tens of milliseconds
(benchmarks/http/metrics_overhead.py). Here a child is a few plain numbers, and the text of a line up to its
value is made once, with the child.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram", "info"]


class Counter:
    """A value that only increases."""

    __slots__ = ("_line", "value")

    def __init__(self, name: str, labels: tuple[str, ...], edges: Sequence[float]) -> None:
        self._line = line(f"{name}_total", labels)
        self.value: float = 0

    def inc(self, by: float = 1) -> None:
        self.value += by

    def lines(self) -> Iterator[str]:
        yield self._line + repr(self.value)


class Gauge:
    """A current value. An info metric is a gauge that is 1."""

    __slots__ = ("_line", "value")

    def __init__(self, name: str, labels: tuple[str, ...], edges: Sequence[float]) -> None:
        self._line = line(name, labels)
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = float(value)

    def lines(self) -> Iterator[str]:
        yield self._line + repr(self.value)


class Histogram:
    """Counts of values by bucket. counts: one for each edge (inclusive), and one beyond all edges."""

    __slots__ = ("_lines", "counts", "edges", "sum")

    def __init__(self, name: str, labels: tuple[str, ...], edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum: float = 0
        les = (*(f"{edge:.10g}" for edge in self.edges), "+Inf")
        self._lines = [line(f"{name}_bucket", (*labels, f'le="{le}"')) for le in les]
        self._lines += [line(f"{name}_count", labels), line(f"{name}_sum", labels)]

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Observes each value."""
        counts, edges, total = self.counts, self.edges, self.sum
        for value in values:
            counts[bisect_left(edges, value)] += 1
            total += value
        self.sum = total

    def lines(self) -> Iterator[str]:
        *buckets, count, total = self._lines
        cumulative = 0
        for start, in_bucket in zip(buckets, self.counts, strict=True):
            cumulative += in_bucket
            yield start + repr(cumulative)
        yield count + repr(cumulative)
        yield total + repr(self.sum)


C = TypeVar("C", Counter, Gauge, Histogram)


class Family(Generic[C]):
    """One metric, with a child for every combination of label values in use."""

    def __init__(
        self,
        make: Callable[[str, tuple[str, ...], Sequence[float]], C],
        kind: Kind,
        name: str,
        what: str,
        labels: tuple[str, ...] = (),
        edges: Sequence[float] = (),
    ) -> None:
        if list(edges) != sorted(set(edges)):
            raise ValueError(f"metric {name}: its edges are not ascending")
        if "\\" in what or "\n" in what:
            raise ValueError(f"metric {name}: its help must be one line without backslashes")
        self.kind, self.name, self.what, self.label_names, self.edges = kind, name, what, labels, tuple(edges)
        self._make: Callable[[str, tuple[str, ...], Sequence[float]], C] = make
        self.children: dict[tuple[str, ...], C] = {}
        if not labels:
            self.labels()

    @property
    def exposed(self) -> str:
        """The name in the text: counters have the suffix `_total`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def labels(self, *values: str) -> C:
        """Returns the child of these label values, in the order of `label_names`; makes it if needed."""
        child = self.children.get(values)
        if child is None:
            pairs = zip(self.label_names, values, strict=True)
            pairs_text = tuple(sorted(f'{name}="{escaped(value)}"' for name, value in pairs))
            child = self.children[values] = self._make(self.name, pairs_text, self.edges)
        return child

    @property
    def only(self) -> C:
        """The child of a metric without labels."""
        return self.labels()

    def clear(self) -> None:
        """Removes every child."""
        self.children.clear()

    def lines(self) -> Iterator[str]:
        """Yields its text; nothing if it has no children."""
        # a copy, since loading another plan in a thread may add children
        children = list(self.children.values())
        if not children:
            return
        kind = "gauge" if self.kind == "info" else self.kind
        yield f"# HELP {self.exposed} {self.what}"
        yield f"# TYPE {self.exposed} {kind}"
        for child in children:
            yield from child.lines()


AnyFamily = Family[Counter] | Family[Gauge] | Family[Histogram]


class Registry:
    """The metrics of one server, in the order of its text."""

    def __init__(self) -> None:
        self.families: list[AnyFamily] = []

    def counter(self, name: str, what: str, *labels: str) -> Family[Counter]:
        return self._add(Family(Counter, "counter", name, what, labels))

    def gauge(self, name: str, what: str, *labels: str) -> Family[Gauge]:
        return self._add(Family(Gauge, "gauge", name, what, labels))

    def info(self, name: str, what: str, *labels: str) -> Family[Gauge]:
        """A gauge that is always 1; the information is in its labels."""
        return self._add(Family(Gauge, "info", name, what, labels))

    def histogram(self, name: str, what: str, edges: Sequence[float], *labels: str) -> Family[Histogram]:
        return self._add(Family(Histogram, "histogram", name, what, labels, edges))

    def text(self) -> str:
        """Prometheus's text format, version 0.0.4."""
        return "\n".join([line for family in self.families for line in family.lines()]) + "\n"

    def _add(self, family: Family[C]) -> Family[C]:
        self.families.append(family)
        return family


def line(name: str, labels: tuple[str, ...]) -> str:
    """The text of a sample up to its value."""
    return f"{name}{{{','.join(labels)}}} " if labels else f"{name} "


def escaped(value: str) -> str:
    """Escapes a label's value for the text format."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
