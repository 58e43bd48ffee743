"""Counters, gauges and histograms of one server, and their Prometheus text.

Counting and scraping both happen on the event loop and delay requests. prometheus_client's `observe` takes a
lock and several microseconds, and rendering 2,000 lines blocks the loop for tens of milliseconds
(benchmarks/http/observation_overhead.py). Here a child is a few plain numbers, and the text of a line up to
its value is created once, with the child.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram", "info"]
NO_LABELS: Mapping[str, str] = {}


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
    """Counts of values by bucket. counts: one per edge (inclusive), and one for values beyond all edges."""

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
    """One metric, with a child for every combination of label values in use.

    constant: labels of all children, which are not in `label_names`.
    """

    def __init__(
        self,
        make: Callable[[str, tuple[str, ...], Sequence[float]], C],
        kind: Kind,
        name: str,
        what: str,
        labels: tuple[str, ...] = (),
        edges: Sequence[float] = (),
        constant: Mapping[str, str] = NO_LABELS,
    ) -> None:
        if list(edges) != sorted(set(edges)):
            raise ValueError(f"metric {name}: its edges are not ascending")
        if "\\" in what or "\n" in what:
            raise ValueError(f"metric {name}: its help must be one line without backslashes")
        self.kind, self.name, self.what, self.label_names, self.edges = kind, name, what, labels, tuple(edges)
        self._make: Callable[[str, tuple[str, ...], Sequence[float]], C] = make
        self._constant = tuple(constant.items())
        self.children: dict[tuple[str, ...], C] = {}
        if not labels:
            self.labels()

    @property
    def exposed(self) -> str:
        """Name in the text; counters have the suffix `_total`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def labels(self, *values: str) -> C:
        """Returns the child for these label values, in the order of `label_names`; creates it if needed."""
        child = self.children.get(values)
        if child is None:
            pairs = (*self._constant, *zip(self.label_names, values, strict=True))
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
        """Yields the metric's text; nothing if it has no children."""
        series = list(self.series())
        if series:
            yield from self.header()
            yield from series

    def header(self) -> Iterator[str]:
        """Yields the HELP and TYPE lines."""
        kind = "gauge" if self.kind == "info" else self.kind
        yield f"# HELP {self.exposed} {self.what}"
        yield f"# TYPE {self.exposed} {kind}"

    def series(self) -> Iterator[str]:
        """Yields the lines of the children."""
        # a copy, since loading another plan in a thread may add children
        for child in list(self.children.values()):
            yield from child.lines()


AnyFamily = Family[Counter] | Family[Gauge] | Family[Histogram]


class Registry:
    """The metrics of one server or model, in the order in which they are rendered.

    constant: labels of all metrics except those named in `bare`.
    """

    def __init__(self, constant: Mapping[str, str] = NO_LABELS, bare: Container[str] = ()) -> None:
        self.families: list[AnyFamily] = []
        self._constant = constant
        self._bare = bare

    def counter(self, name: str, what: str, *labels: str) -> Family[Counter]:
        return self._add(Family(Counter, "counter", name, what, labels, (), self._labels(name)))

    def gauge(self, name: str, what: str, *labels: str) -> Family[Gauge]:
        return self._add(Family(Gauge, "gauge", name, what, labels, (), self._labels(name)))

    def info(self, name: str, what: str, *labels: str) -> Family[Gauge]:
        """Adds a gauge that is always 1, whose labels carry the information."""
        return self._add(Family(Gauge, "info", name, what, labels, (), self._labels(name)))

    def histogram(self, name: str, what: str, edges: Sequence[float], *labels: str) -> Family[Histogram]:
        return self._add(Family(Histogram, "histogram", name, what, labels, edges, self._labels(name)))

    def text(self) -> str:
        """Returns the metrics in Prometheus's text format, version 0.0.4."""
        return "\n".join([line for family in self.families for line in family.lines()]) + "\n"

    def _labels(self, name: str) -> Mapping[str, str]:
        return NO_LABELS if name in self._bare else self._constant

    def _add(self, family: Family[C]) -> Family[C]:
        self.families.append(family)
        return family


def line(name: str, labels: tuple[str, ...]) -> str:
    """Returns the text of a sample up to its value."""
    return f"{name}{{{','.join(labels)}}} " if labels else f"{name} "


def escaped(value: str) -> str:
    """Escapes a label's value for the text format."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
