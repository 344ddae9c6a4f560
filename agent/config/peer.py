"""Server that is asked: its address, limits, credentials and certificates. Secrets stand in files, and in no message."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from agent.config.sections import ConfigSection
from agent.config.values import ExpandedFile, Text
from rules.plan.validation import Contradictions, validation_error

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
"""A hundred times the page of a busy engine."""

_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def _url(value: str) -> str:
    """Return a valid address. Problems omit it: it may hold a password."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
        # Errors of the client's libraries quote the whole address.
        is_host = bool(ip_address(host)) if ":" in host else _HOST.fullmatch(host.encode("idna").decode())
        is_sound = parts.scheme in ("http", "https") and is_host and not re.search(r"[\s\x00-\x1f]|\$\{|\][^:/]", value)
    except ValueError:
        is_sound = False
    if "@" in re.split(r"[/?#]", value.partition("://")[2] or value, maxsplit=1)[0]:
        raise validation_error("must hold no user or password; put them into basic_auth: {username, password_file}")
    if not is_sound:
        example = "http://127.0.0.1:8000/metrics"
        raise validation_error(f"must be an http:// or https:// address such as {example}, without ${{...}}")
    if port == 0:
        raise validation_error("must have a port from 1 to 65535")
    return value


Url = Annotated[str, AfterValidator(_url), WithJsonSchema({"type": "string", "title": "address", "format": "uri"})]


class BasicAuth(ConfigSection):
    username: Text = Field(description="User name of basic authentication.")
    password_file: ExpandedFile = Field(description="File that holds the password.")


class TlsConfig(ConfigSection):
    ca_file: ExpandedFile | None = Field(None, description="CA of its certificate; default the system's.")
    cert_file: ExpandedFile | None = Field(None, description="Client certificate, where it asks for one.")
    key_file: ExpandedFile | None = Field(None, description="Its key, where it is not in cert_file.")
    server_name: Text | None = Field(None, description="What its certificate is for, if not the host of the url.")
    insecure_skip_verify: bool = Field(False, description="Do not check the target's certificate.")


class PeerKeys(ConfigSection):
    """Keys of a server that is asked: its address and the credentials for it. Limits are keys of a section, or none."""

    url: Url = Field(description="Its address.")
    bearer_token_file: ExpandedFile | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None

    def to_peer(self, **limits: Any) -> Peer:
        """Return the server with these limits of `Peer`."""
        return Peer(**{name: getattr(self, name) for name in PeerKeys.model_fields}, **limits)

    def _contradictions(self) -> Contradictions:
        if self.bearer_token_file and self.basic_auth:
            yield ("basic_auth",), "is given beside bearer_token_file; a request carries only one of them"
        if self.tls and self.url.lower().startswith("http://"):
            yield ("tls",), "is given, but the url begins with http://; write https://"
        if self.tls and self.tls.key_file and not self.tls.cert_file:
            yield ("tls", "key_file"), "needs cert_file"


class Peer(PeerKeys):
    """Server as a client takes it. `timeout_seconds` bounds a whole exchange, `max_bytes` the decompressed body.

    `header_files` are further headers: the files with their values by name.
    """

    timeout_seconds: Annotated[float, Field(gt=0)] = 10.0
    max_bytes: Annotated[int, Field(gt=0)] = DEFAULT_MAX_BYTES
    header_files: dict[Text, ExpandedFile] = {}
