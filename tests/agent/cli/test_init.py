"""`sizewatch init`: engines by ports and command lines of a made /proc, the files it writes, and what it says without one."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_runs import configuration, stepping, write
from engine_server import Engine, engines, pages
from golden_text import check_golden
from gpu_pages import readout
from paths import TESTS
from waiting import StandingClock

from agent.cli import init
from agent.cli.main import main
from agent.config.load import load

Captured = pytest.CaptureFixture[str]


def process(proc: Path, pid: int, command: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path / "proc", 1, "/sbin/init")
    (tmp_path / "proc" / "2").mkdir()
    return tmp_path / "proc"


def places(found: tuple[init.Candidate, ...]) -> list[tuple[int, str, int | None]]:
    return [(candidate.port, candidate.evidence, candidate.parallel) for candidate in found]


USUAL = [(port, f"port {port}", None) for port in (8000, 30000, 8080, 3000, 8001, 8002)]


@pytest.mark.parametrize(
    ("command", "port", "parallel"),
    [
        ("python -m vllm.x --port 9999 --tensor-parallel-size 4 --pipeline-parallel-size=2", 9999, 8),
        ("sglang serve --tp 2 --port=31000", 31000, 2),
        ("tritonserver --http-port 9002", 9002, None),
        ("tritonserver --http-port 9000 --metrics-port=9002", 9002, None),
        ("tritonserver --metrics-port 9002 --http-port 9000", 9002, None),
        ("/usr/bin/llama-server --metrics", 8080, None),
        ("vllm serve m -tp 8", 8000, 8),
        ("pip install vllm", 0, None),
        ("python3.11 /usr/bin/pip install vllm", 0, None),
        ("tail -f vllm.log", 0, None),
        ("vim vllm.py", 0, None),
        ("tritonserver --model-repository /models", 0, None),
        ("python -m vllm.x --port 99999", 0, None),
    ],
)
def test_engine_port_comes_from_its_command(proc: Path, command: str, port: int, parallel: int | None) -> None:
    """Port 0: the process is no engine that can be asked."""
    process(proc, 77, command)
    engine = [(port, "process 77", parallel)] if port else []
    assert places(init.find_candidates(proc)) == engine + [place for place in USUAL if place[0] != port]
    assert places(init.find_candidates(proc / "none")) == USUAL


def test_long_command_line_is_searched_once(proc: Path) -> None:
    """A search from each of its letters would take hours."""
    process(proc, 77, "java -cp " + "/opt/spark/jars/library.jar:" * 30_000)
    process(proc, 78, "vllm serve m --port 9999")
    assert places(init.find_candidates(proc))[0] == (9999, "process 78", None)


def candidates(*served: Engine) -> tuple[init.Candidate, ...]:
    return tuple(init.Candidate(port=one.port) for one in served)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent.gpu.nvml_reader.list_local_gpus", lambda: ())
    monkeypatch.setattr(init, "ALERTMANAGER", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture
def engine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The only engine of this machine."""
    with engines() as (served,):
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(served))
        yield served


def test_both_files_are_valid_and_name_assumptions(here: Path, engine: Engine, capsys: Captured) -> None:
    assert main(["init", "--username", "ada", "--password-file", "p"]) == 2, "no guessed port is sent a password"
    assert main(["init"]) == 0
    loaded = load(here / "sizewatch.yaml")
    (name,) = loaded.plan.tiers
    assert (loaded.plan.tiers[name].gpu.product, loaded.plan.tiers[name].slo.ttft_p99_seconds) == ("cpu", 2.0)
    assert [target.url for target in loaded.config.targets] == [engine.url]
    assert (loaded.warnings, loaded.grave) == ((), ())
    assert (here / "plan.yaml").read_text().count("ASSUMED") == 2
    out = capsys.readouterr().out
    assert f"found    {engine.url}: vLLM" in out
    assert "next     sizewatch run" in out
    assert main(["plan", "check", "plan.yaml"]) == 0


def test_gpus_are_those_of_the_command_line() -> None:
    gpus = tuple(readout(gpu=f"GPU-{number}", index=number) for number in range(8))
    with engines(2) as served:
        found, refusals = init.ask_candidates(candidates(*served))
        assert refusals == ()
        tiers = init.group_by_tier(found, gpus)
        assert "per_replica: 4  # ASSUMED" in init.plan_text(tiers, gpus)
        ((tier, group),) = tiers.items()
        told = [SimpleNamespace(candidate=SimpleNamespace(parallel=2), probe=one.probe) for one in group]
        assert "per_replica: 2  # ASSUMED" in init.plan_text({tier: told}, gpus)  # type: ignore[dict-item]


def test_existing_files_are_kept_without_force(here: Path, capsys: Captured) -> None:
    (here / "plan.yaml").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err == "sizewatch init: plan.yaml: is there already; --force replaces it\n"
    assert (here / "plan.yaml").read_text() == "mine"
    assert not (here / "sizewatch.yaml").exists()


@pytest.mark.parametrize(("words", "config"), [([], ""), (["--out", "a b"], " -c 'a b/sizewatch.yaml'")])
def test_second_init_names_the_command(words: list[str], config: str, here: Path, capsys: Captured) -> None:
    (here / "a b").mkdir()
    for folder in (here, here / "a b"):
        (folder / "sizewatch.yaml").touch()
    assert main(["init", "--run", *words]) == 2
    assert capsys.readouterr().err.endswith(f"sizewatch init: start with `sizewatch run{config}`\n")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("blocked", ["sizewatch.yaml", "plan.yaml"])
