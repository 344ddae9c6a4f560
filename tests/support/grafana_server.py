"""A small Grafana for tests: the part of its HTTP API about folders and dashboards, as its documentation has it.

Owns the server and what it keeps. It checks tokens, uids and versions as Grafana does, and can be told to answer otherwise.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import LoopbackServer, Quiet, served

PASSWORD = "c4n4ry-p4ssword"
LOGIN = f"Basic {base64.b64encode(f'admin:{PASSWORD}'.encode()).decode()}"
TOKEN = "glsa_0123456789abcdef0123456789abcdef_01234567"


class GrafanaServer(LoopbackServer):
    """`folders` by uid, `saved` dashboards by uid with what was sent beside them; `otherwise`: status, headers and body
    instead of the answer, by path."""

    def __init__(self, path: str) -> None:
        super().__init__(_Handler)
        self.path = path
        self.folders: dict[str, str] = {}
        self.saved: dict[str, dict[str, Any]] = {}
        self.otherwise: dict[str, tuple[int, Mapping[str, str], bytes]] = {}

    @property
    def url(self) -> str:
        return f"{super().url}{self.path}"


class _Handler(Quiet, BaseHTTPRequestHandler):
    server: GrafanaServer

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        path = self.path.partition("?")[0].removeprefix(self.server.path)
        if path in self.server.otherwise:
            self._send(*self.server.otherwise[path])
        elif self.headers["Authorization"] not in (f"Bearer {TOKEN}", LOGIN):
            self._json(401, {"message": "Invalid API key"})
        elif path == "/api/folders":
            self._folders(body)
        elif path == "/api/dashboards/db" and body is not None:
            self._save(body)
        else:
            self._json(404, {"message": "Not found"})

    def _folders(self, body: Any) -> None:
        folders = self.server.folders
        if body is None:
            self._json(200, [{"id": n, "uid": uid, "title": title} for n, (uid, title) in enumerate(folders.items())])
            return
        uid = body.get("uid") or f"f{len(folders)}"
        if uid in folders:
            self._json(409, {"message": "a folder with the same uid exists"})
            return
        folders[uid] = body["title"]
        self._json(200, {"id": len(folders), "uid": uid, "title": body["title"], "url": f"/dashboards/f/{uid}"})

    def _save(self, body: dict[str, Any]) -> None:
        model, uid = body["dashboard"], body["dashboard"]["uid"]
        if body["folderUid"] not in self.server.folders:
            self._json(400, {"message": "folder not found"})
        elif uid in self.server.saved and not body.get("overwrite"):
            self._json(412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"})
        else:
            version = self.server.saved.get(uid, {}).get("version", 0) + 1
            self.server.saved[uid] = {**body, "version": version}
            url = f"{self.server.path}/d/{uid}/{model['title'].lower().replace(' ', '-')}"
            self._json(200, {"id": 1, "uid": uid, "url": url, "status": "success", "version": version})

    def _json(self, status: int, body: Any) -> None:
        self._send(status, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def grafana(path: str = "") -> Iterator[GrafanaServer]:
    """A running one, served under a path if given."""
    server = GrafanaServer(path)
    with served(server):
        yield server
