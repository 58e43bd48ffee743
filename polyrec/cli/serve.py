"""`polyrec serve`: a bundle or a plan, over HTTP, until told to stop."""

from __future__ import annotations

import argparse

HELP = "serve a bundle or a plan over HTTP"
EXAMPLE = "polyrec serve --bundle runs/demo/table --port 8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", help="folder of a bundle, served by its best runtime")
    parser.add_argument("--plan", help="plan file, instead of a bundle")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 takes a free one (default 8000)")
    parser.add_argument("--runtime", choices=["auto", "torch", "onnx"], help="with --bundle (default auto)")
    parser.add_argument("--device", help="with --bundle: cpu, cuda:0, ... (default: the best)")
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], help="of the dense net's products")
    parser.add_argument("--lanes", type=int, help="with --bundle: executors (default 1)")
    parser.add_argument(
        "--lane", choices=["auto", "inline", "thread", "process"], help="with --bundle: their kind"
    )
    parser.add_argument("--policy", help="priced, mprec, deeprecsys or static:PATH, instead of the plan's")
    parser.add_argument("--default-budget-ms", type=float, help="latency budget of requests that name none")
    parser.add_argument(
        "--max-budget-ms",
        type=float,
        help="longer latency budgets are cut to it (default: 10 times the default budget, 10000 at least)",
    )
    parser.add_argument("--max-body-bytes", type=int, help="of one request; 413 beyond")
    parser.add_argument("--max-request-rows", type=int, help="of one request; 413 beyond")
    parser.add_argument("--max-batch-rows", type=int, help="waiting requests are merged up to this")
    parser.add_argument("--max-queued-rows", type=int, help="rows that may wait; 429 beyond")
    parser.add_argument("--max-connections", type=int, help="default: file descriptors less 64")
    parser.add_argument("--keep-alive-s", type=float, help="idle connections are closed then (default 75)")
    parser.add_argument(
        "--tier-directory", help="with --plan: folder for files of rows on disk (a real disk)"
    )
    parser.add_argument(
        "--drift-s", type=float, help="with --plan: rows follow popularity every so many seconds"
    )
    parser.add_argument("--tokens", metavar="FILE", help="clients, tokens and rights; read again on SIGHUP")
    parser.add_argument(
        "--open-rights",
        metavar="RIGHTS",
        help="what all clients may ask for: priority, quality",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM)")
    parser.add_argument(
        "--store-password-file", help="with --plan: file with the password of its remote store"
    )
    parser.add_argument("--drain-grace-s", type=float, help="serve on after SIGTERM, while not ready")
    parser.add_argument("--drain-timeout-s", type=float, help="then, for requests in flight")
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="the least that is written to standard error (default warning)",
    )
    parser.add_argument("--json", action="store_true", help="say that it is ready as one line of JSON")


def run(args: argparse.Namespace) -> int:
    import os

    from polyrec.server.app.signals import exit_on_sigterm

    # before torch is imported: parallelism comes from lanes, and idle threads spin
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with exit_on_sigterm():
        from polyrec.server.app.settings import load_settings

        flags = {k: v for k, v in vars(args).items() if k not in ("verb", "run", "json", "version")}
        settings = load_settings(flags, os.environ)

        # seconds of imports, only once the command line is known to be right
        from polyrec.server.app.run import Ready, serve

        def ready(server: Ready) -> None:
            if args.json:
                print(server.line(), flush=True)
            else:
                print(f"serving {', '.join(server.paths)} on {server.runtime} at {server.url}", flush=True)

        return serve(settings, ready)
