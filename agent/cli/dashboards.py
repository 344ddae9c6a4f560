"""Command `sizewatch dashboards push`: upload of the dashboards by Grafana's HTTP API (Grafana 9 to 13).

Requests: `GET` and `POST /api/folders`, `POST /api/dashboards/db`. Token and password are sent in one header and appear
in no message. A new subcommand is a row of SUBCOMMANDS, a new request a method of GrafanaClient.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import click
from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Timeout
from urllib3.exceptions import HTTPError, NewConnectionError, ProxyError, SSLError, TimeoutError

from agent.cli.arguments import FINE, PATH, make_command, option
from agent.errors import SizewatchError
from agent.http_client.error_text import redact
from agent.http_client.transport import tls_context
from exporters.grafana.dashboard_json import dashboard_json
from exporters.grafana.files import DASHBOARDS, FOLDER
from exporters.render.text import quote_external_text

TIMEOUT = Timeout(connect=5.0, read=30.0)
"""Limits in seconds for connecting and between two bytes of the response."""

MOST_ANSWER_BYTES = 4 * 2**20
MOST_QUOTED = 300
"""Characters of a Grafana response quoted in a message."""

MOST_FOLDERS = 1000
"""Folders per Grafana response. Beyond it a folder may be missed, and Grafana then reports that it exists."""

HINTS: Mapping[int, str] = {
    400: "does somebody else own the dashboard, such as file provisioning?",
    401: "is the token in the token file still valid, and of this Grafana?",
    403: "give its service account the role Editor, or dashboards:create, dashboards:write and folders:create",
    404: "is the address that of Grafana itself, with the path under which it is served?",
    412: "another dashboard has this name or uid; rename it, or choose another folder",
    502: "does Grafana run behind this proxy?",
    503: "is Grafana still starting?",
}
"""Advice per HTTP status."""


class GrafanaError(SizewatchError):
    """Grafana is unreachable or refused a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrafanaCredentials:
    """Credentials and trust of Grafana; secrets are named by file. Either a token, or a user with password.

    The client certificate is for a proxy before Grafana. `client_key_file` is set if the key is not in
    `client_cert_file`.
    """

    token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.username is None) != (self.password_file is None):
            raise GrafanaError("--username: needs --password-file, and that needs it")
        if (self.token_file is None) == (self.username is None):
            raise GrafanaError("--token-file: give it, or --username and --password-file instead")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise GrafanaError("--client-key-file: needs --client-cert-file")
        for name in ("ca_file", "client_cert_file", "client_key_file"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise GrafanaError(f"{option(name)}: {path}: is no file")

    def authorization(self) -> str:
        """Read the files and return the header. Raise GrafanaError without any part of them."""
        if self.token_file is not None:
            return f"Bearer {_token(self.token_file)}"
        assert self.password_file is not None
        password = _read("--password-file", self.password_file).strip("\r\n")
        return f"Basic {base64.b64encode(f'{self.username}:{password}'.encode()).decode()}"

    def client_certificate(self) -> tuple[str, str | None] | None:
        """Return the files of the certificate and of its key, None without a certificate."""
        if self.client_cert_file is None:
            return None
        return str(self.client_cert_file), str(self.client_key_file) if self.client_key_file else None


def _read(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # Without cause: a decoding error holds the bytes of the secret.
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise GrafanaError(f"{name}: {path}: cannot be read: {reason}") from None


def _token(path: Path) -> str:
    token = _read("--token-file", path).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise GrafanaError(f"--token-file: {path}: holds no token: one line, as Grafana shows it once")
    return token


class GrafanaClient:
    """Client of one server. Methods raise GrafanaError, whose text begins with the requested address."""

    def __init__(self, url: str, way_in: GrafanaCredentials) -> None:
        """Check and store Grafana's address, including its path if it has one."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GrafanaError(f"--url: {url}: give an address such as https://grafana.example.com")
        if parts.username or parts.password:
            raise GrafanaError("--url: holds a user; give a service account's token with --token-file instead")
        self._url = url.rstrip("/")
        self._secret = way_in.authorization()
        self._pools = _pools(self._url, way_in)

    def folder(self, title: str) -> str:
        """Return the uid of the folder with this title. Create it if missing."""
        for found in _folders(self._asked("GET", f"/api/folders?limit={MOST_FOLDERS}"), self._url):
            if found.get("title") == title:
                return str(found["uid"])
        return self._uid(self._asked("POST", "/api/folders", {"title": title}), "/api/folders")

    def save(self, model: Mapping[str, Any], folder: str) -> str:
        """Save a dashboard into the folder, replacing an older one. Return its address."""
        body = {
            "dashboard": {**model, "id": None},
            "folderUid": folder,
            "overwrite": True,
            "message": "sizewatch dashboards push",
        }
        result = self._asked("POST", "/api/dashboards/db", body)
        path = result.get("url") if isinstance(result, dict) else None
        if not isinstance(path, str) or quote_external_text(path, MOST_QUOTED) != path:
            raise GrafanaError(f"{self._url}/api/dashboards/db: answered without the dashboard's url: is it Grafana?")
        # The response includes Grafana's own path.
        base = urlsplit(self._url)
        return f"{base.scheme}://{base.netloc}{path}"

    def _uid(self, result: Any, path: str) -> str:
        uid = result.get("uid") if isinstance(result, dict) else None
        if not isinstance(uid, str) or not uid:
            raise GrafanaError(f"{self._url}{path}: answered without a uid: is it Grafana?")
        return uid

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        where = f"{self._url}{path.partition('?')[0]}"
        try:
            result = self._sent(method, path, body)
            try:
                said = result.read(MOST_ANSWER_BYTES, decode_content=True)
            finally:
                result.close()
        except SSLError as error:
            raise GrafanaError(f"{where}: {_tls_reason(error)}") from error
        except ProxyError as error:
            raise GrafanaError(f"{where}: the proxy of the environment cannot be reached, or refused") from error
        except HTTPError as error:
            # A refused connection is a timeout in urllib3's hierarchy.
            is_late = isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError)
            late = f"did not answer within {TIMEOUT.read_timeout:g} s"
            why = late if is_late else "cannot be reached: is the address right, does Grafana run?"
            raise GrafanaError(f"{where}: {why}") from error
        try:
            return _content(where, result, said, self._secret)
        except GrafanaError as problem:
            raise GrafanaError(redact(str(problem), (self._secret,))) from None

    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> BaseHTTPResponse:
        """Send a request and return the response unread, whatever its status. Redirects are not followed."""
        headers = {"Accept": "application/json", "User-Agent": "sizewatch", "Authorization": self._secret}
        return self._pools.request(
            method,
            f"{self._url}{path}",
            json=body,
            headers=headers,
            redirect=False,
            retries=False,
            timeout=TIMEOUT,
            preload_content=False,
        )


def _pools(url: str, way_in: GrafanaCredentials) -> PoolManager:
    """Return connections to Grafana, through the proxy of the environment if there is one. Raise GrafanaError."""
    parts = urlsplit(url)
    ca_file = str(way_in.ca_file) if way_in.ca_file is not None else None
    try:
        tls = tls_context(ca_file, verify=True, client_certificate=way_in.client_certificate())
    except OSError as error:
        text = error.strerror or error
        raise GrafanaError(f"--ca-file, --client-cert-file or --client-key-file: cannot be used: {text}") from error
    proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
    try:
        return ProxyManager(proxy, ssl_context=tls) if proxy else PoolManager(ssl_context=tls)
    except HTTPError as error:
        raise GrafanaError(f"the {parts.scheme}_proxy of the environment is no address of a proxy") from error


def _tls_reason(error: SSLError) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "its certificate cannot be trusted: give its CA with --ca-file"
    return "the TLS handshake failed: does it want --client-cert-file, and does the key fit?"


def _folders(result: Any, url: str) -> list[dict[str, Any]]:
    if not isinstance(result, list) or not all(isinstance(one, dict) and "uid" in one for one in result):
        raise GrafanaError(f"{url}/api/folders: answered no list of folders: is it Grafana?")
    return result


def _content(where: str, result: BaseHTTPResponse, said: bytes, secret: str) -> Any:
    if 300 <= result.status < 400:
        target = result.headers.get("Location", "nowhere")
        plain = len(target) <= MOST_QUOTED and re.fullmatch(r"(https?://[\w.:\[\]-]+)?[\w./~-]*", target, re.ASCII)
        shown = target if plain else "another address"
        raise GrafanaError(f"{where}: leads to {shown}: give the address that Grafana is served at")
    try:
        content = json.loads(said)
    except (ValueError, RecursionError) as error:
        if result.status < 400:
            raise GrafanaError(f"{where}: answered no JSON: is it Grafana?") from error
        content = None
    if result.status >= 400:
        message = content.get("message") if isinstance(content, dict) else None
        # Redacted before truncation: half a secret is a secret.
        words = f" ({quote_external_text(redact(message, (secret,)), MOST_QUOTED)})" if isinstance(message, str) else ""
        hint = HINTS.get(result.status, "look into Grafana's log")
        raise GrafanaError(f"{where}: answered {result.status}{words}: {hint}")
    return content


CREDENTIALS = (
    ("token_file", "FILE", PATH, "holds the token of a service account that may edit dashboards"),
    ("username", "NAME", str, "instead of a token: a user who may edit dashboards"),
    ("password_file", "FILE", PATH, "password of that user"),
    ("ca_file", "FILE", PATH, "CA that signed Grafana's certificate"),
    ("client_cert_file", "FILE", PATH, "client certificate, where a proxy before Grafana wants one"),
    ("client_key_file", "FILE", PATH, "its key, where it is not in that file"),
)


def _push_parameters() -> tuple[click.Parameter, ...]:
    url = click.Option(
        ["--url"], required=True, metavar="URL", help="Grafana's address, such as https://grafana.example"
    )
    credentials = (
        click.Option([option(name)], type=kind, metavar=metavar, help=text) for name, metavar, kind, text in CREDENTIALS
    )
    folder = click.Option(
        ["--folder"], default=FOLDER, metavar="TITLE", help=f"made where there is none (default {FOLDER})"
    )
    return url, *credentials, folder


def _push(options: SimpleNamespace) -> int:
    """Save every dashboard. GrafanaError means exit code 2; dashboards saved before it stay."""
    given = {name: getattr(options, name) for name, *_ in CREDENTIALS}
    grafana = GrafanaClient(options.url, GrafanaCredentials(**given))
    folder = grafana.folder(options.folder)
    for dashboard in DASHBOARDS:
        print(f"{dashboard.title}: {grafana.save(dashboard_json(dashboard), folder)}", flush=True)
    return FINE


SUBCOMMANDS = (
    make_command(
        "push",
        "save the dashboards into a folder of a Grafana, over older ones",
        _push_parameters(),
        _push,
        output="streamed",
    ),
)
