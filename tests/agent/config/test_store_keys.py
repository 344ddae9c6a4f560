"""The store's keys: what reaches the client, what is refused, what is said to be weak."""

from pathlib import Path
from typing import Any

import pytest

from agent.config.load import parse_config, weaknesses
from agent.config.peer import BasicAuth, TlsConfig
from agent.config.store import StoreConfig
from agent.errors import ConfigError

URL = "http://127.0.0.1:9090"
FLEET: dict[str, Any] = {"role": "fleet", "store": {"url": "http://x"}}


def store_of(store: dict[str, Any], folder: Path = Path("/etc")) -> StoreConfig:
    config = parse_config({"role": "fleet", "store": store}, folder=folder)
    assert config.store is not None
    return config.store


def problems(**store: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        parse_config({"role": "fleet", "store": {"url": URL, **store}})
    return raised.value.problems


def weak(**store: Any) -> tuple[str, ...]:
    config = parse_config({"role": "fleet", "store": {"url": "https://store.example", **store}})
    return weaknesses(config, None)


def test_an_address_is_enough() -> None:
    assert store_of({"url": URL}) == StoreConfig(url=URL)


def test_every_store_key_is_taken(tmp_path: Path) -> None:
    store = {
        "url": "https://mimir.example/prometheus",
        "timeout": "5s",
        "most_samples": 5000,
        "max_answer_bytes": 100_000,
        "partial_answers": "take",
        "basic_auth": {"username": "me", "password_file": "password"},
        "tls": {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem", "server_name": "mimir.example"},
        "org_id": "a|b",
        "header_files": {"X-Api-Key": "key"},
    }
    assert store_of(store, tmp_path) == StoreConfig(
        url="https://mimir.example/prometheus",
        timeout_seconds=5.0,
        max_bytes=100_000,
        most_samples=5000,
        basic_auth=BasicAuth(username="me", password_file=str(tmp_path / "password")),
        tls=TlsConfig(
            ca_file=str(tmp_path / "ca.pem"),
            cert_file=str(tmp_path / "c.pem"),
            key_file=str(tmp_path / "k.pem"),
            server_name="mimir.example",
        ),
        org_id="a|b",
        header_files={"X-Api-Key": str(tmp_path / "key")},
        partial_answers="take",
    )
    second = store_of({"url": URL, "bearer_token_file": "token"}, tmp_path)
    assert second.bearer_token_file == str(tmp_path / "token")
    unchecked = store_of({"url": "https://x", "tls": {"insecure_skip_verify": True}})
    assert unchecked.tls.insecure_skip_verify


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"url": "http://u:c4n4ry@x"}, "store.url: must hold no user or password"),
        ({"url": "http://[::1"}, "store.url: must be an http:// or https:// address"),
        ({"basic_auth": {"username": "u"}}, "store.basic_auth.password_file: is missing"),
        ({"org_id": ""}, "store.org_id"),
        ({"header_files": {"authorization": "f"}}, "must be the name of a header that no other key sets"),
        ({"url": "http://x/?a=b"}, "store.url: must be the store's base address, without a query"),
        (
            {"url": "http://x/api/v1/query"},
            "store.url: must be the store's base address, without a query and without /api/v1",
        ),
        ({"most_samples": 10}, "store.most_samples: must be at least 1000"),
        ({"partial_answers": "maybe"}, "store.partial_answers: must be 'refuse' or 'take'"),
        ({"org_id": "a\nb"}, "store.org_id: must be printable ASCII"),
        ({"header_files": {"X Y": "f"}}, "must be the name of a header that no other key sets"),
        ({"token": "c4n4ry"}, "store.token"),
        (
            {"bearer_token_file": "t", "basic_auth": {"username": "u", "password_file": "p"}},
            "store.basic_auth: is given beside bearer_token_file",
        ),
        ({"tls": {"ca_file": "c"}}, "store.tls: is given, but the url begins with http://"),
        ({"url": "https://x", "tls": {"key_file": "c"}}, "store.tls.key_file: needs cert_file"),
        ({"timeout": "0s"}, "store.timeout: must be from"),
    ],
)
def test_store_mistakes_hide_secrets(store: dict[str, Any], said: str) -> None:
    found = problems(**store)
    assert len(found) == 1
    assert said in found[0]
    assert "c4n4ry" not in found[0]


def test_weak_store_is_said() -> None:
    assert weak() == ()
    assert weak(bearer_token_file="t") == ()
    assert weak(url=URL, bearer_token_file="t") == ()
    assert "without TLS" in weak(url="http://store.example", bearer_token_file="t")[0]
    assert "without TLS" in weak(url="http://store.example", header_files={"X-Key": "k"})[0]
    assert "use ca_file" in weak(tls={"insecure_skip_verify": True})[0]


def test_pods_in_two_namespaces_are_warned_of() -> None:
    for selector, count in (('job="vllm"', 1), ('job="vllm",namespace=~"a|b"', 1), ('job="vllm",namespace="a"', 0)):
        tier = {"from": "engines", "selector": selector, "replica_label": "pod"}
        store = {"role": "fleet", "store": {"url": URL}, "tiers": {"t": tier}}
        said = weaknesses(parse_config(store), None)
        assert len([text for text in said if text.startswith("tiers.t.selector: pods of one name")]) == count, selector


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"role": "fleet"}, "store: is missing"),
        ({**FLEET, "targets": [{"url": "http://y", "tier": "t"}]}, "targets: role fleet"),
        ({"role": "node", "fleet": {"cycle": "60s"}}, "fleet: is for role fleet"),
        ({"role": "standalone", "tier_verdicts": False}, "tier_verdicts: may be false in role node only"),
        ({**FLEET, "tiers": {"t": {"from": "engines"}}}, "tiers.t.selector: is missing"),
        ({**FLEET, "tiers": {"t": {"selector": 'job="a"} or up{x="'}}}, "tiers.t.selector: must be label matchers"),
        (
            {**FLEET, "tiers": {"t": {"engine": "vlm"}}},
            "tiers.t.engine: is not an engine whose pages can be read; did you mean vllm?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fleet_mistakes_are_told_with_their_place(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(keys, environment={})
    assert [text for text in caught.value.problems if text.startswith(said)], caught.value.problems
