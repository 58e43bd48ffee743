"""`python -m polyrec.server.tracing.exporter`: records of requests on standard input, OTLP over HTTP out.

Started by `server/tracing/pipe.py`, never by people. It ends when its server closes the pipe or dies, after
having sent what it has. OpenTelemetry's variables say where to and how (OTEL_EXPORTER_OTLP_*, OTEL_BSP_*,
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from polyrec.models.bundle.bundle import code_version
from polyrec.server.app.logs import log_to_stderr
from polyrec.server.tracing.records import RequestRecord, unpack_records
from polyrec.server.tracing.spans import Ids, Spans

READ_BYTES = 2**20
GATHER_S = 0.02
"""After each read: a process that wakes for every single request takes the server's core away."""
QUEUED_SPANS = 2**15
NICE = 5
LAST_S = 10.0
"""To send the last spans once the server has gone; a collector that does not answer would take longer."""


def records(fd: int) -> Iterator[RequestRecord]:
    """What comes down a pipe, until its other end is closed."""
    buffer = bytearray()
    while more := os.read(fd, READ_BYTES):
        buffer += more
        yield from unpack_records(buffer)
        time.sleep(GATHER_S)


def resource() -> Resource:
    """The server that the spans are of; `polyrec` unless the environment names a service."""
    own = {"service.version": code_version(), "service.instance.id": f"{os.uname().nodename}:{os.getppid()}"}
    found = Resource.create({})
    if str(found.attributes["service.name"]).startswith("unknown_service"):
        own["service.name"] = "polyrec"
    return found.merge(Resource(own))


def main() -> None:
    log_to_stderr("warning")
    # both reach a whole group of processes; this one ends after its server, with the server's last spans
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICE)
    os.environ.setdefault("OTEL_BSP_MAX_QUEUE_SIZE", str(QUEUED_SPANS))
    ids = Ids()
    provider = TracerProvider(
        # the server has decided already
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
    os._exit(0)  # retries of the SDK would hold up the end


if __name__ == "__main__":
    main()
