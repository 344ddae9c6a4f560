"""TLS of the web server: certificate, key and client CA, which can be renewed."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from cheroot.makefile import MakeFile
from cheroot.ssl import Adapter

from agent.errors import ConfigError

_OLDEST = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

CLIENT_VERIFIED = "SSL_CLIENT_VERIFY"
"""In a request's environment: whether the peer has shown a certificate of the CA that is asked for. No header can set it."""


class TlsAdapter(Adapter):
    """The server's side of TLS: 1.2 or newer, by Python's own defaults (forward secrecy, authenticated ciphers). `renew` takes
    up new files.

    A peer that shows a certificate of another CA than `client_ca_file` fails at the handshake; one that shows none is let
    through to `agent.http_server.server`, which knows which paths ask for one.
    """

    def __init__(self, certificate: str, private_key: str, client_ca: str | None = None, oldest: str = "1.2") -> None:
        super().__init__(certificate, private_key)
        self.client_ca = client_ca
        self._oldest = _OLDEST[oldest]
        self.context = self._context()

    def renew(self) -> None:
        """Reads the files again, for connections to come. Raises ConfigError and keeps what it has."""
        self.context = self._context()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = self._oldest
        # Older OpenSSL lets a client ask for a new handshake, and another, at our expense.
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            # OpenSSL would ask the terminal for the password of a key that has one.
            context.load_cert_chain(self.certificate, self.private_key, password=lambda: "")
        except OSError as error:
            raise self._unusable(f"{self.certificate} and {self.private_key}", error) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise self._unusable(self.client_ca, error) from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @staticmethod
    def _unusable(files: str, error: OSError) -> ConfigError:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        return ConfigError((f"web.tls: {files} cannot be used: {why or error}",))

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """TLS on an accepted socket, without the handshake. Raise OSError or ValueError for a client that has hung up."""
        return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: Any, mode: str = "r", bufsize: int = -1) -> Any:
        return MakeFile(sock, mode, bufsize)
