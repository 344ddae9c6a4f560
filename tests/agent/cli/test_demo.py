"""The demo: real recordings played as three tiers, watched by the real daemon, and nothing left of it afterwards."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_runs import ask, process
from engine_server import engines
from waiting import CEILING_SECONDS, StandingClock, free_port, wait_for

from agent.demo.engines import CAST, HERE, Clock, Player, track
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load
from rules.replicas.state import ScrapeTrack, record_success
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING

Demo = subprocess.Popen[str]

START = 1_800_000_000.0


@contextmanager
def demo(folder: Path, *words: str) -> Iterator[Demo]:
    """`sizewatch demo` whose temporary files lie in a folder of their own, which is empty again after it."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        with process("demo", *words) as started:
            yield started
        assert list(folder.iterdir()) == []
    finally:
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


def head(started: Demo) -> tuple[str, str]:
    """What it says first, and the address in it."""
    lines = []
    assert started.stdout is not None
    for line in started.stdout:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
            return "".join(lines), found[0]
    raise AssertionError(f"no address in {lines}, {started.communicate()}")


def end(started: Demo, number: signal.Signals) -> None:
    started.send_signal(number)
    out, err = started.communicate(timeout=CEILING_SECONDS)
    assert (started.returncode, err) == (0, "")
    assert out.endswith("\nEnded; nothing was left behind.\n")


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def status(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(url, "api/status"))
    return found


def test_demo_shows_cascade_and_divergence(tmp_path: Path) -> None:
    # A busy machine misses turns where time runs fast, and with them a stage; then it is tried where it runs slower.
    texts = (_said_and_shown(tmp_path, speed) for speed in (30, 6, 2))
    cascade = r"KvCacheCascade in cascade/cascade-0, stage"
    begin, worst = re.compile(rf" 0:\d\d \w+ {cascade} \d"), re.compile(rf"CRITICAL {cascade} [34]")
    assert any(begin.search(text) and worst.search(text) for text in texts)


def _said_and_shown(tmp_path: Path, speed: int) -> str:
    """What the terminal says until the divergence, while the pages are looked at and before it is ended in order."""
    with demo(tmp_path, "--port", "0", "--speed", str(speed)) as started:
        said, url = head(started)
        assert f"Demo: recorded engines at {speed} times their speed, made-up prices." in said
        for part in CAST:
            assert re.search(rf"^  {part.tier} +{part.says}$", said, re.MULTILINE)
        heard = []
        assert started.stdout is not None
        for line in started.stdout:
            heard.append(line)
            if "TpotDivergence in noisy" in line:
                break
        text = " ".join("".join(heard).split())
        assert "Times below are the engines' own, minutes:seconds since the start" in text
        assert "do: " in text
        page = ask(url).decode()
        assert all(part.tier in page for part in CAST)
        assert "made-up prices" in page
        tiers = {tier["tier"]: tier for tier in status(url)["tiers"]}
        assert set(tiers) == {"quiet", "noisy", "cascade"}
        assert status(url)["agent"]["cycle_errors"] == 0
        assert [path.name.startswith("sizewatch-demo-") for path in tmp_path.iterdir()] == [True]
        end(started, signal.SIGINT)
    with pytest.raises(OSError, match="refused"):
        ask(url)
    return text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_closed_terminal_or_kill_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path, "--port", "0", "--speed", "30") as started:
        _, url = head(started)
        assert wait_for(lambda: _turned(url))
        assert children(started.pid) == []
        end(started, number)


def _turned(url: str) -> bool:
    try:
        return ask(url, "readyz") == b"ok\n"
    except OSError:
        return False


def test_demo_ends_by_itself(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--seconds", "0.5") as started:
        assert "nothing was left behind" in started.communicate(timeout=CEILING_SECONDS)[0]
        assert started.returncode == 0


def test_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with engines() as (engine,), demo(tmp_path, "--port", str(engine.port)) as started:
        out, err = started.communicate(timeout=CEILING_SECONDS)
    assert (started.returncode, out) == (2, "")
    assert err.startswith(f"sizewatch demo: --port: cannot listen on 127.0.0.1:{engine.port}: Address already in use")


def test_reader_that_goes_away_ends_it(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", str(free_port()), "--speed", "60") as started:
        head(started)
        started.stdout.close()
        assert started.wait(timeout=CEILING_SECONDS) == 0
        assert started.stderr.read() == ""


def test_recording_plays_from_the_first_request() -> None:
    recording, _ = load(HERE / "recordings" / "kv_cascade")
    # The first page is asked for at a clock of 0.
    one, now = track(recording, "x", 46.0), StandingClock(-1000.0)
    player = Player((one,), now)
    now.now += 1000.0
    pages = []
    for _ in range(4):
        pages.append(player.page("x"))
        now.now += 15.0
    first = one.scrapes[0].t
    expected = [max((s for s in one.scrapes if s.t - first <= 46 + 15 * n), key=lambda s: s.t).body for n in range(4)]
    assert pages == expected
    with pytest.raises(OSError, match="404"):
        ask(player.url("y"))
    player.stop()


@pytest.mark.parametrize("part", CAST, ids=lambda part: part.tier)
def test_replayed_recording_is_a_restarted_engine(part: Any) -> None:
    recording, problems = load(HERE / "recordings" / part.recording)
    assert problems == ()
    one, now, reader = track(recording, part.tier, part.begin), StandingClock(START), PageReader()
    player = Player((one,), now)
    state, gaps = ScrapeTrack(), []
    rounds = int((part.begin + 59 * 15.0) // (one.scrapes[-1].t - one.scrapes[0].t))
    for _ in range(60):
        body = player.page(part.tier)
        if body is not None:
            state, window = record_success(state, reader.read(body, now.now))
            gaps += [window.gaps.get(EVERYTHING)] if window is not None else []
        now.now += 15.0
    assert gaps.count(Gap.RESTARTED) == rounds >= 2
    assert set(gaps) <= {None, Gap.RESTARTED, Gap.SCRAPE_FAILED}
    player.stop()


def test_clock_runs_faster_by_its_factor() -> None:
    earliest = time.time()
    clock = Clock(100.0)
    outer = time.monotonic()
    begin = clock()
    inner = time.monotonic()
    time.sleep(0.05)
    at_least = time.monotonic() - inner
    passed = clock() - begin
    assert 100.0 * at_least <= passed <= 100.0 * (time.monotonic() - outer)
    assert earliest - 0.1 <= begin <= earliest + 100.0 * (time.monotonic() - outer) + 1.0
