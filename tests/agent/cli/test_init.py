"""`sizewatch init`: engines by ports and processes of a made /proc, the files it writes, and what it says without one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_server import Engine, engines
from gpu_samples import readout
from paths import TESTS

from agent.cli import init
from agent.cli.main import main
from agent.config.load import load

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, port: int, inode: int, state: str = "0A") -> str:
    return (
        f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1 0 0\n"
    )


def process(
    proc: Path, pid: int, command: str, tcp: str, *, net: str = "net:[1]", inodes: tuple[int, ...] = ()
) -> Path:
    folder = proc / str(pid)
    (folder / "net").mkdir(parents=True)
    (folder / "fd").mkdir()
    (folder / "ns").mkdir()
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "net" / "tcp").write_text(HEAD + tcp)
    os.symlink(net, folder / "ns" / "net")
    for number, inode in enumerate(inodes):
        os.symlink(f"socket:[{inode}]", folder / "fd" / str(number))
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """This process in namespace 1, where 8000, 30000 (all addresses), 3000 (another address) and 8080 (connected) are."""
    made = tmp_path / "proc"
    tcp = (
        row("0100007F", 8000, 11)
        + row("00000000", 30000, 12)
        + row("0200000A", 3000, 13)
        + row("0100007F", 8080, 14, "01")
    )
    process(made, 1, "/sbin/init", tcp)
    os.symlink("1", made / "self")
    return made


def places(found: tuple[init.Candidate, ...]) -> list[tuple[str, int, str]]:
    return [(one.host, one.port, one.evidence) for one in found]


def test_usual_ports_that_listen_on_loopback_are_asked(proc: Path) -> None:
    assert places(init.find_candidates(proc)) == [("127.0.0.1", 8000, "port 8000"), ("127.0.0.1", 30000, "port 30000")]


def test_an_engine_on_an_odd_port_is_found_by_its_process_with_its_parallelism(proc: Path) -> None:
    command = (
        "python -m vllm.entrypoints.openai.api_server --port 9999 --tensor-parallel-size 4 --pipeline-parallel-size=2"
    )
    process(proc, 77, command, row("00000000", 9999, 21) + row("00000000", 8000, 11), inodes=(21,))
    found = init.find_candidates(proc)
    assert places(found)[0] == ("127.0.0.1", 9999, "process 77")
    assert [one.parallel for one in found] == [8, None, None]


def test_an_engine_in_a_pod_is_asked_at_the_address_of_the_pod(proc: Path) -> None:
    folder = process(proc, 78, "sglang serve --tp 2", row("00000000", 30000, 31), net="net:[2]", inodes=(31,))
    (folder / "net" / "fib_trie").write_text(
        "Local:\n  |-- 10.4.0.9\n     /32 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\n"
    )
    assert ("10.4.0.9", 30000, "process 78") in places(init.find_candidates(proc))


def test_a_process_whose_sockets_may_not_be_seen_is_asked_on_the_usual_ports(proc: Path) -> None:
    folder = process(proc, 79, "/usr/bin/llama-server --metrics", row("0100007F", 8080, 41) + row("0100007F", 5432, 42))
    (folder / "fd").rmdir()
    assert ("127.0.0.1", 8080, "process 79") in places(init.find_candidates(proc))
    assert 5432 not in [one.port for one in init.find_candidates(proc)]


def candidates(*served: Engine) -> tuple[init.Candidate, ...]:
    return tuple(init.Candidate(host="127.0.0.1", port=one.port, evidence=f"port {one.port}") for one in served)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent.gpu.nvml_reader.list_local_gpus", lambda: ())
    monkeypatch.setattr(init, "ALERTMANAGER", "http://127.0.0.1:9")
    return tmp_path


def test_both_files_are_valid_at_once_and_name_what_is_assumed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with engines() as (engine,):
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(engine))
        assert main(["init"]) == 0
    loaded = load(here / "sizewatch.yaml")
    assert loaded.plan is not None
    (name,) = loaded.plan.tiers
    assert (loaded.plan.tiers[name].gpu.product, loaded.plan.tiers[name].slo.ttft_p99_seconds) == ("cpu", 2.0)
    assert [target.url for target in loaded.config.targets] == [engine.url]
    assert (loaded.warnings, loaded.grave) == ((), ())
    assert (here / "plan.yaml").read_text().count("ASSUMED") == 2
    out = capsys.readouterr().out
    assert f"found    {engine.url}: vLLM" in out
    assert "next     sizewatch run" in out
    assert main(["plan", "check", "plan.yaml"]) == 0


def test_gpus_of_a_replica_are_those_of_its_command_line_or_an_equal_share() -> None:
    gpus = tuple(readout(gpu=f"GPU-{number}", index=number) for number in range(8))
    with engines(2) as served:
        found, refusals = init.ask_candidates(candidates(*served))
        assert refusals == ()
        tiers = init.group_by_tier(found, gpus)
        assert "per_replica: 4  # ASSUMED" in init.plan_text(tiers, gpus, "now")
        ((tier, group),) = tiers.items()
        told = [SimpleNamespace(candidate=SimpleNamespace(parallel=2), probe=one.probe) for one in group]
        assert "per_replica: 2  # ASSUMED" in init.plan_text({tier: told}, gpus, "now")  # type: ignore[dict-item]


def test_files_that_are_there_are_kept_without_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "plan.yaml").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err == "sizewatch init: plan.yaml: is there already; --force replaces it\n"
    assert (here / "plan.yaml").read_text() == "mine"
    assert not (here / "sizewatch.yaml").exists()


def test_without_an_engine_it_says_what_answered_where_it_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with engines() as (engine,):
        engine.pages = (b"up 1\n",)
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(engine))
        assert main(["init"]) == 3
    err = capsys.readouterr().err
    said = err.splitlines()
    assert said[0] == "sizewatch init: no engine answers on this machine:"
    assert said[1].startswith(f"sizewatch init:   127.0.0.1:{engine.port}: no page of an engine")
    assert list(here.iterdir()) == []


def test_a_router_is_no_engine_and_a_page_of_several_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with engines(2) as (router, sidecar):
        router.pages = ((TESTS / "cases" / "01-router" / "page.prom").read_bytes(),)
        sidecar.pages = ((TESTS / "cases" / "04-sidecar-two-workers" / "page.prom").read_bytes(),)
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(router))
        assert main(["init"]) == 3
        assert f"127.0.0.1:{router.port}: a router's page of 2 backends" in capsys.readouterr().err
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(sidecar))
        assert main(["init"]) == 0
    assert "the page holds 2 engines by their label worker_addr: each is a replica" in capsys.readouterr().out


def test_where_nothing_listens_it_names_the_ports(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "find_candidates", lambda: ())
    assert main(["init"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "sizewatch init: no engine answers on this machine: nothing listens on 8000, 30000, 8080, 3000.",
        "sizewatch init: Is the engine up? SGLang needs --enable-metrics, llama.cpp --metrics.",
        "sizewatch init: An engine elsewhere: sizewatch plan init http://HOST:PORT/metrics > plan.yaml",
    ]


def test_what_answered_is_shown_on_one_line_each(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "ask_candidates", lambda candidates: ((), ("a: no\npage\x1b[2J", "b: " + "x" * 300)))
    assert main(["init"]) == 3
    said = capsys.readouterr().err.split("\n")
    assert said[1:3] == ["sizewatch init:   a: no page [2J", f"sizewatch init:   b: {'x' * 196}…"]
    assert [line.partition(": ")[2][:6] for line in said[3:]] == ["Is the", "An eng", ""]


def test_run_starts_the_daemon_on_what_was_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[SimpleNamespace] = []
    monkeypatch.setattr(init.run_command, "run", lambda options: started.append(options) or 0)
    with engines() as (engine,):
        monkeypatch.setattr(init, "find_candidates", lambda: candidates(engine))
        assert main(["init", "--run", "--out", "there"]) == 0
    assert [(one.config, one.role) for one in started] == [("there/sizewatch.yaml", None)]
