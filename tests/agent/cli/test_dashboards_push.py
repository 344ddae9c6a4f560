"""`sizewatch dashboards push` against a server that speaks Grafana's API."""

import base64
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import trustme
from loopback import LoopbackServer, Quiet, served

from agent.cli import main
from exporters.grafana.dashboards import DASHBOARDS, dashboard_json

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


Captured = pytest.CaptureFixture[str]

JSON = {"Content-Type": "application/json"}


def token_file(folder: Path, text: str = f"{TOKEN}\n") -> Path:
    path = folder / "token"
    path.write_text(text, encoding="utf-8")
    return path


def push(folder: Path, url: str, *more: str, token: str = f"{TOKEN}\n") -> int:
    return main.main(["dashboards", "push", "--url", url, "--token-file", str(token_file(folder, token)), *more])


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


def test_second_push_replaces_the_first(tmp_path: Path) -> None:
    with grafana() as server:
        server.folders["abc"] = "LLM serving"
        for _ in range(2):
            assert push(tmp_path, server.url, "--folder", "LLM serving") == 0
        assert server.folders == {"abc": "LLM serving"}
        assert {one["version"] for one in server.saved.values()} == {2}
        assert {one["folderUid"] for one in server.saved.values()} == {"abc"}


def test_grafana_under_a_path_is_found(tmp_path: Path, capsys: Captured) -> None:
    with grafana("/grafana") as server:
        assert push(tmp_path, f"{server.url}/") == 0
        assert len(server.saved) == len(DASHBOARDS)
        assert f"{server.url}/d/sizewatch-tier/" in capsys.readouterr().out


def test_netrc_never_replaces_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    with grafana() as server:
        assert push(tmp_path, server.url) == 0


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n", "tökén\n"])
def test_file_without_a_token_is_refused(tmp_path: Path, capsys: Captured, text: str) -> None:
    assert push(tmp_path, "http://127.0.0.1:9", token=text) == 2
    told(capsys, f"auth: bearer_token_file {tmp_path / 'token'}: ")


def test_nobody_at_the_address(tmp_path: Path, capsys: Captured) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    assert push(tmp_path, f"http://127.0.0.1:{port}") == 2
    told(capsys, f"connect: http://127.0.0.1:{port}: connection refused")


Otherwise = tuple[int, dict[str, str], bytes]

TROUBLES: dict[str, tuple[str, Otherwise, str]] = {
    "a login page": ("/api/folders", (302, {"Location": "/login"}, b""), "answered 302: is this Grafana"),
    "another program": ("/api/folders", (200, {}, b"<html>"), "gave another answer than Grafana does"),
    "no folders": ("/api/folders", (200, JSON, b"{}"), "gave another answer than Grafana does"),
    "no right": ("/api/folders", (403, JSON, b'{"message": "denied"}'), "answered 403: is this Grafana's own"),
    "a gateway": ("/api/folders", (502, {}, b"<html>"), "answered 502: is this Grafana's own address"),
    "provisioned": (
        "/api/dashboards/db",
        (400, JSON, b'{"message": "Cannot save provisioned dashboard"}'),
        "answered 400: is this Grafana's own address, and may the token or user edit dashboards? Its log says more",
    ),
    "no url": ("/api/dashboards/db", (200, JSON, b'{"status": "success"}'), "gave another answer than Grafana does"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_odd_answers_name_place_and_next_step(tmp_path: Path, capsys: Captured, trouble: str) -> None:
    path, otherwise, words = TROUBLES[trouble]
    with grafana() as server:
        server.otherwise[path] = otherwise
        assert push(tmp_path, server.url) == 2
        told(capsys, f"{server.url}{path}: {words}")


def test_what_was_saved_before_is_said(tmp_path: Path, capsys: Captured) -> None:
    class Once(GrafanaServer):
        """Fails from the third dashboard on."""

        def finish_request(self, request: Any, client_address: Any) -> None:
            if len(self.saved) == 2:
                self.otherwise["/api/dashboards/db"] = (503, JSON, json.dumps({"message": "busy"}).encode())
            super().finish_request(request, client_address)

    with grafana() as server:
        server.__class__ = Once
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


def secured(server: GrafanaServer, folder: Path) -> tuple[str, ssl.SSLContext, trustme.CA]:
    """Serve over TLS; its address, and the authority, whose certificate is ca.pem."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server.url.replace("http://", "https://"), context, authority


def test_client_certificate_opens_a_proxy(tmp_path: Path, capsys: Captured) -> None:
    ca, ours = str(tmp_path / "ca.pem"), tmp_path / "ours.pem"
    with grafana() as server:
        url, context, authority = secured(server, tmp_path)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        authority.issue_cert("sizewatch").private_key_and_cert_chain_pem.write_to_path(str(ours))
        assert push(tmp_path, url, "--ca-file", ca) == 2
        assert url in capsys.readouterr().err
        assert server.saved == {}
        assert push(tmp_path, url, "--ca-file", ca, "--client-cert-file", str(ours)) == 0
        assert len(server.saved) == len(DASHBOARDS)


def test_certificate_is_trusted_with_its_ca(tmp_path: Path, capsys: Captured) -> None:
    with grafana() as server:
        url, *_ = secured(server, tmp_path)
        assert push(tmp_path, url) == 2
        told(capsys, f"tls: {url}: ")
        assert push(tmp_path, url, "--ca-file", str(tmp_path / "ca.pem")) == 0
        assert len(server.saved) == len(DASHBOARDS)
    assert push(tmp_path, url, "--ca-file", str(tmp_path / "no.pem")) == 2
    assert f"({tmp_path / 'no.pem'}) cannot be used: No such file" in capsys.readouterr().err
