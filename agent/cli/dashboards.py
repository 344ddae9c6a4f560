"""Command `sizewatch dashboards push`: upload of the dashboards by Grafana's HTTP API (Grafana 9 to 13)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urljoin

import click
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from agent.cli.arguments import Exit, Parameters, connection_options, make_command, option, ways_in
from agent.config.peer import Peer
from agent.errors import SizewatchError
from agent.http_client.client import HttpClient, place_of
from exporters.grafana.dashboards import DASHBOARDS, FOLDER, dashboard_json

TIMEOUT_SECONDS = 30.0
MOST_FOLDERS = 1000
"""Folders per Grafana response. Beyond it a folder may be missed, and Grafana then reports that it exists."""

T = TypeVar("T")


class Folder(BaseModel):
    uid: str = Field(min_length=1)
    title: str = ""


class SavedDashboard(BaseModel):
    url: str = Field(pattern=r"^/[!-~]{1,300}$")
    """Path on the server, with Grafana's own path."""


def _ask(client: HttpClient, kind: type[T], url: str, body: Mapping[str, Any] | None = None) -> T:
    """Return Grafana's answer, of a POST with a body. Raise ScrapeError or SizewatchError."""
    place = url.partition("?")[0]
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    method, content = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
    with client.exchange(method, url, headers, content) as response:
        if response.status_code != 200:
            hint = "is this Grafana's own address, and may the token or user edit dashboards? Its log says more"
            raise SizewatchError(f"{place}: answered {response.status_code}: {hint}")
        answer = client.read(response)
    try:
        return TypeAdapter(kind).validate_json(answer)
    except ValidationError as error:
        raise SizewatchError(f"{place}: gave another answer than Grafana does: is it Grafana?") from error


def _push_parameters() -> Parameters:
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
        raise SizewatchError("--token-file: give it, or --username and --password-file instead")
    client = HttpClient(Peer.read(dict(url=options.url, timeout_seconds=TIMEOUT_SECONDS, **ways_in(options))))
    client.load()
    url = place_of(options.url).rstrip("/")
    folders = _ask(client, list[Folder], f"{url}/api/folders?limit={MOST_FOLDERS}")
    uid = next((folder.uid for folder in folders if folder.title == options.folder), None)
    if uid is None:
        uid = _ask(client, Folder, f"{url}/api/folders", {"title": options.folder}).uid
    for dashboard in DASHBOARDS:
        model = {"dashboard": {**dashboard_json(dashboard), "id": None}, "folderUid": uid, "overwrite": True}
        saved = _ask(client, SavedDashboard, f"{url}/api/dashboards/db", model)
        print(f"{dashboard.title}: {urljoin(url, saved.url)}", flush=True)
    return Exit.FINE


SUBCOMMANDS = (
    make_command("push", "save the dashboards into a folder of a Grafana, over older ones", _push_parameters(), _push),
)
