"""Certificates and credentials for a peer, from its files. No message holds a secret."""

from __future__ import annotations

import base64
import os
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from agent.config.peer import Peer, TlsConfig
from agent.errors import ScrapeError, ScrapeFailure


def tls_options(peer: Peer) -> dict[str, Any]:
    """Return the options of a pool of TLS connections, none for http. Raise ScrapeError.

    Without `ca_file` it trusts the certificates of the machine, as curl and Prometheus do, not the bundle of `certifi`.
    """
    if urlsplit(peer.url).scheme != "https":
        return {}
    tls = peer.tls or TlsConfig()
    for path in filter(None, (tls.ca_file, tls.cert_file, tls.key_file)):
        if os.path.exists(path) and not os.path.isfile(path):
            raise ScrapeError(ScrapeFailure.TLS, f"{path}: is no file")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        files = ", ".join(path for path in (tls.ca_file, tls.cert_file, tls.key_file) if path is not None)
        text = f"ca_file, cert_file or key_file ({files}) cannot be used: {error.strerror or error}"
        raise ScrapeError(ScrapeFailure.TLS, text) from error
    if tls.ca_file is not None:
        # As curl does: a file with the server's own certificate is trusted without its issuer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # noqa: TID251
        # The option is explicit: a warning at every connect adds nothing.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return {"ssl_context": context, "server_hostname": tls.server_name}


def authorization(peer: Peer) -> dict[str, str]:
    """Return the Authorization header, or an empty dict without credentials. Raise ScrapeError."""
    if peer.bearer_token_file is not None:
        return {"Authorization": f"Bearer {header_secret('bearer_token_file', peer.bearer_token_file)}"}
    if peer.basic_auth is not None:
        pair = f"{peer.basic_auth.username}:{_secret('password_file', peer.basic_auth.password_file)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def header_secret(field: str, path: str) -> str:
    """Read a file with the value of a header. Raise ScrapeError without any part of it."""
    text = _secret(field, path)
    if not (text.isascii() and text.isprintable()):
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: holds characters that a header cannot carry")
    return text


def _secret(field: str, path: str) -> str:
    if os.path.exists(path) and not os.path.isfile(path):
        # Reading a pipe could block without end.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is no file")
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        # Drop the cause: a decoding error contains the bytes of the secret.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: {reason}") from None
    if not text:
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is empty")
    return text
