"""`sizewatch status`: the overview of a running daemon, asked over HTTP and TLS, with and without credentials."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
import yaml
from status_samples import agent_status, fine_tier, fleet_status

from agent.cli.main import main
from agent.config.web import Web
from agent.http_server.server import WebServer
from exporters.status.page import status_json
from exporters.status.records import AgentHealth, AgentStatus
from rules.confidence import Certainty
from rules.verdicts.verdict import Status, Subject, Verdict

Captured = pytest.CaptureFixture[str]


@contextmanager
def serving(status: AgentStatus, **options: object) -> Iterator[WebServer]:
    server = WebServer(Web.model_construct(listen="127.0.0.1:0", **options), lambda: status, lambda: None)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.stop()


def configured(folder: Path, server: WebServer, **web: object) -> list[str]:
    port = server.url.rstrip("/").rpartition(":")[2]
    path = folder / "sizewatch.yaml"
    path.write_text(yaml.safe_dump({"web": {"listen": f"127.0.0.1:{port}", **web}, "data_dir": str(folder)}))
    return ["status", "-c", str(path)]


def quiet() -> AgentStatus:
    return agent_status(tiers=(fine_tier("h100"), fine_tier("l40s", observed_seconds=60.0)))


def test_incident_is_exit_code_1(tmp_path: Path, capsys: Captured) -> None:
    with serving(fleet_status()) as server:
        words = configured(tmp_path, server)
        assert main(words) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("■ 1 incident in l40s-qwen14b: ")
        assert len(lines) == 44
        assert main([*words, "--format", "json"]) == 1
        told = json.loads(capsys.readouterr().out)
    assert [one["incidents"] for one in told["tiers"]] == [1] + [0] * 39
    assert told["verdict"]["status"] == "critical"


def test_quiet_fleet_is_exit_code_0(tmp_path: Path, capsys: Captured) -> None:
    with serving(quiet()) as server:
        assert main(["status", "--url", server.url.removeprefix("http://")]) == 0
        assert main(["status", "--url", f"{server.url}reports"]) == 3
    text, err = capsys.readouterr()
    assert "reports/api/status: this is no status page of sizewatch." in err
    assert text.startswith("✓ 1 tier as planned, 1 learning\n")
    assert "960 USD" in text


@pytest.mark.parametrize(
    ("certainty", "code", "first"),
    [
        (Certainty.LIKELY, 0, "◆ 1 tier with a likely finding, 1 as planned"),
        (Certainty.CERTAIN, 1, "■ 1 incident in h100: TTFT SLO burn"),
        (None, 3, "? No verdict yet"),
    ],
)
def test_exit_code_is_of_the_first_line(certainty: Certainty | None, code: int, first: str, capsys: Captured) -> None:
    fine = fine_tier("h100")
    pattern = next(one for one in fine.results if isinstance(one, Verdict))
    burn = replace(pattern, rule="TtftSloBurn", status=Status.CRITICAL, subject=Subject(tier="h100"))
    tiers = (fine_tier("h100", results=()),)
    if certainty is not None:
        tiers = (fine_tier("h100", results=(replace(burn, certainty=certainty),)), fine_tier("l40s"))
    with serving(agent_status(tiers=tiers)) as server:
        assert main(["status", "--url", server.url]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == first
    assert any("likely: TTFT SLO burn" in line for line in lines[1:]) == (certainty is Certainty.LIKELY)


def test_missing_daemon_is_exit_code_3(tmp_path: Path, capsys: Captured) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = tmp_path / "sizewatch.yaml"
    path.write_text(yaml.safe_dump({"web": {"listen": f"127.0.0.1:{port}"}, "data_dir": str(tmp_path)}))
    assert main(["status", "-c", str(path)]) == 3
    found = capsys.readouterr()
    assert found.out == ""
    assert f"sizewatch status: http://127.0.0.1:{port}/api/status: connection refused. " in found.err
    assert "Is `sizewatch run` up?" in found.err


def test_configured_token_needs_tls_or_an_option(tmp_path: Path, capsys: Captured) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-page\n")
    with serving(quiet(), bearer_token_file=str(token)) as server:
        words = configured(tmp_path, server, bearer_token_file=str(token))
        assert main(words) == 3, "the configured token is not sent without TLS"
        assert main([*words, "--bearer-token-file", str(token)]) == 0
    assert "secret-of-the-page" not in "".join(capsys.readouterr())


def test_broken_plan_on_disk_hides_nothing(tmp_path: Path, capsys: Captured) -> None:
    status = replace(quiet(), health=AgentHealth(config_trouble="plan.yaml: is not YAML"))
    with serving(status) as server:
        path = Path(configured(tmp_path, server)[-1])
        path.write_text(path.read_text() + "plan: plan.yaml\ntypo: 1\n")
        (tmp_path / "plan.yaml").write_text("tiers: [")
        assert main(["status", "-c", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "✓ 1 tier as planned, 1 learning"
    trouble = "Configuration or plan on disk is not valid, the previous configuration is active: plan.yaml: is not YAML"
    assert trouble in lines


@pytest.mark.parametrize("name", ["sizewatch.yaml", "link.yaml", "other.yaml"])
def test_only_the_named_daemon_is_shown(name: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "link.yaml").symlink_to("sizewatch.yaml")
    with serving(replace(quiet(), config=str(tmp_path / name))) as server:
        code = main(configured(tmp_path, server))
    out, err = capsys.readouterr()
    used = f"the daemon there uses the configuration {tmp_path / name}, not {tmp_path / 'sizewatch.yaml'}."
    if name == "other.yaml":
        assert (code, out, used in err) == (3, "", True)
    else:
        assert (code, err) == (0, "")


@pytest.mark.parametrize(("words", "seconds"), [(["--watch"], 5.0), (["--watch", "2"], 2.0)])
def test_watch_prints_it_again(
    words: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("agent.cli.status.time", SimpleNamespace(sleep=wait))
    with serving(quiet()) as server:
        assert main(["status", "--url", server.url, *words]) == 130
    assert waits == [seconds, seconds]
    assert capsys.readouterr().out.count("✓ 1 tier as planned, 1 learning") == 2


def test_tls_needs_a_trusted_certificate(tmp_path: Path, capsys: Captured) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-page\n")
    made = trustme.CA().issue_cert("127.0.0.1")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}")
    with serving(quiet(), bearer_token_file=str(token), config_file=str(file)) as server:
        assert main(configured(tmp_path, server, bearer_token_file=str(token), config_file=str(file))) == 0
    assert capsys.readouterr().out.startswith("✓ 1 tier as planned")
    with serving(quiet(), config_file=str(file)) as server:
        stranger = configured(tmp_path, server)
        assert main([*stranger, "--url", server.url]) == 3, "an unknown certificate is not trusted"
    assert "its certificate is refused" in capsys.readouterr().err


HEADS = ("schema", "now", "verdict", "overview", "verdict.status", "verdict.text", "verdict.detail")


@pytest.mark.parametrize("place", [*HEADS, "overview.tier", "overview.incidents"])
def test_json_of_another_program_is_refused(place: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    part, _, key = place.rpartition(".")
    told = status_json(quiet())
    holders = {"": told, "verdict": told["verdict"], "overview": told["overview"][0]}
    del holders[part][key]
    monkeypatch.setattr("agent.cli.status.fetch_page", lambda *_: json.dumps(told).encode())
    for form in ("text", "json"):
        assert main(["status", "--url", "http://127.0.0.1:9", "--format", form]) == 3
        found = capsys.readouterr()
        assert found.out == ""
        assert "this is no status of a sizewatch of this version" in found.err
