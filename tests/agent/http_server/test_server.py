"""Web server over real sockets: routes, refusals, TLS and its renewal, credentials, a loop that hangs."""

import base64
import gzip
import hashlib
import http.client
import json
import logging
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families
from status_samples import NOW
from waiting import CEILING_SECONDS, free_port, wait_for
from web_clients import STATUS, TOKEN, WELL, ask, issue, raw, serving, trusting, write_web_file

from agent.config.web import Web
from agent.errors import ConfigError
from agent.http_server import pages
from agent.http_server.pages import PROBES
from agent.http_server.server import WebServer
from agent.reporting import storage
from exporters.metrics import exposition
from exporters.status.records import AgentStatus

PAGES = ("/", "/metrics", "/api/status", *PROBES)


@pytest.fixture(scope="module")
def plain() -> Iterator[WebServer]:
    with serving() as server:
        yield server


TYPES = {"/": "text/html", "/metrics": "text/plain; version=0.0.4", "/api/status": "application/json"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "server": "sizewatch",
}


@pytest.mark.parametrize("path", PAGES)
def test_every_route_has_type_and_security_headers(plain: WebServer, path: str) -> None:
    status, headers, body = ask(plain, path)
    assert status == 200
    assert headers["content-type"].removesuffix("; charset=utf-8") == TYPES.get(path, "text/plain")
    assert headers.items() >= HEADERS.items()
    assert body


