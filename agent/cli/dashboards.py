"""Command `sizewatch dashboards push`: upload of the dashboards by Grafana's HTTP API (Grafana 9 to 13).

Requests: `GET` and `POST /api/folders`, `POST /api/dashboards/db`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from agent.cli.arguments import FINE, connection_options, make_command, option, ways_in
from agent.config.peer import Peer
from agent.errors import SizewatchError
from agent.http_client.client import HttpClient
from agent.http_client.errors import place_of
from exporters.grafana.dashboard_json import dashboard_json
from exporters.grafana.files import DASHBOARDS, FOLDER

TIMEOUT_SECONDS = 30.0
MOST_FOLDERS = 1000
"""Folders per Grafana response. Beyond it a folder may be missed, and Grafana then reports that it exists."""

T = TypeVar("T")


class GrafanaError(SizewatchError):
    """Grafana refused a request, or something else answered."""


class Folder(BaseModel):
    uid: str = Field(min_length=1)
    title: str = ""


class SavedDashboard(BaseModel):
    url: str = Field(pattern=r"^/[!-~]{1,300}$")
    """Path on the server, with Grafana's own path."""


class GrafanaClient:
    """Client of one server. Methods raise ScrapeError, or GrafanaError for an answer that Grafana does not give."""

    def __init__(self, options: Peer) -> None:
        """Read the files with credentials. `url` is Grafana's address, including its path if it has one."""
        self._url = place_of(options.url).rstrip("/")
        self._client = HttpClient(options)
        self._client.load_if_changed()

    def folder(self, title: str) -> str:
        """Return the uid of the folder with this title. Create it if missing."""
        for folder in self._ask(list[Folder], "GET", f"/api/folders?limit={MOST_FOLDERS}"):
            if folder.title == title:
                return folder.uid
        return self._ask(Folder, "POST", "/api/folders", {"title": title}).uid

    def save(self, model: Mapping[str, Any], folder: str) -> str:
        """Save a dashboard into the folder, replacing an older one. Return its address."""
        dashboard = {"dashboard": {**model, "id": None}, "folderUid": folder, "overwrite": True}
        saved = self._ask(SavedDashboard, "POST", "/api/dashboards/db", dashboard)
        base = urlsplit(self._url)
        return f"{base.scheme}://{base.netloc}{saved.url}"

    def _ask(self, kind: type[T], method: str, path: str, body: Mapping[str, Any] | None = None) -> T:
        where = f"{self._url}{path.partition('?')[0]}"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        with self._client.exchange(method, f"{self._url}{path}", headers, content) as response:
            status = response.status_code
            answer = self._client.read(response) if status == 200 else b""
        if status != 200:
            hint = "is this Grafana's own address, and may the token or user edit dashboards? Its log says more"
            raise GrafanaError(f"{where}: answered {status}: {hint}")
        try:
            return TypeAdapter(kind).validate_json(answer)
        except ValidationError as error:
            raise GrafanaError(f"{where}: gave another answer than Grafana does: is it Grafana?") from error


def _push_parameters() -> tuple[click.Parameter, ...]:
    token = "holds the token of a service account that may edit dashboards"
    return (
        option("--url", "URL", "Grafana's address, such as https://grafana.example", required=True),
        option("--token-file bearer_token_file", "FILE", token, click.Path()),
        *(way for way in connection_options("Grafana") if way.name not in ("bearer_token_file", "server_name")),
        option("--folder", "TITLE", f"made where there is none (default {FOLDER})", default=FOLDER),
    )


def _push(options: SimpleNamespace) -> int:
    """Save every dashboard. An error means exit code 2; dashboards saved before it stay."""
    if options.bearer_token_file is None and options.username is None:
        raise GrafanaError("--token-file: give it, or --username and --password-file instead")
    grafana = GrafanaClient(Peer.of(url=options.url, timeout_seconds=TIMEOUT_SECONDS, **ways_in(options)))
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
    ),
)
