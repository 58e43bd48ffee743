"""Generates the configuration of the HAProxy in front of the replicas.

HAProxy picks two random servers by weight, and of these the one with fewer requests in progress relative to
its weight (`balance random(2)`). The weight is a replica's capacity, scaled by the percentage from its agent
port (planner/fleet/weights.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from polyrec.cluster.targets import ADMINISTRATION, REFUSAL
from polyrec.planner.fleet.weights import capacity_weights

BACKEND = "replicas"
UNCHECKED = "unchecked-"
"""Name prefix of the unchecked backup entries, which are used while no server is up."""
RETRIES = 3
BUFFER_BYTES = 131072
"""Size of HAProxy's buffer. A larger request cannot be retried once it was sent."""
ERRORS = {
    400: "the body is not valid HTTP",
    403: REFUSAL,
    408: "the body did not arrive in time",
    500: "the balancer failed",
    502: "the replica ended before it had answered",
    503: "no replica can be reached",
    504: "the replica did not answer within the latency budget",
}
"""Messages of HAProxy's own errors, which have the form of a replica's. Only a head that is not HTTP, or is
late, gets HAProxy's HTML."""
HARD_STOP_S = 60
"""Maximum time for a worker with an old configuration to finish its requests."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a replica. rows_s: capacity of its plan when that was opened, 0 if unknown."""

    name: str
    host: str
    port: int
    agent_port: int
    rows_s: float = 0.0

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """Returns a host in the form used before a port, with an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def configuration(host: str, port: int, socket: Path, endpoints: Iterable[Endpoint]) -> str:
    """Returns haproxy.cfg. host, port: address for clients. socket: for HAProxy's runtime commands."""
    known = sorted(endpoints, key=lambda endpoint: endpoint.name)
    weights = capacity_weights([endpoint.rows_s for endpoint in known])
    servers = [
        f"    server {e.name} {bracketed(e.host)}:{e.port} weight {w}"
        f" agent-addr {e.host} agent-port {e.agent_port}"
        for e, w in zip(known, weights, strict=True)
    ]
    servers += [
        f"    server {UNCHECKED}{e.name} {bracketed(e.host)}:{e.port} weight {w}"
        " backup no-check no-agent-check"
        for e, w in zip(known, weights, strict=True)
    ]
    head = _HEAD.format(socket=socket, host=bracketed(host), port=port, errors="\n".join(_errors()))
    return "\n".join([head, *servers, ""])


def _errors() -> Iterator[str]:
    """Yields the directives that replace HAProxy's HTML errors."""
    for status, message in ERRORS.items():
        body = json.dumps({"error": message})
        retry = " hdr retry-after 1" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
        yield f"    http-error status {status} content-type application/json string '{body}'{retry}"


# - retry-on: predictions change nothing, so they can be retried on another replica. Administration is denied,
#   because it would reach an arbitrary replica.
# - http-buffer-request: a request is retried only if it was whole when first sent, and most clients send the
#   body after the head.
# - idle-close-on-response: after a reload, a client's idle connection is closed with its next response;
#   closing it while idle could lose a request that is on its way.
# - observe: the first failed connection takes a server out until its next check.
# - budgeted: HAProxy reads digits only, so that 6e4, which replicas accept, would be 6 ms.
# - backup, allbackups: checks choose among servers, but never refuse a request. If they fail at all (a busy
#   machine, or a worker of an earlier configuration, which checks no more), all servers are tried.
_HEAD = f"""\
# written by `polyrec cluster`; changes are lost
global
    stats socket {{socket}} mode 600 level admin
    hard-stop-after {HARD_STOP_S}s
    tune.bufsize {BUFFER_BYTES}

defaults
    mode http
    timeout connect 250ms
    timeout client 75s
    timeout http-request 30s
    timeout server 10s
    timeout queue 250ms
    timeout check 2s
    option idle-close-on-response
    option http-buffer-request
    option redispatch 1
    retries {RETRIES}
    retry-on conn-failure empty-response junk-response 503
{{errors}}

frontend clients
    bind {{host}}:{{port}}
    acl administration path,url_dec -m reg {ADMINISTRATION}
    http-request deny deny_status 403 if administration
    default_backend {BACKEND}

backend {BACKEND}
    balance random(2)
    option allbackups
    http-reuse always
    acl budgeted req.hdr(x-latency-budget-ms) -m reg ^[0-9]+([.][0-9]*)?$
    http-request set-timeout server req.hdr(x-latency-budget-ms),add(250) if budgeted
    option httpchk
    http-check send meth GET uri /readyz
    http-check expect status 200
    default-server check inter 500ms fastinter 100ms downinter 250ms fall 3 rise 1
    default-server agent-check agent-inter 500ms
    default-server observe layer4 error-limit 1 on-error mark-down"""