def test_page_has_own_style_refresh_and_head(plain: WebServer) -> None:
    policy = ask(plain, "/")[1]["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert b'http-equiv="refresh"' in ask(plain, "/")[2]
    assert b'http-equiv="refresh"' not in ask(plain, "/?paused=1")[2]
    status, headers, body = ask(plain, "/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 1000
    assert ask(plain, "/metrics", method="HEAD")[::2] == (200, b"")


def test_json_and_metrics_are_the_status(plain: WebServer) -> None:
    assert json.loads(ask(plain, "/api/status")[2])["now"] == NOW
    page = ask(plain, "/metrics")[2]
    assert page == b"".join(exposition.render_parts(STATUS, "")[0])
    assert "sizewatch_target_up" in {family.name for family in text_string_to_metric_families(page.decode())}


def test_openmetrics_and_gzip_are_sent_when_accepted(plain: WebServer) -> None:
    _, headers, body = ask(
        plain, "/metrics", Accept="application/openmetrics-text;version=1.0.0", Accept_Encoding="gzip"
    )
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert (headers["content-encoding"], headers["transfer-encoding"]) == ("gzip", "chunked")
    assert headers["vary"] == "Accept, Accept-Encoding"
    assert gzip.decompress(body) == b"".join(exposition.render_parts(STATUS, "application/openmetrics-text")[0])


def test_broken_metrics_are_no_whole_page(
    plain: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(status: AgentStatus, accept: str) -> tuple[Iterator[bytes], str]:
        return (b"%d\n" % (1 // number) for number in (1, 0)), "text/plain"

    monkeypatch.setattr(exposition, "render_parts", fail)
    with pytest.raises(http.client.IncompleteRead):
        ask(plain, "/metrics")
    monkeypatch.undo()
    assert wait_for(lambda: "ZeroDivisionError" in caplog.text)
    assert json.loads(ask(plain, "/api/status")[2])["agent"]["web_errors"] == 1


def test_answers_hide_the_serving_software(plain: WebServer) -> None:
    for request in (b"GET / HTTP/1.0\r\n\r\n", b"GET /no HTTP/1.0\r\n\r\n", b"nonsense\r\n\r\n"):
        head = raw(plain, request).partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 ")
        assert not [word for word in (b"uvicorn", b"starlette", b"h11", b"python") if word in head]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(plain: WebServer, method: str) -> None:
    status, headers, _ = ask(plain, "/metrics", method=method)
    assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_unknown_path_is_not_found(plain: WebServer) -> None:
    for path in ("/nothing", "/metrics/", "/../etc/passwd", "/%2e%2e/", "/static/app.js", "//metrics"):
        assert ask(plain, path)[0] == 404
    for rule in ("None", "tierdown", "../runbooks.md", "TierDown/"):
        assert ask(plain, f"/runbooks/{rule}")[0] == 404
    status, headers, _ = ask(plain, "/runbooks")
    assert (status, headers["location"]) == (302, "runbooks/")


def test_foreign_host_name_reads_nothing() -> None:
    with serving(hosts=("monitor.internal",)) as server:
        for host in ("evil.example", "localhost.evil.example:19095", "127.0.0.1.evil.example", "[", "localhost@evil"):
            assert ask(server, "/metrics", Host=host)[0] == 421, host
        for host in ("localhost", "LOCALHOST:19095", "x.localhost", "127.0.0.1", "[::1]:19095", "monitor.internal."):
            assert ask(server, "/metrics", Host=host)[0] == 200, host
        assert ask(server, "/healthz", Host="evil.example")[0] == 200
    with serving(listen=":0") as server:
        assert ask(server, "/metrics", Host="monitor.example")[0] == 200


@pytest.mark.parametrize("key", ["listen", "probe_listen"])
def test_address_in_use_names_its_key(plain: WebServer, key: str) -> None:
    keys = {"listen": f"127.0.0.1:{free_port()}", key: f"127.0.0.1:{plain.port}"}
    second = WebServer(Web.model_construct(**keys), lambda: STATUS, lambda: WELL)
    try:
        with pytest.raises(ConfigError, match=rf"web.{key}: cannot listen on 127.0.0.1:{plain.port}: address already"):
            second.start()
    finally:
        second.stop()
    assert ask(plain, "/healthz")[0] == 200


def test_agent_is_unready_before_a_cycle() -> None:
    with serving(lambda: None, lambda: None) as server:
        assert ask(server, "/healthz")[0] == 200
        for path in ("/readyz", "/metrics", "/api/status"):
            assert ask(server, path)[0] == 503
        status, headers, body = ask(server, "/")
        assert (status, headers["refresh"]) == (503, "2")
        assert b"first cycle" in body


def test_stopped_loop_is_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"no cycle has succeeded for 301 s, the agent's log says why\n"
    with serving(seconds_since_cycle=lambda: 301.0) as server:
        for path in PROBES:
            assert ask(server, path)[::2] == (503, text)
    monkeypatch.setattr(pages, "STUCK_SECONDS", 0.0)
    with serving(lambda: None, lambda: None) as server:
        assert ask(server, "/healthz")[::2] == (503, text.replace(b"301", b"0"))


def test_failing_page_shows_no_traceback(caplog: Any) -> None:
    results: list[AgentStatus | Exception] = [RuntimeError("secret detail"), STATUS]

    def source() -> AgentStatus:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    with serving(source) as server, caplog.at_level(logging.ERROR):
        status, headers, body = ask(server, "/metrics")
        assert (status, body) == (500, b"Internal Server Error")
        assert headers["x-content-type-options"] == "nosniff"
        assert wait_for(lambda: "secret detail" in caplog.text)
        assert json.loads(ask(server, "/api/status")[2])["agent"]["web_errors"] == 1


def test_hanging_loop_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.http_server.pages.BUSY_SECONDS", 0.05)
    goes_on, calls = threading.Event(), []

    def source() -> AgentStatus:
        calls.append(1)
        goes_on.wait()
        return STATUS

    with serving(source) as server:
        for _ in range(10):
            for path in ("/", "/metrics", "/api/status"):
                status, _, body = ask(server, path)
                assert (status, body) == (503, b"no answer from the agent's loop")
        assert [ask(server, path)[0] for path in (*PROBES, "/runbooks/")] == [200, 200, 200]
        assert calls == [1], "one thread waits, whatever the number of requests"
        goes_on.set()
        monkeypatch.undo()
        assert ask(server, "/metrics")[0] == 200


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_tls_serves_every_page(authority: trustme.CA, tmp_path: Path) -> None:
    issue(authority, tmp_path)
    file = write_web_file(tmp_path, cert_file="server.pem", key_file="server.key")
    with serving(config_file=file) as server:
        assert server.url.startswith("https://127.0.0.1:")
        for path in PAGES:
            assert ask(server, path, tls=trusting(authority))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(server, "/", tls=ssl.create_default_context())
        # No certificate is for a stranger's name.
        assert ask(server, "/", tls=trusting(authority), Host="monitor.example")[0] == 200
        write_web_file(tmp_path)
        with pytest.raises(ConfigError, match="TLS begins or ends with a restart"):
            server.reload()
        assert ask(server, "/healthz", tls=trusting(authority))[0] == 200


def test_oldest_tls_can_be_raised(authority: trustme.CA, tmp_path: Path) -> None:
    issue(authority, tmp_path)
    files = {"cert_file": "server.pem", "key_file": "server.key"}
    client = trusting(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(config_file=write_web_file(tmp_path, **files)) as server:
        assert ask(server, "/healthz", tls=client)[0] == 200
        assert server._tls.current.minimum_version == ssl.TLSVersion.TLSv1_2
        # Every cipher keeps earlier connections secret after the key is known.
        offered = {cipher["kea"] for cipher in server._tls.current.get_ciphers()}
        assert offered <= {"kx-ecdhe", "kx-dhe", "kx-any"}
        write_web_file(tmp_path, **files, min_version="TLS13")
        server.reload()
        with pytest.raises(ssl.SSLError):
            ask(server, "/healthz", tls=client)
        assert ask(server, "/healthz", tls=trusting(authority))[0] == 200


def test_client_without_a_certificate_reads_nothing(authority: trustme.CA, tmp_path: Path) -> None:
    issue(authority, tmp_path)
    readers, others = trustme.CA(), trustme.CA()
    readers.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = {"cert_file": "server.pem", "key_file": "server.key", "client_ca_file": "ca.pem"}
    file = write_web_file(tmp_path, **tls, client_auth_type="RequireAndVerifyClientCert")
    probe_port = free_port()
    with serving(config_file=file, probe_listen=f"127.0.0.1:{probe_port}") as server:
        assert ask(server, "/metrics", tls=trusting(authority, readers))[0] == 200
        for client in (trusting(authority), trusting(authority, others)):
            for path in ("/metrics", "/healthz"):
                with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                    ask(server, path, tls=client)
        results = {}
        for path in PAGES:
            connection = http.client.HTTPConnection("127.0.0.1", probe_port, timeout=CEILING_SECONDS)
            connection.request("GET", path)
            results[path] = connection.getresponse().status
            connection.close()
        assert results == {"/": 404, "/metrics": 404, "/api/status": 404, "/healthz": 200, "/readyz": 200}


def test_unusable_certificate_stops_the_start(authority: trustme.CA, tmp_path: Path) -> None:
    issue(authority, tmp_path)
    issue(authority, tmp_path, "other")
    for files, reason in (
        ({"cert_file": "server.pem", "key_file": "other.key"}, "KEY_VALUES_MISMATCH"),
        ({"cert_file": "none.pem", "key_file": "other.key"}, "No such file"),
    ):
        with pytest.raises(ConfigError, match=rf"web.config_file: {tmp_path}.* cannot be used: {reason}"):
            WebServer(Web.model_construct(config_file=write_web_file(tmp_path, **files)), lambda: STATUS, lambda: WELL)


def test_credentials_are_needed_beyond_probes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving(bearer_token_file=str(tmp_path / "token")) as server:
        for path in (*PAGES, "/reports/", "/runbooks/", "/nothing"):
            status, headers, body = ask(server, path)
            assert status == (200 if path in PROBES else 401), path
            assert path in PROBES or headers["www-authenticate"] == 'Bearer realm="sizewatch"'
            assert b"metrics" not in body
        for path in PAGES:
            assert ask(server, path, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(server, f"/metrics?token={TOKEN}")[0] == 401
        assert ask(server, "/metrics", method="POST")[0] == 401
        page = ask(server, "/api/status", Authorization=f"Bearer {TOKEN}")[2]
        assert json.loads(page)["agent"]["web_refusals"] == 8


# ---- weekly reports and runbooks: lists and files, and what leads nowhere ----

REPORT = b"<html><style>p{color:red}</style><p>report</p></html>" + b" " * 3000
FILES = {
    "report.html": REPORT,
    "report.md": b"# report",
    "report.json": b'{"headline": "Grow"}',
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


@pytest.mark.parametrize(("file", "kind"), storage.FILES.items())
def test_report_files_have_type_and_policy(server: WebServer, file: str, kind: str) -> None:
    status, headers, body = ask(server, f"/reports/{NAME}/{file}")
    assert (status, headers["content-type"], body) == (200, kind, FILES[file])
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cache-control"] == "private, no-cache"
    assert headers["x-content-type-options"] == "nosniff"


def test_list_has_newest_first(server: WebServer) -> None:
    status, headers, body = ask(server, "/reports/")
    page = body.decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    listed = [f"{name}/{file}" for name in (NAME, "2026-11-16") for file in storage.FILES]
    assert re.findall(r"<a href=\"([^\"]*)\"", page) == ["../", *listed, "2026-11-09/report.json"]


def test_latest_is_the_newest(server: WebServer) -> None:
    status, headers, _ = ask(server, "/reports")
    assert (status, headers["location"]) == (302, "reports/")
    for path in ("/reports/latest/report.html", "/reports/latest/", f"/reports/{NAME}/"):
        assert ask(server, path)[::2] == (200, REPORT)
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
    server.pages.reports = place / ("x" * 300)
    for path in ("/reports/", f"/reports/{NAME}/report.html"):
        status, _, body = ask(server, path)
        assert (status, body.startswith(b"cannot be read: [Errno 36] File name too long")) == (503, True)
    server.pages.reports = place / "not there"
    assert b"None was written yet" in ask(server, "/reports/")[2]
    assert ask(server, "/reports/latest/")[::2] == (404, b"there is no such report; /reports/ lists those there are")
    server.pages.reports = None
    status, _, body = ask(server, "/reports/")
    assert (status, body) == (404, b"this agent writes no reports (report.enabled, role)")


PAGE_WORDS = {"/": "Critical", "/runbooks/": "Runbooks", "/runbooks/KvCacheCascade": "Look at first"}


@pytest.mark.parametrize(("path", "words"), PAGE_WORDS.items())
def test_policy_allows_the_embedded_style(plain: WebServer, path: str, words: str) -> None:
    status, headers, body = ask(plain, path)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert words in body.decode()
    (style,) = re.findall(rb"<style>(.*?)</style>", body, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in headers["content-security-policy"]
    assert b"<script" not in body
