"""No message quotes what the other side sent, which may be our secret."""

import ast
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_server import Engine, Handler, engines
from hostile_store import give as give_json
from hostile_store import serving
from paths import ROOT

from agent.alerting.delivery import AlertmanagerClient
from agent.config.peer import Peer
from agent.config.store import StoreConfig
from agent.errors import ConfigError, ScrapeError
from agent.http_client.page import PageFetcher
from agent.prometheus.api import StoreApi
from agent.prometheus.errors import StoreError


@contextmanager
def moved(to: str) -> Iterator[Engine]:
    def act(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with engines(1) as served:
        served[0].act = act
        yield served[0]


@pytest.mark.parametrize("place", ["https://{}.evil.example/", "//{}/", "https://{}:443/x"])
def test_redirect_host_does_not_show_secret(tmp_path: Path, place: str) -> None:
    file, secret = tmp_path / "token", "s3cret-token-of-ours"
    file.write_text(secret)
    for spelled in (secret, secret.upper()):
        with moved(place.format(spelled)) as engine, pytest.raises(ScrapeError, match="redirects") as caught:
            PageFetcher(Peer(url=engine.url, bearer_token_file=str(file))).fetch()
        # A host's name has no case; what a server changes on purpose it could as well say in the clear elsewhere.
        assert secret not in str(caught.value)
    with moved(place.format("another-secret9")) as engine, pytest.raises(ScrapeError, match="redirects") as caught:
        PageFetcher(Peer(url=f"{engine.url}?token=another-secret9")).fetch()
    assert "another-secret9" not in str(caught.value)


def test_store_redirect_does_not_show_token(tmp_path: Path) -> None:
    file, secret = tmp_path / "token", "s3cret-token-of-ours"
    file.write_text(secret)
    with serving() as store:
        store.act = lambda handler: give_json(handler, b"", 302, Location=f"https://{secret}.evil.example/")
        with pytest.raises(StoreError) as caught:
            StoreApi(StoreConfig(url=store.url, bearer_token_file=str(file))).query("up", time.time())
    assert "redirects" in caught.value.text
    assert secret not in caught.value.text


def test_content_type_does_not_show_token(tmp_path: Path) -> None:
    file, secret = tmp_path / "token", "s3cret-token-of-ours"
    file.write_text(secret)

    def act(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", secret)
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(b"x 1\n")

    with engines(1) as served:
        served[0].act = act
        with pytest.raises(ScrapeError) as caught:
            PageFetcher(Peer(url=served[0].url, bearer_token_file=str(file))).fetch()
    assert secret not in str(caught.value)


def test_alertmanager_words_are_not_quoted() -> None:
    with serving() as server:
        server.act = lambda handler: give_json(handler, b'"no: abcd-1234-secret"', 400)
        with pytest.raises(ScrapeError) as caught:
            AlertmanagerClient(Peer(url=f"{server.url}?key=abcd-1234-secret")).round(())
    assert "answered 400" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://.example/m",
        "http://a..b/m",
        "http://*/m",
        f"http://{'a' * 70}/m",
        "http://a b/m",
        "http://[::1]x/m",
        "http://h\0/",
    ],
)
def test_impossible_address_is_refused_at_start(url: str) -> None:
    """It was a defect in every turn, told with its traceback."""
    with pytest.raises(ConfigError, match=r"must be an http:// or https:// address") as caught:
        Peer.read({"url": f"{url}?key=abcd-1234-secret"})
    assert "secret" not in str(caught.value)


def test_secrets_are_compared_in_constant_time() -> None:
    """No comparison of a token, password or hash in the web server's own gate but `hmac.compare_digest`."""
    text = (ROOT / "agent/http_server/credentials.py").read_text("utf-8")
    suspects = {"token", "digest", "proof", "hash", "password", "found"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(sign, ast.Eq | ast.NotEq) for sign in node.ops):
            sides = {ast.unparse(side).rpartition(".")[2] for side in (node.left, *node.comparators)}
            assert not suspects & sides, ast.unparse(node)
    assert text.count("hmac.compare_digest(") >= 2
