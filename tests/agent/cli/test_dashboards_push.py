"""`sizewatch dashboards push` against a server that speaks Grafana's API."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hostile_store import Tls
from loopback import LoopbackServer, Quiet, give, served

from agent.cli import main
from exporters.grafana.dashboards import DASHBOARDS, dashboard_json

PASSWORD = "c4n4ry-p4ssword"
LOGIN = f"Basic {base64.b64encode(f'admin:{PASSWORD}'.encode()).decode()}"
TOKEN = "glsa_0123456789abcdef0123456789abcdef_01234567"


class GrafanaServer(LoopbackServer):
    """`folders` by uid, and `saved` dashboards by uid, at most so many; `otherwise`: another answer by path."""

    def __init__(self, path: str) -> None:
        super().__init__(_Handler)
        self.path, self.most_saved = path, 100
        self.folders: dict[str, str] = {}
        self.saved: dict[str, dict[str, Any]] = {}
        self.otherwise: dict[str, tuple[int, bytes]] = {}

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
        status, told = 404, b'{"message": "Not found"}'
        if path in self.server.otherwise:
            status, told = self.server.otherwise[path]
        elif self.headers["Authorization"] not in (f"Bearer {TOKEN}", LOGIN):
            status, told = 401, b'{"message": "Invalid API key"}'
        elif path == "/api/folders":
            status, told = 200, json.dumps(self._folders(body)).encode()
        elif path == "/api/dashboards/db" and body is not None:
            status, told = self._save(body)
        give(self, told, status, Location="/login")

    def _folders(self, body: Any) -> Any:
        folders = self.server.folders
        if body is None:
            return [{"id": n, "uid": uid, "title": title} for n, (uid, title) in enumerate(folders.items())]
        uid = f"f{len(folders)}"
        folders[uid] = body["title"]
        return {"id": len(folders), "uid": uid, "title": body["title"], "url": f"/dashboards/f/{uid}"}

    def _save(self, body: dict[str, Any]) -> tuple[int, bytes]:
        saved, model, uid = self.server.saved, body["dashboard"], body["dashboard"]["uid"]
        assert body["folderUid"] in self.server.folders
        if len(saved) == self.server.most_saved:
            return 503, b'{"message": "busy"}'
        if uid in saved and not body.get("overwrite"):
            return 412, b'{"message": "The dashboard has been changed by someone else"}'
        version = saved.get(uid, {}).get("version", 0) + 1
        saved[uid] = {**body, "version": version}
        url = f"{self.server.path}/d/{uid}/{model['title'].lower().replace(' ', '-')}"
        return 200, json.dumps({"id": 1, "uid": uid, "url": url, "status": "success", "version": version}).encode()


@contextmanager
def grafana(path: str = "") -> Iterator[GrafanaServer]:
    """A running one, served under a path if given."""
    server = GrafanaServer(path)
    with served(server):
        yield server


Captured = pytest.CaptureFixture[str]


def push(folder: Path, url: str, *more: str) -> int:
    (folder / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    return main.main(["dashboards", "push", "--url", url, "--token-file", str(folder / "token"), *more])


def told(capsys: Captured, prefix: str) -> str:
    """The one line of the complaint; no secret is in it."""
    out, err = capsys.readouterr()
    assert TOKEN not in out + err
    assert err.count("\n") == 1
    assert err.startswith(f"sizewatch dashboards: {prefix}")
    return err


def test_dashboards_are_saved_into_a_new_folder(tmp_path: Path, capsys: Captured) -> None:
    with grafana() as server:
        assert push(tmp_path, server.url) == 0
        assert list(server.folders.values()) == ["sizewatch"]
        assert [one["dashboard"] for one in server.saved.values()] == [
            {**dashboard_json(one), "id": None} for one in DASHBOARDS
        ]
        assert {one["folderUid"] for one in server.saved.values()} == set(server.folders)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(DASHBOARDS)
        assert lines[0] == f"sizewatch: Fleet: {server.url}/d/sizewatch-fleet/sizewatch:-fleet"


def test_second_push_replaces_the_first(tmp_path: Path, capsys: Captured) -> None:
    with grafana("/under/a/path") as server:
        server.folders["abc"] = "LLM serving"
        for _ in range(2):
            assert push(tmp_path, f"{server.url}/", "--folder", "LLM serving") == 0
            assert f"{server.url}/d/sizewatch-tier/" in capsys.readouterr().out
        assert server.folders == {"abc": "LLM serving"}
        assert {one["version"] for one in server.saved.values()} == {2}
        assert {one["folderUid"] for one in server.saved.values()} == {"abc"}


FOLDERS, BOARDS = "/api/folders", "/api/dashboards/db"
OWN = "is this Grafana's own address"


@pytest.mark.parametrize(
    ("path", "status", "body", "words"),
    [
        (FOLDERS, 302, b"", "answered 302: is this Grafana"),
        (FOLDERS, 200, b"<html>", "gave another answer than Grafana does"),
        (FOLDERS, 200, b"{}", "gave another answer than Grafana does"),
        (FOLDERS, 403, b'{"message": "denied"}', f"answered 403: {OWN}"),
        (FOLDERS, 502, b"<html>", f"answered 502: {OWN}"),
        (
            BOARDS,
            400,
            b'{"message": "no"}',
            f"answered 400: {OWN}, and may the token or user edit dashboards? Its log ",
        ),
        (BOARDS, 200, b'{"status": "success"}', "gave another answer than Grafana does"),
    ],
)
def test_odd_answers_name_place_and_next_step(
    tmp_path: Path, capsys: Captured, path: str, status: int, body: bytes, words: str
) -> None:
    with grafana() as server:
        server.otherwise[path] = (status, body)
        assert push(tmp_path, server.url) == 2
        told(capsys, f"{server.url}{path}: {words}")


def test_what_was_saved_before_is_said(tmp_path: Path, capsys: Captured) -> None:
    with grafana() as server:
        server.most_saved = 2
        assert push(tmp_path, server.url) == 2
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 2
        assert "answered 503: " in err


def test_password_works_instead_of_a_token(tmp_path: Path, capsys: Captured) -> None:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n", encoding="utf-8")
    with grafana() as server:
        words = ["dashboards", "push", "--url", server.url, "--username", "admin", "--password-file", str(password)]
        assert main.main(words) == 0
        assert len(server.saved) == len(DASHBOARDS)
        password.write_text("other", encoding="utf-8")
        capsys.readouterr()
        assert main.main(words) == 2
        assert "other" not in told(capsys, f"{server.url}/api/folders: answered 401")


def test_certificates_open_a_proxy(tmp_path: Path, capsys: Captured) -> None:
    tls = Tls(tmp_path)
    with grafana() as server:
        server.socket = tls.context.wrap_socket(server.socket, server_side=True)
        url = server.url.replace("http://", "https://")
        assert push(tmp_path, url) == 2
        told(capsys, f"tls: {url}: ")
        assert push(tmp_path, url, "--ca-file", str(tmp_path / "no.pem")) == 2
        assert f"({tmp_path / 'no.pem'}) cannot be used: No such file" in capsys.readouterr().err
        ours = ("--client-cert-file", tls.cert_file, "--client-key-file", tls.key_file)
        assert push(tmp_path, url, "--ca-file", tls.ca_file) == 2
        assert (url in capsys.readouterr().err, server.saved) == (True, {})
        assert push(tmp_path, url, "--ca-file", tls.ca_file, *ours) == 0
        assert len(server.saved) == len(DASHBOARDS)
