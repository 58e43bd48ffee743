"""`polyrec serve`: serves a bundle or a plan over HTTP until a signal."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

EXAMPLE = "polyrec serve --bundle runs/demo/table --port 8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_fetching(parser)
    _add_listening(parser)
    _add_execution(parser)
    _add_budgets(parser)
    _add_limits(parser)
    _add_tiers(parser)
    _add_access(parser)
    _add_logging(parser)
    _add_live(parser)
    _add_running(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("what to serve")
    model.add_argument("--bundle", help="folder of a bundle, or its URL (docs/models-by-url.md)")
    model.add_argument(
        "--plan",
        action="append",
        metavar="[NAME=]FILE",
        help="plan file or URL, instead of a bundle; repeat NAME=FILE for several, the first is the default",
    )
    model.add_argument("--models", metavar="DIR", help="serve all plans (NAME.json) or bundles in a folder")
    model.add_argument(
        "--model-share",
        action="append",
        metavar="NAME=SHARE",
        help="with several models: guaranteed share of the lanes' time (default: equal shares)",
    )
    model.add_argument(
        "--model-weight",
        action="append",
        metavar="NAME=WEIGHT",
        help="with several models: weight in the competition for time that is not guaranteed (default 1)",
    )
    model.add_argument(
        "--model-name", metavar="NAME", help="model name that clients use (default: the bundle's)"
    )


def _add_fetching(parser: argparse.ArgumentParser) -> None:
    fetching = parser.add_argument_group("models by URL (docs/models-by-url.md)")
    fetching.add_argument("--model-cache", metavar="DIR", help="folder to keep fetched bundles in")
    fetching.add_argument("--model-cache-bytes", type=int, help="maximum size of the cache (default 64 GiB)")
    fetching.add_argument(
        "--model-urls",
        metavar="PREFIXES",
        help="prefixes of URLs that admin calls may load, comma-separated (default: none)",
    )


def _add_listening(parser: argparse.ArgumentParser) -> None:
    listening = parser.add_argument_group("listening")
    listening.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    listening.add_argument("--port", type=int, help="port to listen on, 0 for a free one (default 8000)")
    listening.add_argument(
        "--processes",
        type=int,
        help="number of server processes that share the port, for many cores (default 1; docs/lanes.md)",
    )
    listening.add_argument(
        "--grpc-port",
        type=int,
        help="also serve gRPC on this port (usually 8001), 0 for a free one (default: no gRPC)",
    )
    listening.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    listening.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM)")


def _add_execution(parser: argparse.ArgumentParser) -> None:
    execution = parser.add_argument_group("execution of a bundle (a plan names its own)")
    execution.add_argument("--runtime", help="with --bundle: auto, torch, onnx or openvino (default auto)")
    execution.add_argument("--device", help="with --bundle: device, like cpu or cuda:0 (default: the best)")
    execution.add_argument("--precision", choices=["fp32", "bf16", "int8"], help="precision of the dense net")
    execution.add_argument(
        "--width", type=int, help="with --bundle: one of its nested widths (default: the widest)"
    )
    execution.add_argument("--lanes", type=int, help="with --bundle: number of lanes (default 1)")
    execution.add_argument(
        "--lane",
        choices=["auto", "inline", "thread", "process"],
        help="with --bundle: kind of the lanes (default auto)",
    )


def _add_budgets(parser: argparse.ArgumentParser) -> None:
    budgets = parser.add_argument_group("routing and budgets")
    budgets.add_argument(
        "--policy", help="routing policy: priced, mprec, deeprecsys or static:PATH (default: the plan's)"
    )
    budgets.add_argument("--default-budget-ms", type=float, help="latency budget of requests that set none")
    budgets.add_argument(
        "--max-budget-ms",
        type=float,
        help="cap on latency budgets (default: 10 times the default budget, at least 10000)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-body-bytes", type=int, help="maximum bytes of a request body; else 413")
    limits.add_argument("--max-request-rows", type=int, help="maximum rows of a request; else 413")
    limits.add_argument("--max-batch-rows", type=int, help="maximum rows of a batch")
    limits.add_argument("--max-queued-rows", type=int, help="maximum rows in the queue; else 429")
    limits.add_argument(
        "--max-connections", type=int, help="maximum connections (default: file descriptors minus 64)"
    )
    limits.add_argument(
        "--keep-alive-s", type=float, help="time after which idle connections are closed (default 75)"
    )


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    tiers = parser.add_argument_group("memory tiers of a plan")
    tiers.add_argument("--tier-directory", help="with --plan: folder for the disk tier, on a real disk")
    tiers.add_argument(
        "--updates",
        action="store_true",
        default=None,
        help="accept row updates also if all rows are in memory",
    )
    tiers.add_argument(
        "--update-log",
        metavar="FOLDER",
        help="write row updates to a log before they are acknowledged, and serve them after a restart",
    )
    tiers.add_argument(
        "--drift-s",
        type=float,
        help="with --plan: seconds between reorderings of rows by popularity (default: the plan's)",
    )
    tiers.add_argument(
        "--drift-every", type=int, help="with drift: observe one batch of so many (default: the plan's)"
    )
    tiers.add_argument(
        "--drift-memory",
        type=float,
        help="with drift: weight of earlier accesses, in lookups (default: the plan's)",
    )
    tiers.add_argument("--store-url", help="with --plan: URL of the remote store, instead of the plan's")
    tiers.add_argument(
        "--store-password-file", help="with --plan: file with the password of the remote store"
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    access = parser.add_argument_group("access")
    access.add_argument(
        "--tokens",
        metavar="FILE",
        help="file of clients, tokens and rights (docs/protocol.md); SIGHUP reloads it",
    )
    access.add_argument(
        "--open-rights",
        metavar="RIGHTS",
        help="rights that all clients have: priority, quality",
    )
    access.add_argument(
        "--no-docs",
        dest="docs",
        action="store_const",
        const=False,
        help="answer /docs and /openapi.json with 404",
    )


def _add_logging(parser: argparse.ArgumentParser) -> None:
    logging = parser.add_argument_group("prediction log (docs/prediction-log.md)")
    logging.add_argument(
        "--prediction-log", metavar="FOLDER", help="log requests and answers here, to train on"
    )
    logging.add_argument("--prediction-log-sample", type=float, help="share of requests to log (default 1)")
    logging.add_argument(
        "--prediction-log-leave-out", metavar="FEATURES", help="features to log as missing, comma-separated"
    )
    logging.add_argument("--prediction-log-hash", metavar="FEATURES", help="features to log as keyed hashes")
    logging.add_argument(
        "--prediction-log-session", metavar="FEATURE", help="context feature whose values share a file"
    )
    logging.add_argument("--prediction-log-flush-s", type=float, help="seconds between files (default 30)")
    logging.add_argument("--prediction-log-keep-h", type=float, help="hours to keep (default 168)")
    logging.add_argument(
        "--prediction-log-max-bytes", type=int, help="remove the oldest hours beyond this size"
    )
    logging.add_argument(
        "--prediction-log-window-s",
        type=float,
        help="for a new log: seconds after an answer in which labels may come (default 3600)",
    )
    logging.add_argument(
        "--prediction-log-unlabeled",
        choices=["negative", "leave_out"],
        help="for a new log: requests without labels are negatives (default) or left out",
    )


def _add_live(parser: argparse.ArgumentParser) -> None:
    live = parser.add_argument_group("live quality, of the prediction log (docs/live-quality.md)")
    live.add_argument(
        "--live-quality",
        choices=["off", "measure", "follow"],
        help="measure: quality of the paths on labeled requests; follow: also route by it (default off)",
    )
    live.add_argument("--live-quality-span-s", type=float, help="window length in seconds (default 86400)")
    live.add_argument("--live-quality-every-s", type=float, help="seconds between rounds (default 60)")
    live.add_argument(
        "--live-quality-trust",
        metavar="CLIENTS",
        help="clients whose labels need no confirmation by another client, comma-separated",
    )
    live.add_argument(
        "--live-quality-priority",
        choices=["idle", "normal"],
        help="idle: use only idle processor time (default); normal: compete for it",
    )
    live.add_argument(
        "--live-quality-bound",
        type=float,
        help="maximum change of a path's value, as a share of the best one's (default 0.2)",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    running = parser.add_argument_group("running")
    running.add_argument(
        "--drain-grace-s",
        type=float,
        help="seconds to keep serving after SIGTERM, while not ready (default 1)",
    )
    running.add_argument(
        "--drain-timeout-s", type=float, help="seconds to finish requests after that (default 10)"
    )
    running.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="minimum level of messages on standard error (default warning)",
    )
    running.add_argument(
        "--log-format", choices=["text", "json"], help="format of these messages (default text)"
    )
    running.add_argument(
        "--access-log",
        type=float,
        metavar="RATE",
        help="share of answers to log, 0 to 1 (default 0)",
    )
    running.add_argument("--json", action="store_true", help="print one line of JSON when ready")


def run(args: argparse.Namespace) -> int:
    import os

    from polyrec.models.slow_imports import slow_imports
    from polyrec.server.app.signals import exit_on_sigterm

    # before torch is imported: lanes provide the parallelism, and idle threads would spin
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with exit_on_sigterm():
        from polyrec.server.app.settings.environment import load_settings

        flags = {k: v for k, v in vars(args).items() if k not in ("verb", "run", "json", "version")}
        settings = load_settings(_several(flags), os.environ)

        # after the command line is validated
        with slow_imports():
            from polyrec.server.app.listening import Ready

        def ready(server: Ready) -> None:
            if args.json:
                print(server.line(), flush=True)
            else:
                grpc = "" if server.grpc is None else f", gRPC at {server.grpc}"
                print(
                    f"serving {', '.join(server.paths)} on {server.runtime} at {server.url}{grpc}", flush=True
                )

        if settings.processes > 1:
            with slow_imports():
                from polyrec.server.app.processes import supervise
            return supervise(settings, ready)
        with slow_imports():
            from polyrec.server.app.run import serve
        return serve(settings, ready)


def _several(flags: dict[str, Any]) -> dict[str, Any]:
    """Returns the flags with repeated or named plans converted to the setting for several models."""
    plans = flags.pop("plan")
    # a file may have a name like dt=2026-11-23/plan.json
    named = plans is not None and re.match(r"[\w.-]+=", plans[0]) and not os.path.exists(plans[0])
    if plans is not None and (len(plans) > 1 or named):
        return flags | {"plans": tuple(plans)}
    return flags | {"plan": None if plans is None else plans[0]}
