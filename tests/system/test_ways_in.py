"""Every connection that sizewatch opens, against one server that wants a certificate of the client and a password or token.

The table CONNECTIONS is the list of them; what belongs to one alone is in its own module's tests.
"""

import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hostile_store import Handler, Tls, give, matrix, serving

from agent.alerting.delivery import PATH, AlertmanagerClient
from agent.cli import main
from agent.config.config import Config
from agent.config.load import parse_config
from agent.doctor.targets import read_targets
from agent.http_client.client import PageFetcher
from agent.prometheus.api import StoreApi
from agent.scrape.scrapers import list_targets
from exporters.alertmanager.payload import AlertPayload

PASSWORD = "c4n4ry-s3cret"
BASIC = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
BEARER = f"Bearer {PASSWORD}"
PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
GPUS = b"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP 30\n"

Ask = Callable[[str, dict[str, Any], Path], None]


def configured(data: dict[str, Any], folder: Path) -> Config:
    return parse_config(data, folder=folder)


def a_target(url: str, keys: dict[str, Any], folder: Path) -> None:
    config = configured({"targets": [{"url": f"{url}/metrics", "tier": "t", **keys}]}, folder)
    (target,) = list_targets(config)
    assert PageFetcher(target.peer).fetch() == PAGE


def a_targets_clock(url: str, keys: dict[str, Any], folder: Path) -> None:
    config = configured({"targets": [{"url": f"{url}/metrics", "tier": "t", **keys}]}, folder)
    (seen,) = read_targets(list_targets(config), time.time)
    assert seen.clock_ahead_seconds == 0.0


def a_gpu_exporter(url: str, keys: dict[str, Any], folder: Path) -> None:
    config = configured({"gpus": {"source": "dcgm", "dcgm": {"url": f"{url}/gpus", **keys}}}, folder)
    assert PageFetcher(config.gpu_exporter[1]).fetch() == GPUS


def an_alertmanager(url: str, keys: dict[str, Any], folder: Path) -> None:
    config = configured({"alerting": {"path": "posts", "alertmanagers": [{"url": url, **keys}]}}, folder)
    poster = AlertmanagerClient(config.alerting.alertmanagers[0].to_peer())
    alert = AlertPayload(title="A", body={"labels": {"alertname": "A"}}, firing=True)
    assert poster.round([alert]) == {}


def the_store(url: str, keys: dict[str, Any], folder: Path) -> None:
    config = configured({"role": "fleet", "store": {"url": url, **keys}}, folder)
    assert config.store is not None
    assert StoreApi(config.store).query_samples("x", 1.0, 2.0) == ()


def flags(keys: Mapping[str, Any], folder: Path) -> list[str]:
    login, tls = keys.get("basic_auth", {}), keys.get("tls", {})
    given = {
        "--bearer-token-file": keys.get("bearer_token_file"),
        "--username": login.get("username"),
        "--password-file": login.get("password_file"),
        "--ca-file": tls.get("ca_file"),
        "--client-cert-file": tls.get("cert_file"),
        "--client-key-file": tls.get("key_file"),
        "--server-name": tls.get("server_name"),
    }
    return [word for name, text in given.items() if text for word in (name, str(text))]


def an_inspected_page(url: str, keys: dict[str, Any], folder: Path) -> None:
    assert main.main(["inspect", f"{url}/metrics", *flags(keys, folder)]) == 0


def a_page_for_a_first_plan(url: str, keys: dict[str, Any], folder: Path) -> None:
    assert main.main(["plan", "init", f"{url}/metrics", *flags(keys, folder)]) == 0


CONNECTIONS: tuple[Ask, ...] = (
    a_target,
    a_targets_clock,
    a_gpu_exporter,
    an_alertmanager,
    the_store,
    an_inspected_page,
    a_page_for_a_first_plan,
)
ANSWERS: dict[str, tuple[bytes, str]] = {
    "/metrics": (PAGE, "text/plain"),
    "/gpus": (GPUS, "text/plain"),
    PATH: (b"", "application/json"),
    "/api/v1/query": (matrix(), "application/json"),
    "/v1/models": (b'{"data": []}', "application/json"),
}


def strict(authorization: str) -> Callable[[Handler], None]:
    def act(handler: Handler) -> None:
        # The clock is asked for without any secret, since also a refusal carries a date.
        wanted = None if handler.command == "HEAD" else authorization
        body, kind = ANSWERS[handler.path]
        allowed = handler.headers.get("Authorization") == wanted
        give(handler, body if allowed and wanted else b"", 200 if allowed else 401, kind)

    return act


@pytest.mark.parametrize("ask", CONNECTIONS, ids=lambda ask: str(ask.__name__))
@pytest.mark.parametrize("login", ["basic", "bearer"])
def test_connection_uses_certificate_and_login(
    tmp_path: Path, ask: Ask, login: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, secret = Tls(tmp_path, "inside.example"), tmp_path / "secret"
    secret.write_text(PASSWORD)
    basic = login == "basic"
    with serving(tls.context) as server:
        server.act = strict(BASIC if basic else BEARER)
        keys: dict[str, Any] = {
            "tls": {
                "ca_file": tls.ca_file,
                "cert_file": tls.cert_file,
                "key_file": tls.key_file,
                "server_name": "inside.example",
            }
        }
        keys |= (
            {"basic_auth": {"username": "me", "password_file": str(secret)}}
            if basic
            else {"bearer_token_file": str(secret)}
        )
        ask(server.url, keys, tmp_path)
        assert server.asked
    assert PASSWORD not in "".join(capsys.readouterr())
