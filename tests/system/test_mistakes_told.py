"""A grave mistake on every surface: doctor and check say it first, and a daemon that was given one watches the rest."""

import logging
from pathlib import Path

import pytest
import yaml
from daemon_runs import configuration, running, write
from engine_server import Engine, engines
from paths import TESTS
from waiting import wait_for

from agent.cli import main
from agent.config.load import load
from agent.daemon.daemon import Daemon

PLAN = TESTS / "plans" / "cpu-small.yaml"
TIER = (
    "targets[1].tier: is watched and compared with nothing: cpu-smal is not a tier of the plan; did you mean cpu-small?"
)
SLO = "tiers.cpu-small.slo.ttft_p99_seconds: 2000 s is above 60"


def mistaken(folder: Path, several: list[Engine]) -> Path:
    """The second replica in a tier that the plan does not have, and an objective in milliseconds."""
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    plan["tiers"]["cpu-small"]["slo"]["ttft_p99_seconds"] = 2000
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    data = configuration(several, plan="plan.yaml", data_dir=str(folder / "data"))
    data["targets"][1]["tier"] = "cpu-smal"
    return write(folder, data)


def test_mistakes_come_first_and_daemon_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with engines(2) as several:
        path = mistaken(tmp_path, several)
        with running(path) as daemon:
            assert wait_for(lambda: daemon.status() is not None)
            status = daemon.status()
            assert {tier.context.name for tier in status.tiers} == {"cpu-small", "cpu-smal"}
            assert all(engine.asked for engine in several)
        assert main.main(["doctor", "-c", str(path)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.lstrip().startswith("->")]
    assert [line.startswith("fail") for line in lines[:3]] == [True, True, False]
    assert [TIER in lines[0], SLO in lines[1]] == [True, True]
    assert main.main(["check", "-c", str(path)]) == 3
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert [TIER in first, f"{SLO}" in second] == [True, True]


def test_run_logs_mistakes_as_errors_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Daemon] = []
    monkeypatch.setattr(Daemon, "run", lambda daemon: started.append(daemon))
    monkeypatch.setattr("agent.cli.run.set_up", lambda _: None)
    monkeypatch.setattr("agent.cli.run.resource.setrlimit", lambda *_: None)
    with engines(2) as several:
        path = mistaken(tmp_path, several)
        assert len(load(path).grave) == 2
        assert main.main(["run", "-c", str(path)]) == 0
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        f"configuration mistake: {mistake}" for mistake in load(path).grave
    ]
    assert len(started) == 1
