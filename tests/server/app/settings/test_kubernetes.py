"""Variables that Kubernetes makes for a Service named like the settings' prefix."""

from __future__ import annotations

import pytest

from polyrec.server.app.settings.environment import load_settings
from polyrec.server.app.settings.kubernetes import is_service_variable
from polyrec.server.app.settings.settings import SettingsError

ADDRESS, PORT = "10.96.0.11", "8000"
SERVICE = {
    "POLYREC_SERVICE_HOST": ADDRESS,
    "POLYREC_SERVICE_PORT": PORT,
    "POLYREC_SERVICE_PORT_HTTP": PORT,
    "POLYREC_PORT": f"tcp://{ADDRESS}:{PORT}",
    "POLYREC_PORT_8000_TCP": f"tcp://{ADDRESS}:{PORT}",
    "POLYREC_PORT_8000_TCP_PROTO": "tcp",
    "POLYREC_PORT_8000_TCP_PORT": PORT,
    "POLYREC_PORT_8000_TCP_ADDR": ADDRESS,
}
OTHERS = {
    "POLYREC_CANARY_SERVICE_HOST": "fd00::b",
    "POLYREC_CANARY_SERVICE_PORT_GRPC_WEB": "8001",
    "POLYREC_CANARY_PORT": "tcp://[fd00::b]:8001",
    "POLYREC_CANARY_PORT_8001_UDP_ADDR": "fd00::b",
}


def test_the_variables_of_a_service_named_polyrec_are_no_settings() -> None:
    settings = load_settings({"bundle": "b"}, SERVICE | OTHERS | {"POLYREC_HOST": "0.0.0.0"})
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    assert settings.model_fields_set == {"bundle", "host"}


def test_a_port_that_is_a_number_stays_a_setting() -> None:
    assert load_settings({"bundle": "b"}, SERVICE | {"POLYREC_PORT": "9000"}).port == 9000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POLYREC_SERVICE_HOST", "polyrec.default.svc"),
        ("POLYREC_SERVICE_HOSTS", ADDRESS),
        ("POLYREC_SERVICE_PORT", "http"),
        ("POLYREC_SERVICE_PORT", "70000"),
        ("POLYREC_SERVICE_PORT", "\u0663"),
        ("POLYREC_PORT", f"tcp://{ADDRESS}"),
        ("POLYREC_PORT", f"http://{ADDRESS}:8000"),
        ("POLYREC_PORT", f"tcp://{ADDRESS}:8000/"),
        ("POLYREC_PORT_TCP", f"tcp://{ADDRESS}:8000"),
        ("POLYREC_PORT_8000_TCP_PROTO", "http"),
        ("POLYREC_PORT_8000_TCP_NAME", "http"),
        ("POLYRECS_SERVICE_HOST", ADDRESS),
    ],
)
def test_similar_environment_variables_are_rejected(name: str, value: str) -> None:
    assert not is_service_variable(name, value)
    if name.startswith("POLYREC_"):
        with pytest.raises(SettingsError):
            load_settings({"bundle": "b"}, {name: value})
