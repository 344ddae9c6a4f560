"""Options of a connection, and its credentials and certificates from files. Secrets appear in no message."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import requests
import urllib3

from agent.errors import ConfigError, ScrapeError, ScrapeFailure
from rules.light_dataclass import light_dataclass

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
"""A hundred times the page of a busy engine."""

SECRET_NAME = re.compile(r"token|key|secret|passw|pwd|auth|credential|sig|session|jwt|bearer|code", re.IGNORECASE)
"""Part of the name of a query parameter that holds a secret."""

SHORTEST_HIDDEN = 8
_WORD_OR_NUMBER = re.compile(r"[a-z_:]*|[0-9.]*")


@light_dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Options of a connection. Raises ConfigError with every problem; opens neither file nor socket.

    `timeout_seconds` bounds a whole exchange, `max_bytes` the decompressed body. Secrets are names of files.
    `server_name` is the name in the certificate if it is not the host of `url`.
    """

    url: str
    timeout_seconds: float = 10.0
    max_bytes: int = DEFAULT_MAX_BYTES
    ca_file: str | None = None
    insecure_skip_verify: bool = False
    bearer_token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        problems = tuple(text for wrong, text in self.find_problems() if wrong)
        if problems:
            raise ConfigError(problems)

    def find_problems(self) -> Iterator[tuple[bool, str]]:
        """Yield for each check whether it fails, and its text."""
        yield from _url_problems(self.url)
        yield not self.timeout_seconds > 0, "timeout_seconds: must be above 0"
        yield not self.max_bytes > 0, "max_bytes: must be above 0"
        halves = (self.username is None) != (self.password_file is None)
        yield halves, "username: basic authentication needs username and password_file together"
        twice = self.bearer_token_file is not None and self.username is not None
        yield twice, "bearer_token_file: give either this or username and password_file"
        keyless = self.client_key_file is not None and self.client_cert_file is None
        yield keyless, "client_key_file: needs client_cert_file"


def _url_problems(url: str) -> Iterator[tuple[bool, str]]:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError as error:
        yield True, f"url: is no address that can be read: {error}"
        return
    yield parts.scheme not in ("http", "https"), "url: must begin with http:// or https://"
    yield not parts.hostname, "url: names no host"
    yield "@" in parts.netloc, "url: must hold no user or password; use username and password_file"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return
    try:
        requests.Request("GET", url).prepare()
        parts.hostname.encode("idna")
    except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError):
        # The text of the library may contain the query.
        yield True, "url: names a host that no host can be called"


def list_files(options: TargetOptions) -> tuple[tuple[str, str, ScrapeFailure], ...]:
    """Return field, path and failure kind of each file in the options."""
    rows = (
        ("bearer_token_file", options.bearer_token_file, ScrapeFailure.AUTH),
        ("password_file", options.password_file, ScrapeFailure.AUTH),
        ("ca_file", options.ca_file, ScrapeFailure.TLS),
        ("client_cert_file", options.client_cert_file, ScrapeFailure.TLS),
        ("client_key_file", options.client_key_file, ScrapeFailure.TLS),
    )
    return tuple((field, path, kind) for field, path, kind in rows if path is not None)


def load_tls(options: TargetOptions) -> ssl.SSLContext | None:
    """Return the TLS context for a url, None for http. Raise ScrapeError.

    Without `ca_file` it trusts the certificates of the machine, as curl and Prometheus do, not the bundle of `certifi`.
    """
    if urlsplit(options.url).scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.client_cert_file is not None:
            context.load_cert_chain(options.client_cert_file, options.client_key_file)
    except OSError as error:
        text = f"ca_file, client_cert_file or client_key_file cannot be used: {error.strerror or error}"
        raise ScrapeError(ScrapeFailure.TLS, text) from error
    if options.ca_file is not None:
        # As curl does: a file with the server's own certificate is trusted without its issuer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if options.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        # The option is explicit: a warning at every connect adds nothing.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return context


def authorization(options: TargetOptions) -> dict[str, str]:
    """Return the Authorization header, or an empty dict without credentials. Raise ScrapeError."""
    if options.bearer_token_file is not None:
        return {"Authorization": f"Bearer {header_secret('bearer_token_file', options.bearer_token_file)}"}
    if options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{_secret('password_file', options.password_file)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def hidden_in_bodies(credentials: Mapping[str, str], url: str) -> tuple[bytes, ...]:
    """Return the secrets of a request that a response may repeat: of its headers, and of its query by name.

    Short ones, words and numbers are left out: to hide the password `vllm` would change a page.
    """
    secrets = {value for name, value in parse_qsl(urlsplit(url).query) if SECRET_NAME.search(name)}
    for header in credentials.values():
        scheme, _, value = header.partition(" ")
        # The padding of base64 is often quoted.
        secrets.add((value or scheme).rstrip("="))
        if scheme == "Basic":
            secrets.add(base64.b64decode(value).decode().partition(":")[2])
    return tuple(s.encode() for s in secrets if len(s) >= SHORTEST_HIDDEN and not _WORD_OR_NUMBER.fullmatch(s))


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
