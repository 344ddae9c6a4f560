"""A grave mistake on every surface: doctor and check say it first, and a daemon that was given one watches the rest."""

from pathlib import Path

import yaml
from daemon_runs import configuration, process, run_command, write
from engine_server import Engine, engines
from paths import TESTS
from waiting import CEILING_SECONDS, wait_for

from agent.config.load import load

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


def test_mistakes_come_first_and_daemon_runs(tmp_path: Path) -> None:
    with engines(2) as several:
        path = mistaken(tmp_path, several)
        assert len(load(path).grave) == 2
        with process("run", "-c", str(path)) as daemon:
            assert wait_for(lambda: all(engine.asked for engine in several))
            daemon.terminate()
            _, log = daemon.communicate(timeout=CEILING_SECONDS)
        assert daemon.returncode == 0
        assert [line.partition(" ERROR ")[2] for line in log.splitlines() if " ERROR " in line] == [
            f"agent.cli.run: configuration mistake: {mistake}" for mistake in load(path).grave
        ]
        code, out, _ = run_command("doctor", "-c", str(path))
    assert code == 1
    lines = [line for line in out.splitlines() if not line.lstrip().startswith("->")]
    assert [line.startswith("fail") for line in lines[:3]] == [True, True, False]
    assert [TIER in lines[0], SLO in lines[1]] == [True, True]
    code, _, errors = run_command("check", "-c", str(path))
    assert code == 3
    first, second, *_ = errors.splitlines()
    assert [TIER in first, SLO in second] == [True, True]
