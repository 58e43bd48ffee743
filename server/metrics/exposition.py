"""Renders /metrics of a server with several models: each metric once, with the series of every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyrec.server.metrics.metrics import SERVER_WIDE, Metrics


def render_all(models: Sequence[Metrics]) -> bytes:
    """Returns all metrics in Prometheus's text format.

    models: metrics of the server's models; the first also has the metrics of the whole server.
    """
    first, *others = models
    if not others:
        return first.render()
    for metrics in models:
        metrics.refresh()
    return ("\n".join(_lines(models)) + "\n").encode() + first.render_process()


def _lines(models: Sequence[Metrics]) -> Iterator[str]:
    for families in zip(*(metrics.families for metrics in models), strict=True):
        of = families[:1] if families[0].name in SERVER_WIDE else families
        series = [line for family in of for line in family.series()]
        if series:
            yield from families[0].header()
            yield from series
