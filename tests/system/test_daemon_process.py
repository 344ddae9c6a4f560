"""`sizewatch run` as a process: signals, kill -9, commands beside it; and faults that `make chaos` found something by."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from daemon_runs import PLAN, ask, configuration, process, results, run_command, running, write
from engine_server import Engine, Handler, answers_500, cuts_off, engines, give, hangs, is_html, is_strange, redirects
from paths import ROOT, SUPPORT
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.config.load import load
from agent.config.peer import Peer
from agent.history.store import HistoryStore
from agent.scrape.scrapers import Scrapers, Target

Process = subprocess.Popen[str]


@contextmanager
def daemon(folder: Path, served: list[Engine], **keys: Any) -> Iterator[tuple[Process, str]]:
    """`sizewatch run` after its first cycle, and its address."""
    port = free_port()
    path = write(folder, configuration(served, web={"listen": f"127.0.0.1:{port}"}, **keys))
    url = f"http://127.0.0.1:{port}/"
    with process("run", "-c", str(path)) as started:
        assert wait_for(lambda: results(url) or started.poll() is not None)
        yield started, url


def ended(started: Process) -> tuple[int, str, str]:
    """Exit code, standard output and error."""
    out, err = started.communicate(timeout=CEILING_SECONDS)
    return started.returncode, out, err


def run(*words: str) -> tuple[int, str, str]:
    with process(*words) as started:
        return ended(started)


def minutes(folder: Path) -> float:
    """Replica-seconds in the history."""
    with HistoryStore.open_reader(folder / "sizewatch-data" / "history.db") as reader:
        return sum(one.window.covered_seconds for one in reader.minutes("cpu-small", 0.0, 1e11))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_and_books_open_minute(tmp_path: Path, number: signal.Signals) -> None:
    with engines() as served, daemon(tmp_path, served) as (started, url):
        assert wait_for(lambda: len(served[0].asked) >= 4)
        started.send_signal(number)
        code, out, err = ended(started)
    assert (code, out) == (0, "")
    assert 'watching="1 target" interval_seconds=0.5 role=standalone' in err
    assert f"status_page={url}" in err
    assert "stopped cycles=" in err
    assert "Traceback" not in err
    assert not results(url)
    assert minutes(tmp_path) > 0.5


def test_sighup_takes_good_and_bad_configuration(tmp_path: Path) -> None:
    with engines(2) as served, daemon(tmp_path, served[:1]) as (started, url):
        path = tmp_path / "sizewatch.yaml"
        good = path.read_text()
        path.write_text(good + "nonsense: 1\n")
        started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: "nonsense" in str(json.loads(ask(url, "api/status"))["agent"]["config_trouble"]))
        path.write_text(good.replace("targets:\n", f"targets:\n- {{url: '{served[1].url}', tier: cpu-small}}\n"))
        for _ in range(20):
            started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: len(served[1].asked) >= 2)
        status = json.loads(ask(url, "api/status"))
        assert status["config"] == str(path)
        agent = status["agent"]
        assert agent["config_trouble"] is None
        assert agent["cycle_errors"] == 0
        started.send_signal(signal.SIGTERM)
        assert ended(started)[0] == 0


def test_pipe_as_plan_stops_nothing(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_bytes(PLAN.read_bytes())
    with engines() as served, daemon(tmp_path, served, plan=str(plan)) as (started, url):
        plan.unlink()
        os.mkfifo(plan)
        started.send_signal(signal.SIGHUP)
        asked = len(served[0].asked)
        assert wait_for(lambda: len(served[0].asked) > asked + 2), "cycles go on"
        assert results(url)
        started.send_signal(signal.SIGTERM)
        code, _, err = ended(started)
    assert code == 0
    assert f"{plan}: is a pipe" in err
    assert "stopped cycles=" in err
    assert "Traceback" not in err


def test_kill_9_leaves_a_whole_history(tmp_path: Path) -> None:
    with engines() as served:
        with running(write(tmp_path, configuration(served)), cycles=5):
            pass
        before = minutes(tmp_path)
        assert before > 0
        with daemon(tmp_path, served) as (started, url):
            beside = run("check", "-c", str(tmp_path / "sizewatch.yaml"))
            assert results(url)
            started.send_signal(signal.SIGKILL)
            assert ended(started)[0] == -signal.SIGKILL
        after = run("check", "-c", str(tmp_path / "sizewatch.yaml"))
        for code, out, err in (beside, after):
            assert (code, err) == (3, "")
            # A minute that ended meanwhile has requests.
            assert out.startswith(("cpu-small: cannot be judged (", "cpu-small: learning, 0 of 180 min ("))
        assert minutes(tmp_path) >= before
        with closing(sqlite3.connect(tmp_path / "sizewatch-data" / "history.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with running(tmp_path / "sizewatch.yaml") as again:
            assert again.counts.cycle_errors == 0


def page_of(handler: Handler) -> bytes:
    return handler.server.pages[0]


def hangs_mid_page(handler: Handler) -> None:
    page = page_of(handler)
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    handler.wfile.write(page[: len(page) // 2])
    hangs(handler)


def new_series(handler: Handler) -> bytes:
    asked = len(handler.server.asked)
    return b"".join(b'vllm:num_requests_running{engine="%d-%d"} 1.0\n' % (asked, n) for n in range(10_001))


MISBEHAVIOURS: dict[str, Callable[[Handler], None]] = {
    **{act.__name__: act for act in (answers_500, cuts_off, hangs, hangs_mid_page, is_html, is_strange, redirects)},
    "garbage": lambda handler: give(handler, bytes(range(256)) * 16 + b"\n"),
    "long label": lambda handler: give(
        handler, page_of(handler).replace(b'model_name="', b'model_name="' + b"m" * 70_000)
    ),
    "blank lines": lambda handler: give(handler, page_of(handler) + b"\n" * 1_000_000),
    "comment lines": lambda handler: give(handler, page_of(handler) + b"# a comment\n" * 150_000),
    "series without end": lambda handler: give(handler, page_of(handler) + new_series(handler)),
}


@pytest.mark.parametrize("fault", MISBEHAVIOURS)
@pytest.mark.parametrize("turns", [1, 3, 5])
def test_recovered_engine_is_seen_in_two_cycles(fault: str, turns: int) -> None:
    with engines(1) as (engine,):
        hurried = fault.startswith("hangs")
        options = Peer(url=engine.url, timeout_seconds=0.25 if hurried else CEILING_SECONDS)
        scrapers = Scrapers([Target(tier="t", replica="r0", pool="mixed", peer=options)])
        engine.act = MISBEHAVIOURS[fault]
        during = [scrapers.collect_results(scrapers.start_scrapes())["t", "r0"].snapshot for _ in range(turns)]
        engine.act = None
        engine.released.set()
        after = [scrapers.collect_results(scrapers.start_scrapes())["t", "r0"] for _ in range(2)]
        # A busy machine may take longer than that for a good page as well.
        while hurried and after[-1].snapshot is None and len(after) < 100:
            after.append(scrapers.collect_results(scrapers.start_scrapes())["t", "r0"])
        scrapers.close()
    assert during == [None] * turns
    assert after[-1].snapshot is not None


def python(program: str, *words: str) -> str:
    """What a program of its own says, on a machine whose files may not grow."""
    text = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(SUPPORT)!r}]\n{program}"
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, check=True)
    return done.stdout


NO_ROOM_FOR_THE_NAME = """
import resource
from pathlib import Path
from agent.files import DataDir
from agent.errors import ConfigError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
ours = DataDir(Path(sys.argv[1]), Path("sizewatch.yaml"))
try:
    DataDir(Path(sys.argv[1]), Path("sizewatch.yaml"))
except ConfigError as error:
    print(error)
"""


def test_full_disk_costs_holder_name_only(tmp_path: Path) -> None:
    (told,) = python(NO_ROOM_FOR_THE_NAME, str(tmp_path / "data")).splitlines()
    assert "is in use by another sizewatch (process not named: the disk was full); stop that one" in told


def test_suspended_daemon_continues(tmp_path: Path) -> None:
    port = free_port()
    with engines() as served:
        path = write(tmp_path, configuration(served, web={"listen": f"127.0.0.1:{port}"}))
        with process("run", "-c", str(path)) as started:
            url = f"http://127.0.0.1:{port}/"
            assert wait_for(lambda: results(url))
            started.send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            asked = len(served[0].asked)
            started.send_signal(signal.SIGCONT)
            assert wait_for(lambda: len(served[0].asked) >= asked + 2)
            page = ask(url, "metrics").decode()
            started.send_signal(signal.SIGTERM)
            _, said = started.communicate(timeout=CEILING_SECONDS)
    assert started.returncode == 0
    assert "sizewatch_cycle_errors_total 0.0" in page
    assert "Traceback" not in said


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
