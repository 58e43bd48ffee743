"""Which requests are traced, and what the environment may say about it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from polyrec.server.tracing.tracer import is_enabled, open_tracer
from tests.server.tracing.conftest import Collector

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
VALID = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hidden())
from polyrec.server.tracing.tracer import open_tracer
assert open_tracer({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318"}) is None
"""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "true"}, False),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, False),
    ],
)
def test_naming_a_collector_switches_traces_on(environ: dict[str, str], expected: bool) -> None:
    assert is_enabled(environ) is expected


def test_a_protocol_that_is_not_spoken_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_tracer(COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    (record,) = caplog.records
    assert record.message == (
        "no traces: OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; only http/protobuf is supported"
    )


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", b"00-" + b"1" * 600 + b"-01")],
        [(b"traceparent", VALID), (b"tracestate", b"\x9b31mFORGED \xff=1")],
        [(b"traceparent", VALID), (b"tracestate", b",".join(b"a%d=1" % i for i in range(100)))],
    ],
    ids=["long", "no member", "many members"],
)
def test_invalid_headers_of_clients_write_no_line(
    collector: Collector, caplog: pytest.LogCaptureFixture, headers: list[tuple[bytes, bytes]]
) -> None:
    tracer = open_tracer(COLLECTOR | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    assert tracer is not None
    try:
        with caplog.at_level(logging.WARNING):
            trace = tracer.begin({"type": "http", "path": "/v1/rank", "headers": headers}, "rank")
        assert trace is not None
    finally:
        tracer.close()
    assert not caplog.records


def test_a_server_without_the_extra_says_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == (
        "no traces, although OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set: pip install 'polyrec[otel]'"
    )
