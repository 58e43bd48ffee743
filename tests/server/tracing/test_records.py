"""Records survive the pipe, however it cuts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.tracing.records import Execution, RequestRecord, SharedBatch, pack_record, unpack_records


def record(span_id: int, path: str, batches: int) -> RequestRecord:
    trace_id = span_id.to_bytes(16, "big")
    executions = [
        Execution(trace_id, i, "cpu", "table@cpu", i, 1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6) for i in range(batches)
    ]
    wire = ("http", "1.1", "127.0.0.1", 8000, 200, "ok", 3, 0.1, "table@cpu", None)
    moments = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
    shared = [SharedBatch(execution, [(trace_id, span_id)]) for execution in executions]
    return RequestRecord(trace_id, span_id, 0, "", -7, "r-1", path, path, *wire, *moments, executions, shared)


records = st.builds(record, st.integers(1, 2**64 - 1), st.text(max_size=20), st.integers(0, 3))


@given(sent=st.lists(records, max_size=4), at=st.lists(st.integers(0, 3000), max_size=6))
def test_records_arrive_complete_and_in_order_however_they_are_cut(
    sent: list[RequestRecord], at: list[int]
) -> None:
    stream = b"".join(pack_record(request) for request in sent)
    buffer, got = bytearray(), []
    cuts = sorted(at)
    for first, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer += stream[first:end]
        got += unpack_records(buffer)
    assert got == sent
    assert not buffer
