"""The keys of `alerting`: one path an installation, every contradiction told, and what is not asked for not loaded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon_runs import configuration, write
from paths import ROOT

from agent.config.load import load, parse_config
from agent.config.peer import BasicAuth, TlsConfig
from agent.errors import ConfigError

TARGET = {"url": "http://127.0.0.1:8000/metrics", "tier": "t"}
MANAGER = {"url": "http://127.0.0.1:9093"}


def parsed(**alerting: Any) -> Any:
    return parse_config({"targets": [TARGET], "alerting": alerting}).alerting


def problems(**alerting: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as found:
        parsed(**alerting)
    return found.value.problems


def test_prometheus_alerts_by_default() -> None:
    alerting = parse_config({"targets": [TARGET]}).alerting
    assert (alerting.path, alerting.alertmanagers, alerting.receiver) == ("rules", (), None)
    assert alerting.resend_seconds == 60


def test_every_alertmanager_key_is_taken(tmp_path: Path) -> None:
    data = {
        "path": "posts",
        "resend": "30s",
        "external_labels": {"cluster": "eu-1"},
        "external_url": "https://sizewatch.example/",
        "runbook_url": "https://wiki.example/runbooks",
        "alertmanagers": [
            {
                "url": "https://am.example/prefix/",
                "timeout": "5s",
                "basic_auth": {"username": "me", "password_file": "password"},
                "tls": {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem", "server_name": "am"},
            },
            {**MANAGER, "bearer_token_file": "token"},
        ],
    }
    alerting = parse_config({"targets": [TARGET], "alerting": data}, folder=tmp_path).alerting
    first, second = alerting.alertmanagers
    assert first.url == "https://am.example/prefix/"
    assert first.timeout_seconds == 5
    assert first.basic_auth == BasicAuth(username="me", password_file=str(tmp_path / "password"))
    names = {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem"}
    files = {name: str(tmp_path / file) for name, file in names.items()}
    assert first.tls == TlsConfig(**files, server_name="am")
    assert (second.bearer_token_file, second.timeout_seconds) == (str(tmp_path / "token"), 10)
    settings = alerting.settings()
    assert (settings.resend_seconds, settings.external_labels) == (30, {"cluster": "eu-1"})
    assert (settings.external_url, settings.runbooks) == ("https://sizewatch.example/", "https://wiki.example/runbooks")


def test_alerting_mistakes_are_named() -> None:
    assert problems(path="posts") == (
        "alerting.alertmanagers: is missing; path posts needs the url of at least one Alertmanager",
    )
    assert problems(alertmanagers=[MANAGER]) == (
        "alerting.alertmanagers: is given, but path: rules posts nothing; write path: posts",
    )
    assert problems(path="posts", alertmanagers=[MANAGER, {"url": "http://127.0.0.1:9093/"}]) == (
        "alerting.alertmanagers[1]: has the url of alerting.alertmanagers[0]; each Alertmanager is posted to once",
    )
    (said,) = problems(path="posts", alertmanagers=[MANAGER], external_labels={"tier": "x"})
    assert said.startswith(
        "alerting.external_labels.tier: is no name of a label, or one that alerts have already (alertname,"
    )
    (said,) = problems(path="posts", alertmanagers=[MANAGER], external_labels={"my-label": "x"})
    assert said.startswith("alerting.external_labels.my-label: is no name of a label")
    assert "alerting.receiver.bearer_token_file" in problems(receiver={})[0]
    assert "alerting.resend" in problems(resend="10m")[0]
    twice = {**MANAGER, "bearer_token_file": "a", "basic_auth": {"username": "b", "password_file": "c"}}
    (said,) = problems(path="posts", alertmanagers=[twice])
    assert said.startswith("alerting.alertmanagers[0].basic_auth: is given beside bearer_token_file")
    (said,) = problems(path="posts", alertmanagers=[{**MANAGER, "tls": {"ca_file": "x"}}])
    assert said == "alerting.alertmanagers[0].tls: is given, but the url begins with http://; write https://"


def test_alerting_is_loaded_on_demand(tmp_path: Path) -> None:
    path = write(tmp_path, configuration([], role="node"))
    assert load(path).config.alerting.path == "rules"
    script = (
        "import sys; from pathlib import Path; from agent.daemon.factory import assemble; from agent.config.load import load\n"
        "import agent.daemon.daemon\n"
        f"assemble(load(Path({str(path)!r}))).close(0.0)\n"
        "print([m for m in sys.modules if m.startswith('agent.alerting')])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
