"""HTTPS with certificates made here, and every way in which they may not fit."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from polyrec.server.app.settings.environment import load_settings
from polyrec.server.app.settings.settings import SettingsError
from polyrec.server.app.tls import TlsError, check_tls, reload_tls
from polyrec.server.child import StartFailed
from polyrec.server.http.connection.handshake import HANDSHAKE_S
from tests.forking import start

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")

BODY = b'{"instances": [{}]}'
Pair = tuple[Path, Path]
CONNECTIONS, MOST = 40, 4
"""Connections of a small server, and the unfinished handshakes that it allows."""


def certified(folder: Path, name: str, *options: str) -> Pair:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    kind = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1 -addext subjectAltName=IP:127.0.0.1"
    files = ("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert))
    command = ["openssl", "req", "-x509", *kind.split(), *files, *(options or ("-nodes",))]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return certified(tmp_path, "first")


def trusting(*certs: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for cert in certs:
        context.load_verify_locations(cert)
    return context


def presented(url: httpx.URL) -> str:
    """The certificate that a new connection is shown, PEM."""
    assert url.port is not None
    return ssl.get_server_certificate((url.host, url.port))


def test_https_is_served_and_the_certificate_is_read_again_on_sighup(
    bundle_dir: Path, pair: Pair, tmp_path: Path
) -> None:
    cert, key = pair
    second = certified(tmp_path, "second")
    context = trusting(cert, second[0])
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "tls_cert": cert, "tls_key": key}
    log = tmp_path / "log"
    with log.open("w") as stderr, start(settings | {"default_budget_ms": 60_000}, stderr) as server:
        url = httpx.URL(server.url)
        assert url.scheme == "https"
        with httpx.Client(base_url=url, verify=context, timeout=30) as http:
            for _ in range(3):
                assert http.post("/v1/predict", content=BODY).status_code == 200
            assert http.get("/readyz").status_code == 200
            shown = presented(url)
            assert shown.strip() == cert.read_text().strip()

            key.write_bytes(second[1].read_bytes())  # not that of the certificate, which is still the first
            server.process.send_signal(signal.SIGHUP)
            while "the certificate was not reloaded" not in log.read_text():
                assert server.process.poll() is None
            assert presented(url) == shown

            cert.write_bytes(second[0].read_bytes())
            server.process.send_signal(signal.SIGHUP)
            while presented(url) == shown:
                assert server.process.poll() is None
            assert presented(url).strip() == second[0].read_text().strip()
            assert http.post("/v1/predict", content=BODY).status_code == 200  # on the old connection
        with httpx.Client(base_url=url, verify=context, timeout=30) as http:
            assert http.post("/v1/predict", content=BODY).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{url.host}:{url.port}/readyz")
        with pytest.raises(ssl.SSLError), socket.create_connection((url.host, url.port), timeout=20) as bare:
            ssl.create_default_context().wrap_socket(bare, server_hostname="127.0.0.1")
        assert httpx.get(f"{url}/readyz", verify=context).status_code == 200
    assert "Traceback" not in log.read_text()


def test_files_that_do_not_fit_are_one_line(pair: Pair, tmp_path: Path) -> None:
    cert, key = pair
    other, other_key = certified(tmp_path, "other")
    locked = certified(tmp_path, "locked", "-passout", "pass:secret")
    nothing = tmp_path / "nothing"
    nothing.touch()
    check_tls(cert, key)
    for wrong in (
        (cert, other_key),
        (other, key),
        (key, cert),
        (cert, nothing),
        (cert, tmp_path / "none"),
        (tmp_path, key),
        locked,
    ):
        with pytest.raises(TlsError) as error:
            check_tls(*wrong)
        assert "\n" not in str(error.value)
        assert str(tmp_path) not in str(error.value)


def shown_in_memory(server: ssl.SSLContext, trusted: Path) -> bytes | None:
    """The certificate that a client is shown, DER. Raises ssl.SSLError: it is not the trusted one."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(trusted).wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    ends = [client, server.wrap_bio(to_server, to_client, server_side=True)]
    while ends:
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    return client.getpeercert(binary_form=True)


