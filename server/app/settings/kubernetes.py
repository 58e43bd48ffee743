"""Recognizes the environment variables that Kubernetes sets for a Service whose name begins with `polyrec`.

server/app/settings/environment.py ignores them. The kubelet sets them for every Service of a namespace in
each pod that starts later; for a Service `polyrec` with port 8000 named `http`:

    POLYREC_SERVICE_HOST=10.0.0.11            POLYREC_PORT=tcp://10.0.0.11:8000
    POLYREC_SERVICE_PORT=8000                 POLYREC_PORT_8000_TCP=tcp://10.0.0.11:8000
    POLYREC_SERVICE_PORT_HTTP=8000            POLYREC_PORT_8000_TCP_{PROTO,PORT,ADDR}=tcp, 8000, 10.0.0.11

They share the prefix of settings. A Service `polyrec-canary` gives POLYREC_CANARY_SERVICE_HOST and so on.
Both name and value must match, so that POLYREC_PORT=8000 is still a setting and a typo still an error.

Source: Kubernetes, pkg/kubelet/envvars/envvars.go.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

_SERVICE = r"POLYREC(?:_[A-Z0-9_]+)?"
_ADDRESS = re.compile(rf"{_SERVICE}_(?:SERVICE_HOST|PORT_\d+_(?:TCP|UDP|SCTP)_ADDR)")
_PORT = re.compile(rf"{_SERVICE}_(?:SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)_PORT)")
_PROTOCOL = re.compile(rf"{_SERVICE}_PORT_\d+_(?:TCP|UDP|SCTP)_PROTO")
_URL = re.compile(rf"{_SERVICE}_PORT(?:_\d+_(?:TCP|UDP|SCTP))?")
_URL_VALUE = re.compile(r"(?:tcp|udp|sctp)://(?:\[([0-9a-f:.]+)\]|([0-9.]+)):(\d{1,5})")


def is_service_variable(name: str, value: str) -> bool:
    """Whether Kubernetes set this variable, judged by its name and the format of its value."""
    if _ADDRESS.fullmatch(name):
        return _is_address(value)
    if _PORT.fullmatch(name):
        return _is_port(value)
    if _PROTOCOL.fullmatch(name):
        return value in ("tcp", "udp", "sctp")
    url = _URL_VALUE.fullmatch(value) if _URL.fullmatch(name) else None
    return url is not None and _is_address(url[1] or url[2]) and _is_port(url[3])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text[:6]) < 2**16
