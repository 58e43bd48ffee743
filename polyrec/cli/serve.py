"""`polyrec serve`: serves a bundle or a plan over HTTP until a signal."""

from __future__ import annotations

import argparse

HELP = "serve a bundle or a plan over HTTP"
EXAMPLE = "polyrec serve --bundle runs/demo/table --port 8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", help="folder of a bundle")
    parser.add_argument("--plan", help="plan file, instead of a bundle")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for a free one (default 8000)")
    parser.add_argument(
        "--runtime", help="with --bundle: runtime, auto, torch, onnx or openvino (default auto)"
    )
    parser.add_argument("--device", help="with --bundle: device, like cpu or cuda:0 (default: the best)")
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], help="precision of the dense net")
    parser.add_argument("--width", type=int, help="with --bundle: one of nested widths (default: the widest)")
    parser.add_argument("--lanes", type=int, help="with --bundle: number of lanes (default 1)")
    parser.add_argument(
        "--lane",
        choices=["auto", "inline", "thread", "process"],
        help="with --bundle: kind of the lanes (default auto)",
    )
    parser.add_argument(
        "--policy", help="routing policy: priced, mprec, deeprecsys or static:PATH (default: the plan's)"
    )
    parser.add_argument("--default-budget-ms", type=float, help="latency budget of requests without one")
    parser.add_argument(
        "--max-budget-ms",
        type=float,
        help="limit of latency budgets (default: 10 times the default budget, at least 10000)",
    )
    parser.add_argument("--max-body-bytes", type=int, help="most bytes of a request's body; 413 beyond")
    parser.add_argument("--max-request-rows", type=int, help="most rows of a request; 413 beyond")
    parser.add_argument("--max-batch-rows", type=int, help="most rows of a batch of several requests")
    parser.add_argument("--max-queued-rows", type=int, help="most rows in the queue; 429 beyond")
    parser.add_argument(
        "--max-connections", type=int, help="most connections (default: file descriptors less 64)"
    )
    parser.add_argument(
        "--keep-alive-s", type=float, help="time after which idle connections are closed (default 75)"
    )
    parser.add_argument(
        "--tier-directory", help="with --plan: folder for files of rows on disk (a real disk)"
    )
    parser.add_argument(
        "--drift-s", type=float, help="with --plan: interval of reordering rows by popularity, seconds"
    )
    parser.add_argument(
        "--drift-every", type=int, help="with --plan: of so many batches one is observed for that"
    )
    parser.add_argument(
        "--drift-memory", type=float, help="with --plan: weight of earlier accesses for that, look-ups"
    )
    parser.add_argument(
        "--tokens", metavar="FILE", help="file of clients, tokens and rights; read again on SIGHUP"
    )
    parser.add_argument(
        "--open-rights",
        metavar="RIGHTS",
        help="rights of all clients: priority, quality",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM)")
    parser.add_argument(
        "--store-password-file", help="with --plan: file with the password of its remote store"
    )
    parser.add_argument("--drain-grace-s", type=float, help="time of serving on after SIGTERM, not ready")
    parser.add_argument("--drain-timeout-s", type=float, help="then time for requests in flight")
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="least level written to standard error (default warning)",
    )
    parser.add_argument("--json", action="store_true", help="report readiness as one line of JSON")


def run(args: argparse.Namespace) -> int:
    import os

    from polyrec.server.app.signals import exit_on_sigterm

    # before torch is imported: parallelism comes from lanes, and idle threads spin
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with exit_on_sigterm():
        from polyrec.server.app.settings import load_settings

        flags = {k: v for k, v in vars(args).items() if k not in ("verb", "run", "json", "version")}
        settings = load_settings(flags, os.environ)

        # slow imports, after the command line is validated
        from polyrec.server.app.run import Ready, serve

        def ready(server: Ready) -> None:
            if args.json:
                print(server.line(), flush=True)
            else:
                print(f"serving {', '.join(server.paths)} on {server.runtime} at {server.url}", flush=True)

        return serve(settings, ready)
