"""How a store is asked: its form, who we say we are, what is kept secret, and over which connection."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_store import Handler, Server, give, serving, vector
from peers import peer_fields

from agent.config.store import StoreConfig
from agent.prometheus.answers import StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi

CANARY = "c4n4ry-s3cret"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        made.act = lambda handler: give(handler, vector())
        yield made


def api_of(server: Server, **options: Any) -> StoreApi:
    given: dict[str, Any] = {"url": server.url, "timeout_seconds": 20.0, **options}
    return StoreApi(StoreConfig(**peer_fields(**given)))


def written(folder: Path, text: str, name: str = "secret") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("base", ["", "/prometheus", "/select/0/prometheus/"])
def test_query_is_posted_with_timeout(server: Server, base: str) -> None:
    long = "up or " * 5000 + "up"
    api = api_of(server, url=f"{server.url}{base}")
    api.query(long, 1.5)
    path, headers, form = server.asked[0]
    assert path == f"{base.rstrip('/')}/api/v1/query"
    assert api.place == f"{server.url}{base.rstrip('/')}"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert headers["User-Agent"] == "sizewatch"
    assert (form["query"], form["time"], form["timeout"]) == ([long], ["1.500"], ["20.000"])
    assert not {"X-Scope-OrgID", "Authorization"} & set(headers)


def test_the_tenant_and_further_headers_are_sent(server: Server, tmp_path: Path) -> None:
    key = written(tmp_path, f"{CANARY}\n")
    api_of(server, org_id="team-a|team-b", header_files={"X-Api-Key": key}).query("up", 1.0)
    headers = server.asked[-1][1]
    assert (headers["X-Scope-OrgID"], headers["X-Api-Key"]) == ("team-a|team-b", CANARY)


def test_new_token_is_used_next_query(server: Server, tmp_path: Path) -> None:
    path = written(tmp_path, "old")
    now = 1000.0

    def wants_new(handler: Handler) -> None:
        allowed = handler.headers["Authorization"] == f"Bearer {CANARY}"
        give(handler, vector() if allowed else b"", 200 if allowed else 401)

    server.act = wants_new
    api = StoreApi(StoreConfig(**peer_fields(url=server.url, bearer_token_file=path)), lambda: now)
    for _ in range(3):
        with pytest.raises(StoreError, match="wants credentials") as raised:
            api.query("up", 1.0)
        assert raised.value.kind is StoreErrorKind.CREDENTIALS
    assert len(server.asked) == 1
    Path(path).write_text(CANARY)
    os.utime(path, ns=(1, 1))
    now += 60.0
    assert api.query("up", 1.0) == ()
    assert len(server.asked) == 2


@pytest.mark.parametrize("content", [b"", b"a\nb", b"\xff" + CANARY.encode()])
def test_unusable_token_is_credentials_error(server: Server, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    for options in ({"bearer_token_file": str(path)}, {"header_files": {"X-Key": str(path)}}):
        with pytest.raises(StoreError, match=str(path)) as raised:
            api_of(server, **options).query("up", 1.0)
        assert raised.value.kind is StoreErrorKind.CREDENTIALS
        assert CANARY not in str(raised.value)
    assert server.asked == []


def repeats(handler: Handler) -> None:
    """A proxy that quotes what it was sent."""
    sent = "; ".join(f"{name}: {text}" for name, text in handler.headers.items())
    give(handler, vector(warnings=[sent]) if handler.path.endswith("range") else _error(sent), 200)


def _error(text: str) -> bytes:
    return b'{"status":"error","error":"' + text.replace('"', "'").encode() + b'"}'


def test_repeated_secret_stays_out_of_messages(server: Server, tmp_path: Path) -> None:
    server.act = repeats
    file, basic = written(tmp_path, CANARY), base64.b64encode(f"u:{CANARY}".encode()).decode()
    for options in (
        {"bearer_token_file": file},
        {"username": "u", "password_file": file},
        {"header_files": {"X-Api-Key": file}},
    ):
        api = api_of(server, **options)
        for ask in (lambda api=api: api.query("up", 1.0), lambda api=api: api.query_range("up", 1.0, 2.0, 1.0)):
            with pytest.raises(StoreError) as raised:
                ask()
            assert CANARY not in f"{raised.value} {raised.value!r} {raised.value.text}"
            assert basic not in str(raised.value)
        assert CANARY not in repr(api) + repr(api.store)