def test_init_writes_both_files_or_none(blocked: str, here: Path) -> None:
    (here / blocked).mkdir()
    assert main(["init", "--force"]) == 2
    assert [path.name for path in here.iterdir()] == [blocked]


def test_router_is_no_engine(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    with engines(2) as (router, sidecar):
        router.pages = ((TESTS / "cases" / "01-router" / "page.prom").read_bytes(),)
        sidecar.pages = ((TESTS / "cases" / "04-sidecar-two-workers" / "page.prom").read_bytes(),)
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(router))
        assert main(["init"]) == 3
        said = capsys.readouterr().err.splitlines()
        assert said[0] == "sizewatch init: no engine answers:"
        assert said[1].startswith(f"sizewatch init:   127.0.0.1:{router.port}: a router's page")
        assert list(here.iterdir()) == []
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(sidecar))
        assert main(["init"]) == 0
    assert "the page holds 2 engines by their label worker_addr: each is a replica" in capsys.readouterr().out


def test_ports_without_a_listener_are_named(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(init, "find_candidates", lambda: ())
    assert main(["init"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "sizewatch init: no engine answers on this machine: nothing listens on 8000, 30000, 8080, 3000, 8001, 8002.",
        "sizewatch init: Is the engine up? SGLang needs --enable-metrics, llama.cpp --metrics.",
        "sizewatch init: An engine on another port or machine: sizewatch init HOST:PORT",
    ]
    assert main(["init", "127.0.0.1:9"]) == 3
    assert "HOST:PORT" not in capsys.readouterr().err


def test_answers_are_shown_on_one_line_each(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(init, "ask_candidates", lambda candidates: ((), ("a: no\npage\x1b[2J", "b: " + "x" * 300)))
    assert main(["init"]) == 3
    said = capsys.readouterr().err.split("\n")
    assert said[1:3] == ["sizewatch init:   a: no page [2J", f"sizewatch init:   b: {'x' * 196}…"]
    assert [line.partition(": ")[2][:6] for line in said[3:]] == ["Is the", "An eng", ""]


@pytest.mark.parametrize(("host", "gpus"), [("elsewhere", ["H", 2, "unknown", 1]), ("", ["H", 2, "H", 2])])
def test_given_engines_are_written(host: str, gpus: Any, here: Path, monkeypatch: Any, capsys: Captured) -> None:
    local = tuple(readout(gpu=f"GPU-{number}", index=number) for number in range(4))
    monkeypatch.setattr("agent.gpu.nvml_reader.list_local_gpus", lambda: local)
    (here / "token").write_text("a-token")
    with engines(2) as (served, other):
        other.pages = ((TESTS / "cases" / "04-sidecar-two-workers" / "page.prom").read_bytes(),)
        monkeypatch.setattr(init, "find_host", lambda url: host if url.startswith(other.url) else "")
        process = init.Candidate(port=served.port, pid=1, parallel=2)
        monkeypatch.setattr(init, "find_candidates", lambda: (process,))
        given = [f"localhost:{served.port}", served.url, f"{other.url}?key=x", "127.0.0.1:9", "http://[bad"]
        assert main(["init", *given, "--out", "sub", "--bearer-token-file", "token"]) == 0
    assert served.headers["Authorization"] == "Bearer a-token"
    loaded = load(here / "sub" / "sizewatch.yaml")
    targets = [(target.url, target.bearer_token_file) for target in loaded.config.targets]
    assert targets == [(url, str(here / "token")) for url in (served.url, f"{other.url}?key=x")]
    assert (here / "sub" / "sizewatch.yaml").stat().st_mode & 0o077 == 0, "the query may be a secret"
    assert "no page  http://127.0.0.1:9/metrics: connection refused" in capsys.readouterr().out
    # GPUs of this machine are not those of an engine elsewhere.
    planned = ((tier.gpu.product, tier.gpu.per_replica) for tier in loaded.plan.tiers.values())
    assert [*chain.from_iterable(planned)] == gpus


@pytest.mark.usefixtures("engine")
def test_run_starts_the_daemon_on_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[SimpleNamespace] = []
    monkeypatch.setattr(init.run_command, "run", lambda options, surroundings: started.append(options) or 0)
    assert main(["init", "--run", "--out", "there"]) == 0
    assert [(one.config, one.role) for one in started] == [("there/sizewatch.yaml", None)]


def test_first_view_waits_for_requests(tmp_path: Path, capsys: Captured) -> None:
    clock, view = StandingClock(1_800_000_000.0), init.FirstView(" -c x.yaml", "plan.yaml")
    with engines() as served:
        served[0].pages = (*pages()[:1] * 3, *pages()[40:80:3])
        with stepping(write(tmp_path, configuration(served)), clock, on_cycle=view.show) as stepped:
            stepped.step(15.0)
            assert capsys.readouterr().out == ""
            stepped.step(15.0)
            assert capsys.readouterr().out.splitlines() == [init.NO_REQUESTS]
            for _ in range(init.CYCLES_WITH_TRAFFIC - 1):
                stepped.step(15.0)
            assert capsys.readouterr().out == ""
            stepped.step(15.0)
            shown = capsys.readouterr().out.splitlines()
            stepped.step(15.0)
            assert capsys.readouterr().out == ""
            url = stepped.daemon.web.url  # type: ignore[union-attr]
    check_golden(__file__, "first_view.txt", "\n".join(line.rstrip() for line in shown).replace(url, "URL"))
