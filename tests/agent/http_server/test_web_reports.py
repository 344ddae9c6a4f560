"""Weekly reports and runbooks over real HTTP: lists and files, who may read them, and what leads nowhere."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_clients import ask, serving

from agent.http_server.server import WebServer
from agent.reporting import storage

PAGE = b"<html><style>p{color:red}</style><p>report</p></html>" + b" " * 3000
FILES = {
    "report.html": PAGE,
    "report.md": b"# report",
    "report.json": json.dumps({"headline": "Grow <script>alert(1)</script>"}).encode(),
    "plan.next.yaml": b"schema: 1",
    "calibration.json": b'{"calibrations": []}',
}
NAME = "2026-11-23"


@pytest.fixture(name="place")
def reports(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "reports"
    for name in ("2026-11-16", NAME):
        storage.publish(root, name, FILES, keep=26)
    (root / "2026-11-09").mkdir()
    (root / "2026-11-09" / "report.json").write_text("no json")
    return root


@pytest.fixture(name="server")
def served(place: Path) -> Iterator[WebServer]:
    with serving() as server:
        server.pages.reports = place
        yield server


@pytest.mark.parametrize("path", ["/reports/", f"/reports/{NAME}/report.html"])
def test_unreadable_folder_is_said(server: WebServer, place: Path, path: str) -> None:
    server.pages.reports = place / ("x" * 300)
    status, _, body = ask(server, path)
    assert status == 503
    assert body.startswith(b"cannot be read: [Errno 36] File name too long")


@pytest.mark.parametrize(("file", "kind"), storage.FILES.items())
def test_report_files_have_type_and_policy(server: WebServer, file: str, kind: str) -> None:
    status, headers, body = ask(server, f"/reports/{NAME}/{file}")
    assert (status, headers["content-type"], body) == (200, kind, FILES[file])
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cache-control"] == "private, no-cache"
    assert headers["x-content-type-options"] == "nosniff"


def test_list_has_newest_first_without_markup(server: WebServer) -> None:
    status, headers, body = ask(server, "/reports/")
    page = body.decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(r"<h2><a href=\"([^\"]*)\"", page) == [
        f"{name}/report.html" for name in (NAME, "2026-11-16", "2026-11-09")
    ]
    assert "<script" not in page
    assert "Grow &lt;script&gt;" in page
    assert "no headline" in page
    assert "Simulated" not in page


def test_replaced_report_is_listed_again(server: WebServer, place: Path) -> None:
    ask(server, "/reports/")
    told = {"headline": "Keep all", "simulated": True}
    storage.publish(place, NAME, {"report.json": json.dumps(told).encode()}, keep=26)
    assert b"<b>Simulated.</b> Keep all" in ask(server, "/reports/")[2]


def test_latest_is_the_newest(server: WebServer) -> None:
    status, headers, _ = ask(server, "/reports")
    assert (status, headers["location"]) == (302, "reports/")
    for path in ("/reports/latest/report.html", "/reports/latest/", f"/reports/{NAME}/"):
        assert ask(server, path)[::2] == (200, PAGE)
    assert ask(server, "/reports/latest/report.json")[2] == FILES["report.json"]


@pytest.mark.parametrize(
    "path",
    [
        f"/reports/{NAME}/../../secret",
        f"/reports/{NAME}/%2e%2e/%2e%2e/secret",
        "/reports/..%2fsecret",
        "/reports/../secret",
        "/reports/%00",
        f"/reports/{NAME}/report.html/",
        f"/reports/{NAME}/secret",
        f"/reports/{NAME}",
        "/reports/2026-11-30/report.html",
        "/reports/latest/latest/report.html",
        "/reports/latest/secret",
        "/reports//etc/passwd",
        "/reports/2026-11-30/",
    ],
)
def test_unknown_report_is_a_plain_404(server: WebServer, path: str) -> None:
    status, headers, body = ask(server, path)
    assert (status, headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert b"secret" not in body


def test_no_link_leads_out(server: WebServer, place: Path) -> None:
    (place / NAME / "report.md").unlink()
    (place / NAME / "report.md").symlink_to(place.parent / "secret")
    (place / "2026-11-30").symlink_to(place.parent)
    for path in (f"/reports/{NAME}/report.md", "/reports/2026-11-30/report.md"):
        assert ask(server, path)[0] == 404
    assert b"2026-11-30" not in ask(server, "/reports/")[2]


def test_missing_reports_are_told(server: WebServer, place: Path) -> None:
    assert ask(server, f"/reports/{NAME}/report.html", method="DELETE")[0] == 405
    assert ask(server, f"/reports/{NAME}/report.html", method="HEAD")[2] == b""
    server.pages.reports = place / "not there"
    assert b"None was written yet" in ask(server, "/reports/")[2]
    assert ask(server, "/reports/latest/")[::2] == (404, b"there is no such report; /reports/ lists those there are")
    server.pages.reports = None
    status, _, body = ask(server, "/reports/")
    assert (status, body) == (404, b"this agent writes no reports (report.enabled, role)")


@pytest.mark.parametrize(("path", "words"), [("/runbooks/", "Runbooks"), ("/runbooks/KvCacheCascade", "Look at first")])
def test_runbooks_have_the_page_policy(path: str, words: str) -> None:
    with serving() as server:
        status, headers, body = ask(server, path)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert words in body.decode()
        (style,) = re.findall(rb"<style>(.*?)</style>", body, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
        assert f"style-src 'sha256-{digest}';" in headers["content-security-policy"]
        assert b"<script" not in body


def test_unknown_runbook_leads_nowhere() -> None:
    with serving() as server:
        status, headers, _ = ask(server, "/runbooks")
        assert (status, headers["location"]) == (302, "runbooks/")
        for path in ("/runbooks/None", "/runbooks/tierdown", "/runbooks/../runbooks.md", "/runbooks/TierDown/"):
            assert ask(server, path)[0] == 404
