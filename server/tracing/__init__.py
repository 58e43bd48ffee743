"""OpenTelemetry traces of requests, an extra (`polyrec[otel]`).

    request --Tracer: sampled?--> Trace --dispatcher: batches--> record --Pipe--> exporter process --OTLP-->

The server only samples, takes times and writes a record of a few hundred bytes. Spans are made, encoded and
sent in a separate process: a thread would hold the interpreter lock for 5 ms at a time and delay every
request (docs/observability.md).
"""
