"""Generates docs/metrics.md from the metrics themselves.

python -m polyrec.server.metrics.metrics_page          write docs/metrics.md
python -m polyrec.server.metrics.metrics_page --check  exit status 1 if it is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from polyrec.server.metrics.counting import OK
from polyrec.server.metrics.error_budget import SLO_MISSES, SLO_SHARE
from polyrec.server.metrics.instruments import AnyFamily
from polyrec.server.metrics.metrics import OUTCOMES, SERVER_WIDE, Metrics

CLIENT_OUTCOMES = tuple(outcome for outcome in OUTCOMES if outcome not in (OK, *SLO_MISSES))
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"

HEAD = f"""# Metrics

The metrics at `GET /metrics`, in Prometheus's text format. Generated from the code by `python -m
polyrec.server.metrics.metrics_page`; a test checks that the page is up to date. Names follow Prometheus's
conventions: one prefix, base units, `_total` on counters, counters of hits and look-ups instead of ratios,
and labels whose values are bounded by the plan.

- The SLO is that {SLO_SHARE:.0%} of the requests are answered within their latency budget. Outcome `ok` meets
  it; {", ".join(f"`{outcome}`" for outcome in SLO_MISSES)} miss it;
  {" and ".join(f"`{o}`" for o in CLIENT_OUTCOMES)} are caused by the client and do not count.
- Share of requests within the SLO: `sum(rate(polyrec_requests_total{{outcome="ok"}}[5m])) /
  sum(rate(polyrec_requests_total{{outcome!~"invalid|cancelled"}}[5m]))`.
- p99:
  `histogram_quantile(0.99, sum by (le) (rate(polyrec_request_seconds_bucket{{outcome=~"ok|late"}}[5m])))`.
- Goodput: `sum(rate(polyrec_rows_total{{outcome="ok"}}[5m]))`, rows per second; times `polyrec_path_accuracy`
  by path, correct predictions per second (recorded as `polyrec:correct_predictions:rate1m`).
- Information per second, each row in time times the quality of its path:
  `sum(rate(polyrec_information_total[5m]))`.
- Hit rate of a tier: `rate(polyrec_embedding_hits_total[5m]) / rate(polyrec_embedding_lookups_total[5m])`.
- A server of [several models](several-models.md) adds the label `model` to all metrics but those of the
  server: {", ".join(f"`{name}`" for name in sorted(SERVER_WIDE))}, `process_*`.
- Alerts and remedies: [runbook](runbook.md). Dashboards and rules: `deploy/`; `make observe` starts them all.

The cost of metrics for a request, and of a scrape: [observability](observability.md).

"""
TAIL = """
`process_*` (processor seconds, memory, open files, start time) come from prometheus_client and cover the
server's process only, without process lanes.
"""


def page() -> str:
    """Returns the page."""
    families = Metrics().families
    rows = ["| name | kind | labels | meaning |", "|---|---|---|---|", *map(_row, families)]
    edges = ["## Edges of the histograms", "", "In base units; `+Inf` comes last.", ""]
    for family in families:
        if family.kind == "histogram":
            edges.append(f"- `{family.exposed}`: {', '.join(f'{edge:.10g}' for edge in family.edges)}")
    return HEAD + "\n".join(rows) + "\n" + TAIL + "\n" + "\n".join(edges) + "\n"


def _row(family: AnyFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.label_names)
    return f"| `{family.exposed}` | {family.kind} | {labels} | {family.what} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page; with --check, returns 1 if it is out of date."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments not in ([], ["--check"]):
        print("usage: python -m polyrec.server.metrics.metrics_page [--check]", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE} is not up to date: python -m polyrec.server.metrics.metrics_page", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
