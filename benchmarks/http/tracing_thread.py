"""Delay of an event loop while a thread beside it makes spans: the reason why another process makes them.

The loop of this process wakes every millisecond, as for a request, with OpenTelemetry's batch processor in a
thread, as its documentation has it, and spans of two requests each time; then without; twice. Encoding holds
the interpreter lock until it is taken away, 5 ms later (sys.getswitchinterval).

    python -m benchmarks.http.tracing_thread
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import uvloop
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

WAKES, REQUESTS, PHASES = 3000, 2, 6


class Encoding(SpanExporter):
    """Encodes as the OTLP exporter does, and sends nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


async def lateness(tracer: Tracer | None) -> tuple[list[float], list[float]]:
    """Seconds of every wake beyond its millisecond, and of making the spans of one request."""
    late, made = [], []
    for _ in range(WAKES):
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - start - 0.001)
        if tracer is None:
            continue
        start = time.perf_counter()
        for _ in range(REQUESTS):
            request = tracer.start_span("POST /v1/predict", attributes={"http.route": "/v1/predict"})
            for _ in range(PHASES):
                tracer.start_span("phase").end()
            request.end()
        made.append((time.perf_counter() - start) / REQUESTS)
    return late, made


def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Encoding(), schedule_delay_millis=500))
    for tracer in (None, provider.get_tracer("loop")) * 2:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            late, made = runner.run(lateness(tracer))
        p50, p99 = np.quantile(late, (0.5, 0.99)) * 1e3
        spans_us = f", {np.median(made) * 1e6:.0f} us to make a request's spans" if made else ""
        print(f"{'thread' if tracer else 'none':7} late by ms: p50 {p50:.2f}, p99 {p99:.2f}{spans_us}")
    provider.shutdown()


if __name__ == "__main__":
    main()
