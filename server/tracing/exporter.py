"""Exports traces: reads records of requests from standard input and sends them as OTLP over HTTP.

Started only by `server/tracing/tracer.py`, as `python -m polyrec.server.tracing.exporter`. When the server
closes the pipe or dies, it sends its buffered spans and exits. OpenTelemetry's variables configure it
(OTEL_EXPORTER_OTLP_*, OTEL_BSP_*, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from polyrec.models.version import code_version
from polyrec.server.app.logs import log_to_stderr
from polyrec.server.app.signals import ignore_signals_of_service
from polyrec.server.tracing.records import RequestRecord, unpack_records
from polyrec.server.tracing.spans import Ids, Spans

READ_BYTES = 2**20
GATHER_S = 0.02
"""Pause after each read; waking for every request would take processor time from the server."""
QUEUED_SPANS = 2**15
NICE = 5
LAST_S = 10.0
"""Time limit for sending the last spans after the server has ended."""


def records(fd: int) -> Iterator[RequestRecord]:
    """Yields the records of a pipe until the other end is closed."""
    buffer = bytearray()
    while more := os.read(fd, READ_BYTES):
        buffer += more
        yield from unpack_records(buffer)
        time.sleep(GATHER_S)


def resource() -> Resource:
    """Returns the resource of the spans; its service is `polyrec` unless the environment names one."""
    attributes = {
        "service.version": code_version(),
        "service.instance.id": f"{os.uname().nodename}:{os.getppid()}",
    }
    found = Resource.create({})
    if str(found.attributes["service.name"]).startswith("unknown_service"):
        attributes["service.name"] = "polyrec"
    return found.merge(Resource(attributes))


def main() -> None:
    log_to_stderr("warning")
    # this process ends after the server, with its last spans
    ignore_signals_of_service()
    os.nice(NICE)
    os.environ.setdefault("OTEL_BSP_MAX_QUEUE_SIZE", str(QUEUED_SPANS))
    ids = Ids()
    provider = TracerProvider(
        # the server has sampled already
        sampler=ALWAYS_ON,
        resource=resource(),
        id_generator=ids,
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    spans = Spans(provider.get_tracer("polyrec", code_version()), ids)
    for request in records(sys.stdin.fileno()):
        spans.emit(request)
    ending = threading.Thread(target=provider.shutdown, daemon=True)
    ending.start()
    ending.join(LAST_S)
    if ending.is_alive():
        logging.getLogger("polyrec.tracing").warning("the collector does not answer: the last spans are lost")
    sys.stderr.flush()
    os._exit(0)  # retries of the SDK would delay the end


if __name__ == "__main__":
    main()
