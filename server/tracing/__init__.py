"""OpenTelemetry traces, an extra (`polyrec[otel]`): what happened to one request, as spans.

    request --Tracer: sampled?--> Trace --dispatcher: batches--> record --Pipe--> exporter process --OTLP-->

The server only decides, takes times and writes a record of a few hundred bytes. Spans are made, encoded and
sent in a process of their own: in a thread they would hold the interpreter lock for 5 ms at a time, and
every request that arrives meanwhile would wait (docs/observability.md has what was measured).
"""
