"""Configurations as a weapon: one that lies about in a folder, and what a sound one should be warned of."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main
from agent.config.load import find, load, parse_config, weaknesses
from agent.errors import ConfigError

TARGET = {"url": "http://10.0.0.7:8000/metrics", "tier": "t"}


def warned(tmp_path: Path, **keys: Any) -> tuple[str, ...]:
    data = {"targets": [], "gpus": {"source": "none"}, **keys}
    return weaknesses(parse_config(data, folder=tmp_path, environment={}), None)


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizewatch.yaml").write_text("targets: []\n")
    (tmp_path / "sizewatch.yaml").chmod(0o644)
    return tmp_path


def test_own_configuration_is_found_in_folder(here: Path) -> None:
    assert find(None) == Path("sizewatch.yaml")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files take root")
def test_foreign_configuration_needs_its_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which of our files is sent as a token, and where to."""
    os.chown(here / "sizewatch.yaml", 65534, 65534)
    with pytest.raises(ConfigError, match="another user's"):
        find(None)
    assert main(["check"]) == 2
    assert "name it with -c" in capsys.readouterr().err
    assert find("sizewatch.yaml") == Path("sizewatch.yaml")


def test_nor_is_one_that_everybody_may_write(here: Path) -> None:
    (here / "sizewatch.yaml").chmod(0o666)
    with pytest.raises(ConfigError, match="everybody may write it"):
        find(None)
    assert load(find("sizewatch.yaml")).config.targets == ()


CLEAR = "credentials go to another machine without TLS; use https://"
LOGIN = {"basic_auth": {"username": "ada", "password_file": "p"}}


def test_credentials_over_plain_http_are_named(tmp_path: Path) -> None:
    token = {"bearer_token_file": "token"}
    for way in (token, LOGIN):
        assert f"targets[0].url: {CLEAR}" in warned(tmp_path, targets=[{**TARGET, **way}])
        dcgm = {"source": "dcgm", "dcgm": {"url": "http://node:9400/metrics", **way}}
        assert f"gpus.dcgm.url: {CLEAR}" in warned(tmp_path, gpus=dcgm)
        posts = {"path": "posts", "alertmanagers": [{"url": "http://alerts:9093", **way}]}
        assert f"alerting.alertmanagers[0].url: {CLEAR}" in warned(tmp_path, alerting=posts)
    api = {"kubernetes": {"node": "n", "api": {"url": "http://10.0.0.1:8001", **token}}}
    assert f"discovery.kubernetes.api.url: {CLEAR}" in warned(tmp_path, discovery=api)


@pytest.mark.parametrize(
    "url", ["https://10.0.0.7/metrics", "http://127.0.0.1:8000/metrics", "http://[::1]/", "http://localhost/"]
)
def test_tls_and_loopback_are_no_weakness(tmp_path: Path, url: str) -> None:
    found = warned(tmp_path, targets=[{**TARGET, "url": url, **LOGIN}])
    assert [one for one in found if CLEAR in one] == []
    assert [one for one in warned(tmp_path, targets=[TARGET]) if CLEAR in one] == []


VALUES = (
    "c4nary", ["c4nary"], {"c4nary": "c4nary"}, [["c4nary"]], "http://u:c4nary@h/", "http://c4nary /x", "http://h:c4nary/",
    "ftp://c4nary/x", "http://*.c4nary/", "${c4nary", "c4nary\n", 7,
)  # fmt: skip
HOLDERS = (
    ("targets", "url"), ("targets", "bearer_token_file"), ("gpus.dcgm", "url"), ("alerting.alertmanagers", "url"),
    ("web", "bearer_token_file"), ("web", "config_file"), ("report.deliver", "url_file"), ("report.deliver", "url_env"),
    ("report.deliver", "name"), ("store", "url"), ("store", "bearer_token_file"), ("discovery.kubernetes.api", "url"),
    ("alerting.receiver", "bearer_token_file"), ("alerting", "external_url"),
)  # fmt: skip
LISTS = {"targets", "alertmanagers", "deliver"}


@pytest.mark.parametrize(("section", "key"), HOLDERS)
def test_pasted_secret_is_in_no_message(section: str, key: str) -> None:
    for value in VALUES:
        data: Any = {key: value}
        for part in reversed(section.split(".")):
            data = {part: [data] if part in LISTS else data}
        try:
            parse_config(data, folder=Path("/nowhere"), environment={})
        except ConfigError as bad:
            # A mapping's own keys are named as keys, which no secret is.
            told = [one for one in bad.problems if "c4nary" in one and "is not a key" not in one]
            assert told == [], value