def test_a_broken_pair_leaves_the_context_as_it_is(pair: Pair, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    first, other = pair[0], certified(tmp_path, "other")
    for cert, key in ((first, other[1]), (other[0], pair[1]), (tmp_path / "none", pair[1])):
        reload_tls(context, cert, key)
        assert shown_in_memory(context, first) == ssl.PEM_cert_to_DER_cert(first.read_text())
    reload_tls(context, *other)
    assert shown_in_memory(context, other[0]) == ssl.PEM_cert_to_DER_cert(other[0].read_text())


def test_a_server_that_cannot_present_its_certificate_does_not_start(
    bundle_dir: Path, pair: Pair, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, pytest.raises(StartFailed, match="status 2"):
        start({"bundle": bundle_dir, "tls_cert": pair[0], "tls_key": tmp_path / "none"}, stderr)
    assert log.read_text() == "polyrec: error: cannot read TLS file 'none': No such file or directory\n"


@pytest.mark.parametrize("given", ["tls_cert", "tls_key"])
def test_half_of_a_pair_is_rejected(given: str) -> None:
    with pytest.raises(SettingsError, match="give both --tls-cert FILE and --tls-key FILE"):
        load_settings({"bundle": "b", given: "file"}, {})


@pytest.mark.long
def test_a_handshake_that_never_begins_is_ended(bundle_dir: Path, pair: Pair) -> None:
    settings = {"bundle": bundle_dir, "tls_cert": pair[0], "tls_key": pair[1], "drain_grace_s": 0}
    with start(settings) as server:
        host, port = server.url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=8 * HANDSHAKE_S) as connection:
            assert connection.recv(1) == b""


def refused(http: httpx.Client) -> int:
    found = re.search(r'polyrec_limited_total\{limit="handshakes"\} (\d+)', http.get("/metrics").text)
    return int(found[1]) if found else 0


def test_a_client_with_many_silent_connections_keeps_no_other_out(bundle_dir: Path, pair: Pair) -> None:
    settings = {"bundle": bundle_dir, "tls_cert": pair[0], "tls_key": pair[1], "drain_grace_s": 0}
    context = trusting(pair[0])
    with start(settings | {"max_connections": CONNECTIONS, "default_budget_ms": 60_000}) as server:
        url = httpx.URL(server.url)
        host, port = url.host, url.port
        assert port is not None
        opened: list[socket.socket] = []

        def connect(source: str) -> socket.socket:
            opened.append(socket.create_connection((host, port), timeout=20, source_address=(source, 0)))
            return opened[-1]

        try:
            with httpx.Client(base_url=url, verify=context, timeout=20) as http:
                assert refused(http) == 0
                slow = connect("127.0.0.3")
                silent = [connect("127.0.0.2") for _ in range(3 * MOST)]
                # the oldest of the address with most gives way, here by its end or by a reset
                for connection in silent[: 2 * MOST + 1]:
                    with suppress(ConnectionResetError):
                        assert connection.recv(1) == b""
                assert refused(http) == 2 * MOST + 1
                # in any order with those that are silent
                with context.wrap_socket(slow, server_hostname=host) as encrypted:
                    encrypted.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert encrypted.recv(100).startswith(b"HTTP/1.1 200 ")
            for _ in range(3):
                with httpx.Client(base_url=url, verify=context, timeout=20) as other:
                    assert other.post("/v1/predict", content=BODY).status_code == 200
        finally:
            for connection in opened:
                connection.close()


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(bundle_dir: Path, pair: Pair) -> None:
    settings = {"bundle": bundle_dir, "tls_cert": pair[0], "tls_key": pair[1], "drain_grace_s": 0}
    context = trusting(pair[0])
    with start(settings) as server:
        url = httpx.URL(server.url)
        assert url.port is not None
        for _ in range(20):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname=url.host)
            with socket.create_connection((url.host, url.port), timeout=20) as connection:
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        connection.sendall(outgoing.read())
                        incoming.write(connection.recv(65536))
                tls.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                connection.sendall(outgoing.read())  # the client's last message and its request, as one
                answer = b""
                while not answer:
                    incoming.write(connection.recv(65536))
                    try:
                        answer = tls.read(100)
                    except ssl.SSLWantReadError:
                        continue
                assert answer.startswith(b"HTTP/1.1 200 ")


def test_clients_that_keep_idle_connections_do_not_hold_up_the_end(
    bundle_dir: Path, pair: Pair, tmp_path: Path
) -> None:
    """They do not read, and so do not agree to the end of TLS; the drain took all of its time."""
    settings = {"bundle": bundle_dir, "tls_cert": pair[0], "tls_key": pair[1]}
    settings |= {"drain_grace_s": 0, "drain_timeout_s": 5, "default_budget_ms": 60_000}
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        start(settings, stderr) as server,
        httpx.Client(base_url=server.url, verify=trusting(pair[0]), timeout=20) as http,
    ):
        assert http.post("/v1/predict", content=BODY).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
    said = log.read_text()
    assert "Cancel" not in said
    assert "did not read its answer" not in said
