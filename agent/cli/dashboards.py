"""Command `sizewatch dashboards push`: upload of the dashboards by Grafana's HTTP API (Grafana 9 to 13).

Requests: `GET` and `POST /api/folders`, `POST /api/dashboards/db`. Token and password are sent in one header and appear
in no message. A new subcommand is a row of SUBCOMMANDS, a new request a method of GrafanaClient.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import click

from agent.cli.arguments import FINE, PATH, make_command, option
from agent.errors import ConfigError, ScrapeError, ScrapeFailure, SizewatchError
from agent.http_client.client import HttpClient
from agent.http_client.errors import place_of
from agent.http_client.options import TargetOptions
from exporters.grafana.dashboard_json import dashboard_json
from exporters.grafana.files import DASHBOARDS, FOLDER
from exporters.render.text import quote_external_text

TIMEOUT_SECONDS = 30.0
MOST_ANSWER_BYTES = 4 * 2**20
MOST_PATH = 300
"""Characters of a dashboard's path in Grafana that is printed."""

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

OTHER_HINT = "look into Grafana's log"

REASONS: Mapping[ScrapeFailure, str] = {
    ScrapeFailure.CONNECT: "cannot be reached: is the address right, does Grafana run?",
    ScrapeFailure.TIMEOUT: f"did not answer within {TIMEOUT_SECONDS:g} s",
    ScrapeFailure.TLS: "TLS failed: give its CA with --ca-file, or what it wants with --client-cert-file",
}


class GrafanaError(SizewatchError):
    """Grafana is unreachable or refused a request."""


class GrafanaClient:
    """Client of one server. Methods raise GrafanaError, whose text begins with the requested address."""

    def __init__(self, options: TargetOptions) -> None:
        """Read the files with credentials. `url` is Grafana's address, including its path if it has one."""
        self._url = place_of(options.url).rstrip("/")
        self._client = HttpClient(options)
        try:
            self._client.load_if_changed()
        except ScrapeError as error:
            raise GrafanaError(_with_option_names(error.text)) from None

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
        if not isinstance(path, str) or quote_external_text(path, MOST_PATH) != path:
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
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        try:
            with self._client.send(self._client.prepare(method, f"{self._url}{path}", headers, content)) as response:
                status = response.status_code
                answer = self._client.read(response) if status < 300 else b""
        except ScrapeError as error:
            raise GrafanaError(
                f"{where}: {REASONS.get(error.kind) or error.text.removeprefix(self._client.place).lstrip(': ')}"
            ) from error
        if 300 <= status < 400:
            raise GrafanaError(f"{where}: redirects: give the address that Grafana is served at")
        if status >= 400:
            raise GrafanaError(f"{where}: answered {status}: {HINTS.get(status, OTHER_HINT)}")
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise GrafanaError(f"{where}: answered no JSON: is it Grafana?") from error


def _folders(result: Any, url: str) -> list[dict[str, Any]]:
    if not isinstance(result, list) or not all(isinstance(folder, dict) and "uid" in folder for folder in result):
        raise GrafanaError(f"{url}/api/folders: answered no list of folders: is it Grafana?")
    return result


def _with_option_names(problem: str) -> str:
    """Return the text of a problem that begins with the name of the option in place of that of the field."""
    field = re.match(r"\w*", problem)[0]  # type: ignore[index]
    return ("--token-file" if field == "bearer_token_file" else option(field)) + problem[len(field) :]


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
    if (options.token_file is None) == (options.username is None):
        raise GrafanaError("--token-file: give it, or --username and --password-file instead")
    files: dict[str, Any] = {
        name: str(path) for name, _, kind, _ in CREDENTIALS if kind is PATH and (path := getattr(options, name))
    }
    token_file = files.pop("token_file", None)
    try:
        target = TargetOptions(
            url=options.url,
            timeout_seconds=TIMEOUT_SECONDS,
            max_bytes=MOST_ANSWER_BYTES,
            bearer_token_file=token_file,
            username=options.username,
            **files,
        )
    except ConfigError as error:
        raise GrafanaError(_with_option_names(error.problems[0])) from None
    grafana = GrafanaClient(target)
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
