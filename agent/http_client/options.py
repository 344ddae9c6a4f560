"""Server that is asked: its address, limits, credentials and certificates. Secrets stand in files, and in no message."""

from __future__ import annotations

import base64
import re
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import urllib3
from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from agent.errors import ConfigError, ScrapeError, ScrapeFailure
from agent.sections import (
    ConfigSection,
    Contradictions,
    EnvironmentFileName,
    Text,
    is_text,
    problems_of,
    validation_error,
)
from rules.plan.schema import Plan

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
"""A hundred times the page of a busy engine."""

SECRET_NAME = re.compile(r"token|key|secret|passw|pwd|auth|credential|sig|session|jwt|bearer|code", re.IGNORECASE)
"""Part of the name of a query parameter that holds a secret."""

_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def _url(value: object) -> str:
    if not is_text(value):
        raise validation_error("must be an address such as http://127.0.0.1:8000/metrics")
    # Problems omit the address: it may hold a password.
    if "@" in re.split(r"[/?#]", value.partition("://")[2] or value, maxsplit=1)[0]:
        raise validation_error("must hold no user or password; put them into basic_auth: {username, password_file}")
    if "${" in value:
        raise validation_error(
            "holds ${...}, which is not replaced here; a secret goes into bearer_token_file or basic_auth"
        )
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise validation_error("cannot be read as an address: is the port a number from 0 to 65535?") from None
    if parts.scheme not in ("http", "https"):
        raise validation_error("must begin with http:// or https://")
    if not host or re.search(r"[\s\x00-\x1f]", value):
        raise validation_error("names no host" if not host else "must hold no blank")
    if not _is_host(host) or re.search(r"\][^:]", parts.netloc):
        raise validation_error("names a host that no host can be called")
    return value


def _is_host(name: str) -> bool:
    """Return whether the host name is valid; library errors for an invalid name quote the whole address."""
    try:
        return bool(":" in name and ip_address(name)) or _HOST.fullmatch(name.encode("idna").decode()) is not None
    except (UnicodeError, ValueError):
        return False


Url = Annotated[str, BeforeValidator(_url), WithJsonSchema({"type": "string", "title": "address", "format": "uri"})]


class BasicAuth(ConfigSection):
    username: Text = Field(description="User name of basic authentication.")
    password_file: EnvironmentFileName = Field(description="File that holds the password.")


class TlsConfig(ConfigSection):
    ca_file: EnvironmentFileName | None = Field(
        None, description="CA that signed the target's certificate; default the system's."
    )
    cert_file: EnvironmentFileName | None = Field(
        None, description="Client certificate, where the target asks for one."
    )
    key_file: EnvironmentFileName | None = Field(None, description="Its key, where it is not in cert_file.")
    server_name: Text | None = Field(
        None, description="What the target's certificate is for, where that is not the host of the url."
    )
    insecure_skip_verify: bool = Field(False, description="Do not check the target's certificate.")


class Peer(ConfigSection):
    """Server that is asked, and the credentials for it.

    `timeout_seconds` bounds a whole exchange, `max_bytes` the decompressed body. Sections of a configuration extend it,
    and give both a key of their own or none: the NUL in these aliases stands in no file.
    """

    url: Url
    timeout_seconds: SkipJsonSchema[Annotated[float, Field(gt=0)]] = Field(10.0, alias="\0t")
    max_bytes: SkipJsonSchema[Annotated[int, Field(gt=0)]] = Field(DEFAULT_MAX_BYTES, alias="\0m")
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Return the peer of what a user gave on the command line. Raise ConfigError with every problem."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise ConfigError(problems_of(error, cls)) from None

    @property
    def files(self) -> tuple[tuple[str, str, ScrapeFailure], ...]:
        """Return field, path and failure kind of each file."""
        tls = self.tls or TlsConfig()
        rows = (
            ("bearer_token_file", self.bearer_token_file, ScrapeFailure.AUTH),
            ("password_file", self.basic_auth.password_file if self.basic_auth else None, ScrapeFailure.AUTH),
            ("ca_file", tls.ca_file, ScrapeFailure.TLS),
            ("cert_file", tls.cert_file, ScrapeFailure.TLS),
            ("key_file", tls.key_file, ScrapeFailure.TLS),
        )
        return tuple((field, path, kind) for field, path, kind in rows if path is not None)

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield two logins at once, and TLS options that cannot be used."""
        if self.bearer_token_file and self.basic_auth:
            yield ("basic_auth",), "is given beside bearer_token_file; a request carries only one of them"
        if self.tls and self.url.lower().startswith("http://"):
            yield ("tls",), "is given, but the url begins with http://; write https://"
        if self.tls and self.tls.key_file and not self.tls.cert_file:
            yield ("tls", "key_file"), "needs cert_file"


def load_tls(peer: Peer) -> ssl.SSLContext | None:
    """Return the TLS context for a url, None for http. Raise ScrapeError.

    Without `ca_file` it trusts the certificates of the machine, as curl and Prometheus do, not the bundle of `certifi`.
    """
    if urlsplit(peer.url).scheme != "https":
        return None
    tls = peer.tls or TlsConfig()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        text = f"ca_file, cert_file or key_file cannot be used: {error.strerror or error}"
        raise ScrapeError(ScrapeFailure.TLS, text) from error
    if tls.ca_file is not None:
        # As curl does: a file with the server's own certificate is trusted without its issuer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        # The option is explicit: a warning at every connect adds nothing.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return context


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
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        # Drop the cause: a decoding error contains the bytes of the secret.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: {reason}") from None
    if not text:
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is empty")
    return text
