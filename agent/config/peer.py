"""Server that is asked: its address, limits, credentials and certificates. Secrets stand in files, and in no message."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from agent.config.sections import ConfigSection, is_text, problems_of
from agent.config.values import EnvironmentFileName, Text
from agent.errors import ConfigError
from rules.plan.schema import Plan
from rules.plan.validation import Contradictions, validation_error

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
"""A hundred times the page of a busy engine."""

_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def _url(value: object) -> str:
    """Return a valid address. Problems omit it: it may hold a password."""
    text = value if is_text(value) else ""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
        # Errors of the client's libraries quote the whole address.
        is_host = bool(ip_address(host)) if ":" in host else _HOST.fullmatch(host.encode("idna").decode())
        is_sound = parts.scheme in ("http", "https") and is_host and not re.search(r"[\s\x00-\x1f]|\$\{|\][^:/]", text)
    except ValueError:
        is_sound = False
    if "@" in re.split(r"[/?#]", text.partition("://")[2] or text, maxsplit=1)[0]:
        raise validation_error("must hold no user or password; put them into basic_auth: {username, password_file}")
    if not is_sound:
        raise validation_error(
            "must be an http:// or https:// address such as http://127.0.0.1:8000/metrics, without ${...}"
        )
    return text


Url = Annotated[str, BeforeValidator(_url), WithJsonSchema({"type": "string", "title": "address", "format": "uri"})]


class BasicAuth(ConfigSection):
    username: Text = Field(description="User name of basic authentication.")
    password_file: EnvironmentFileName = Field(description="File that holds the password.")


class TlsConfig(ConfigSection):
    ca_file: EnvironmentFileName | None = Field(None, description="CA of its certificate; default the system's.")
    cert_file: EnvironmentFileName | None = Field(None, description="Client certificate, where it asks for one.")
    key_file: EnvironmentFileName | None = Field(None, description="Its key, where it is not in cert_file.")
    server_name: Text | None = Field(None, description="What its certificate is for, if not the host of the url.")
    insecure_skip_verify: bool = Field(False, description="Do not check the target's certificate.")


class PeerKeys(ConfigSection):
    """Keys of a server that is asked: its address and the credentials for it. Limits are keys of a section, or none."""

    url: Url
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None

    def to_peer(self, **limits: Any) -> Peer:
        """Return the server with these limits of `Peer`."""
        return Peer(**{name: getattr(self, name) for name in PeerKeys.model_fields}, **limits)

    @property
    def sends_credentials(self) -> bool:
        """Return whether a request carries a secret."""
        return bool(self.bearer_token_file or self.basic_auth)

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield two logins at once, and TLS options that cannot be used."""
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
    header_files: dict[Text, EnvironmentFileName] = {}

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Return the peer of what a user gave on the command line. Raise ConfigError with every problem."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise ConfigError(problems_of(error, cls)) from None
