"""Checks, loads and reloads the TLS certificate and key.

Errors are one line. Handshakes are in server/http/connection/handshake.py.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from pathlib import Path

from polyrec.models.errors import PolyrecError

log = logging.getLogger("polyrec.server")


class TlsError(PolyrecError):
    """The certificate or key cannot be read, or they do not belong together."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Returns a server's TLS context. cert: PEM chain. key: unencrypted PEM. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, cert, key)
    return context


def check_tls(cert: Path, key: Path) -> None:
    """Checks that a server can use both files. Raises TlsError."""
    server_context(cert, key)


def reload_tls(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Reloads the files for new connections. If they are invalid, logs a line and keeps the old ones."""
    try:
        check_tls(cert, key)
        _load(context, cert, key)
    except TlsError as e:
        log.warning("the certificate was not reloaded: %s", e)
    else:
        log.warning("the certificate was reloaded")


class CertifiedKey:
    """A certificate and its key in memory, for gRPC, which takes no files.

    pair: the PEM chain and the PEM key. Raises TlsError.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._files = cert, key
        self.pair = self._read()

    def reload(self) -> None:
        """Reloads the files; keeps the old ones if the new ones are invalid."""
        with suppress(TlsError):
            self.pair = self._read()

    def _read(self) -> tuple[bytes, bytes]:
        cert, key = self._files
        check_tls(cert, key)
        return cert.read_bytes(), key.read_bytes()


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    for file in (cert, key):
        try:
            with file.open("rb"):
                pass
        except OSError as e:
            raise TlsError(f"cannot read TLS file '{file.name}': {e.strerror}") from None
    try:
        # an empty password keeps OpenSSL from prompting on the terminal
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as e:
        reason = getattr(e, "reason", None) or "not PEM, or an encrypted key"
        raise TlsError(
            f"TLS certificate '{cert.name}' and key '{key.name}' cannot be used: {reason}"
        ) from None
