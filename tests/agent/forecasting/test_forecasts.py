"""The forecasting process as the daemon has it: a real one on a real history, and what becomes of one that misbehaves."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from forecast_samples import DAY_MINUTES, NOW, SETTLED, TIER, keep, question
from paths import ROOT
from waiting import CEILING_SECONDS, wait_for

from agent.forecasting.history_input import no_forecast
from agent.forecasting.messages import answer_line
from agent.forecasting.service import (
    FIRST_PAUSE_SECONDS,
    FORECAST_MEMORY_BYTES,
    MEMORY_BYTES_A_TIER,
    ForecastService,
    forecast_command,
)
from agent.worker import process
from agent.worker.process import WorkerError, WorkerFailure, WorkerProcess
from exporters.status.records import ForecastStatus
from rules.evaluator.timeline import TimelineKind

SHORT = 600
"""Minutes of history in tests that need a forecast, not a good one."""


@contextmanager
def forecasting(
    words: Callable[[int], Sequence[str]] = forecast_command, **options: float
) -> Iterator[ForecastService]:
    made = ForecastService(words, **{"question_seconds": CEILING_SECONDS, **options})  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


def saying(code: str) -> Callable[[int], Sequence[str]]:
    """A process in place of the real one."""
    return lambda memory_bytes: (sys.executable, "-c", f"import sys, time, os\n{code}")


def shown(forecasts: ForecastService, minutes_later: int = 0) -> ForecastStatus:
    return forecasts.status(TIER, None, 3, NOW + 60.0 * minutes_later)


def cpu_seconds(pid: int) -> float:
    """What a process has worked until now: on a busy machine it may take much longer."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return keep(tmp_path / "history.db", SHORT)


def test_a_real_process_forecasts_a_real_history_and_keeps_to_its_memory(tmp_path: Path) -> None:
    path = keep(tmp_path / "history.db", 3 * DAY_MINUTES)
    with forecasting() as forecasts:
        assert forecasts.run([question(path)]) == ()
        first = forecasts.pid
        found = shown(forecasts)
        assert found.forecast is not None
        assert found.forecast.projection.method == "sizewatch"
        assert found.recommended is not None
        assert found.at_lead is not None
        assert found.at_lead.t == SETTLED
        assert found.minimum_warm == 3
        health = forecasts.health()
        assert (health.runs, dict(health.failures), health.troubles) == (1, {}, ())
        assert health.memory_bytes is not None
        assert 30e6 < health.memory_bytes < 300e6
        # The next minutes of the history: the process is the same one, and takes up what is new.
        keep(path, 5, SETTLED + 300.0)
        assert first is not None
        before = cpu_seconds(first)
        forecasts.run([question(path, minutes_later=5)])
        assert forecasts.pid == first
        assert cpu_seconds(first) - before < 1.0
        later = shown(forecasts, 5)
        assert later.forecast is not None
        assert later.forecast.projection.points[0].t == SETTLED + 300.0


def test_a_killed_process_costs_one_forecast(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        before, first = shown(forecasts), forecasts.pid
        assert before.recommended is not None
        assert first is not None
        os.kill(first, signal.SIGKILL)
        keep(history, 1, SETTLED + 60.0)
        (died,) = forecasts.run([question(history, minutes_later=1)])
        assert (died.kind, died.tier) == (TimelineKind.FORECAST, TIER)
        assert died.text == (
            "the forecasting process died: killed by SIGKILL; the forecast before it stays until it is outlived"
        )
        kept = shown(forecasts, 1)
        assert kept.recommended == before.recommended
        assert kept.forecast == before.forecast
        assert kept.trouble == "the forecasting process died: killed by SIGKILL"
        assert forecasts.health().failures == {"died": 1}
        keep(history, 1, SETTLED + 120.0)
        (again,) = forecasts.run([question(history, minutes_later=2)])
        assert again.text == "forecasting works again; 1 question was not answered"
        assert forecasts.pid not in (None, first)
        fresh = shown(forecasts, 2)
        assert fresh.trouble == ""
        assert fresh.prewarm is not None
        assert fresh.prewarm.recommendation is not None
        assert fresh.prewarm.recommendation.made_at == NOW + 120.0


@pytest.mark.parametrize(
    ("code", "fault", "words"),
    [
        ("print('hello', flush=True)\nsys.stdin.read()", WorkerFailure.GARBAGE, "answered what is no answer"),
        ("while True: print('x' * 65536, end='')", WorkerFailure.GARBAGE, "answered without end"),
        ("sys.exit(7)", WorkerFailure.DIED, "exit code 7"),
        ("os.kill(os.getpid(), 11)", WorkerFailure.DIED, "killed by SIGSEGV"),
        ("time.sleep(60)", WorkerFailure.TIMEOUT, "took too long"),
        (
            "sys.stdin.readline(); print('half an ans', end='', flush=True); time.sleep(60)",
            WorkerFailure.TIMEOUT,
            "too long",
        ),
    ],
)
def test_a_process_that_misbehaves_is_ended_told_and_counted(code: str, fault: WorkerFailure, words: str) -> None:
    with forecasting(
        saying(code), question_seconds=0.5 if fault is WorkerFailure.TIMEOUT else CEILING_SECONDS
    ) as forecasts:
        (told,) = forecasts.run([question()])
        assert words in told.text
        assert forecasts.health().failures == {fault.value: 1}
        assert forecasts.pid is None
        found = shown(forecasts)
        assert found.recommended is None
        assert words in found.gap


def test_a_process_that_cannot_be_begun_is_told(tmp_path: Path) -> None:
    with forecasting(lambda memory_bytes: (str(tmp_path / "nothing"),)) as forecasts:
        (told,) = forecasts.run([question()])
        assert told.text.startswith("the forecasting process cannot be begun: ")
        assert forecasts.health().failures == {"start": 1}


def test_an_answer_to_another_question_is_garbage() -> None:
    line = answer_line(no_forecast(question(minutes_later=1), "x"))
    with forecasting(saying(f"sys.stdin.readline()\nsys.stdout.write({line.decode()!r})")) as forecasts:
        (told,) = forecasts.run([question()])
        assert told.text == "the forecasting process answered another question"
        assert forecasts.pid is None


def test_a_process_that_keeps_failing_is_begun_with_growing_pauses() -> None:
    now = 1000.0
    with forecasting(saying("sys.exit(1)"), monotonic=lambda: now) as forecasts:  # type: ignore[arg-type]
        tried = []
        for minute in range(16):
            before = forecasts.health().failures.get("died", 0)
            forecasts.run([question(minutes_later=minute)])
            if forecasts.health().failures["died"] > before:
                tried.append(minute)
            now += 60.0
        # At once, after two minutes, four, eight.
        assert FIRST_PAUSE_SECONDS == 120.0
        assert tried == [0, 1, 3, 7, 15]


def with_answers(code: str) -> Callable[[int], Sequence[str]]:
    """The real process, in which `real(self, asked)` answers as it does and `result` is what is asked."""
    return saying(
        f"sys.argv = ['worker', '{FORECAST_MEMORY_BYTES}']\n"
        "from agent.forecasting import history_input as history_forecasts; from agent.forecasting import worker\n"
        "real = history_forecasts.HistoryForecasts.respond\n"
        f"{code}\n"
        "history_forecasts.HistoryForecasts.respond = answer\n"
        "sys.exit(worker.main())"
    )


def test_what_a_library_prints_does_not_come_between_the_answers(
    history: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        "def answer(self, asked):\n"
        "    print('[LightGBM] chatter', flush=True)\n"
        "    os.write(1, b'more\\n')\n"
        "    return real(self, asked)"
    )
    with forecasting(with_answers(code)) as forecasts:
        assert forecasts.run([question(history)]) == ()
        assert shown(forecasts).recommended is not None
    assert "forecast worker stderr: [LightGBM] chatter" in [record.getMessage() for record in caplog.records]


def test_a_defect_costs_this_tier_its_forecast_and_the_process_goes_on(
    history: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "def answer(self, asked):\n    return 1 / 0 if asked.tier == 'bad' else real(self, asked)"
    with forecasting(with_answers(code)) as forecasts:
        (told,) = forecasts.run([question(history, tier="bad"), question(history)])
        assert told.text == "the forecast failed: ZeroDivisionError: division by zero"
        assert told.tier == "bad"
        assert shown(forecasts).recommended is not None
        assert forecasts.health().failures == {"error": 1}
        assert forecasts.pid is not None
    assert any("Traceback" in record.getMessage() for record in caplog.records)


def test_one_tiers_failure_costs_the_others_nothing(tmp_path: Path) -> None:
    path = keep(tmp_path / "history.db", 30, tier="good")
    with forecasting() as forecasts:
        # A time of next to no seconds is a defect's doing, and raises inside the process.
        forecasts.run([question(path, tier="bad", country="DE", zone="Nowhere/Atall"), question(path, tier="good")])
        assert forecasts.status("good", None, 1, NOW).recommended is not None
        assert forecasts.status("bad", None, 1, NOW).recommended is None
        assert forecasts.pid is not None


def test_after_a_defect_the_tier_begins_anew(history: Path) -> None:
    code = (
        "from agent.forecasting.tier_forecast import TierForecast\n"
        "begun, asked_for, begin, whole = [], [], TierForecast.__init__, TierForecast.respond\n"
        "def counted(self, *given):\n"
        "    begun.append(1)\n"
        "    begin(self, *given)\n"
        "def failing(self, asked):\n"
        "    asked_for.append(1)\n"
        "    if len(asked_for) > 1: raise ValueError(f'begun {len(begun)} times')\n"
        "    return whole(self, asked)\n"
        "TierForecast.__init__, TierForecast.respond = counted, failing\n"
        "def answer(self, asked): return real(self, asked)"
    )
    with forecasting(with_answers(code)) as forecasts:
        forecasts.run([question(history)])
        assert forecasts.health().failures == {}
        for minute, times in ((1, 1), (2, 2)):
            forecasts.run([question(history, minutes_later=minute)])
            assert forecasts.health().troubles == (f"h100: the forecast failed: ValueError: begun {times} times",)


def test_a_process_that_wants_too_much_memory_ends_and_costs_one_forecast(history: Path) -> None:
    code = "def answer(self, asked):\n    return bytearray(600 * 2**20)"
    with forecasting(with_answers(code)) as forecasts:
        (told,) = forecasts.run([question(history)])
        assert told.text == "the forecasting process died: it needed more memory than it may take"
        assert forecasts.pid is None


def test_a_process_that_cannot_even_load_its_libraries_is_told(history: Path) -> None:
    with forecasting(lambda memory_bytes: forecast_command(8 * process.MIB)) as forecasts:
        (told,) = forecasts.run([question(history)])
        assert told.text.startswith("the forecasting process died: ")
        assert forecasts.pid is None


def test_the_memory_limit_is_the_systems_and_grows_with_the_tiers(history: Path) -> None:
    asked: list[int] = []

    def words(memory_bytes: int) -> Sequence[str]:
        asked.append(memory_bytes)
        return forecast_command(memory_bytes)

    with forecasting(words) as forecasts:
        forecasts.run([question(history), question(history, tier="another")])
        limits = Path(f"/proc/{forecasts.pid}/limits").read_text()
        assert asked == [FORECAST_MEMORY_BYTES + MEMORY_BYTES_A_TIER]
        (line,) = [one for one in limits.splitlines() if one.startswith("Max data size")]
        assert line.split()[3] == str(asked[0])


def test_the_process_inherits_no_secret_no_file_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    one = WorkerProcess(forecast_command(FORECAST_MEMORY_BYTES))
    try:
        environment = Path(f"/proc/{one.pid}/environ").read_bytes().decode().split("\0")
        assert wait_for(lambda: os.readlink(f"/proc/{one.pid}/exe"))
        names = {entry.partition("=")[0] for entry in environment if entry}
        assert names <= {*process.INHERITED, *process.ONE_THREAD, "PYTHONPATH"}
        assert os.readlink(f"/proc/{one.pid}/cwd") == "/"
        # A Ctrl-C at the daemon's terminal does not reach it.
        assert os.getsid(one.pid) == one.pid
    finally:
        one.close()


def test_the_process_leaves_by_itself_when_the_daemon_is_gone() -> None:
    code = (
        "import os\nfrom agent.forecasting.service import forecast_command\nfrom agent.worker.process import WorkerProcess\n"
        "one = WorkerProcess(forecast_command(2**29))\nprint(one.pid, flush=True)\nos._exit(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )
    left = Path(f"/proc/{int(done.stdout)}/stat")
    assert wait_for(lambda: not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z")


def test_what_the_process_complains_of_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    code = "sys.stderr.write('cannot load this\\n')\nfor n in range(1000): sys.stderr.write(f'{n}\\n')\nsys.exit(1)"
    with caplog.at_level(logging.WARNING), forecasting(saying(code)) as forecasts:
        forecasts.run([question()])
    said = [record.getMessage() for record in caplog.records]
    assert "forecast worker stderr: cannot load this" in said
    assert "forecast worker stderr truncated lines=200" in said
    assert len(said) < 250


def test_a_stop_ends_a_question_that_is_under_way_and_is_no_failure() -> None:
    forecasts = ForecastService(saying("time.sleep(86400)"), question_seconds=86_400.0)
    asking = threading.Thread(target=forecasts.run, args=([question()],))
    asking.start()
    assert wait_for(lambda: forecasts.pid is not None)
    forecasts.close()
    asking.join(CEILING_SECONDS)
    assert not asking.is_alive()
    assert forecasts.health().failures == {}
    assert forecasts.run([question(minutes_later=1)]) == ()


def test_replicas_that_were_asked_for_are_held_by_a_process_that_begins_anew(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        usual = shown(forecasts).recommended
        forecasts.run([question(history, minutes_later=1, minimum_warm=30)])
        assert shown(forecasts, 1).recommended == 30
        # Other settings, another forecaster: thirty were asked for a minute ago and may just be starting.
        forecasts.run([question(history, minutes_later=2)])
        assert shown(forecasts, 2).recommended == 30
        for minute in range(3, 7):
            forecasts.run([question(history, minutes_later=minute)])
        after = shown(forecasts, 6).recommended
        assert usual is not None
        assert after is not None
        assert after < usual + 3


def test_what_is_outlived_is_not_shown_any_more(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        assert shown(forecasts).recommended is not None
        # For one lead later it was made, of 140 s, and one bin beyond that it says nothing.
        assert forecasts.status(TIER, None, 3, NOW + 140.0 + 300.0).recommended is not None
        outlived = forecasts.status(TIER, None, 3, NOW + 140.0 + 301.0)
        assert outlived.recommended is None
        assert outlived.minimum_warm is None
        assert outlived.now_rps is None
        (projection,) = forecasts.projections().values()
        # The bins that begin within the lead and three more: two forecasts may be missing.
        last = projection.points[-1].t
        assert NOW + 140.0 + 600.0 < last <= NOW + 140.0 + 900.0
        assert forecasts.status(TIER, None, 3, last).forecast is not None
        gone = forecasts.status(TIER, None, 3, last + 1.0)
        assert gone.forecast is None
        assert gone.at_lead is None
        assert gone.gap == f"the forecast of {(last + 1.0 - NOW) / 60:.0f} min ago is outlived"
        assert projection.points_until(last + 1.0) == ()
        # The schedule is of demand up to half a minute before it was made.
        kept, old = (forecasts.status(TIER, None, 3, NOW - 30.0 + age).prewarm for age in (3600.0, 3601.0))
        assert kept is not None
        assert old is not None
        assert kept.schedule
        assert (old.schedule, old.reason) == (
            (),
            "the newest demand of the tier is 1 h old: no schedule is made of it",
        )


def test_what_was_said_a_lead_ago_of_now_is_kept(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        assert shown(forecasts).for_now is None
        first = shown(forecasts).at_lead
        for minute in (1, 2, 3):
            keep(history, 1, SETTLED + 60.0 * minute)
            forecasts.run([question(history, minutes_later=minute)])
        assert shown(forecasts, 3).for_now == first


def test_no_older_ones_are_kept_than_what_was_said_a_lead_ago(history: Path) -> None:
    """Of forecasts a minute apart with a lead of 140 s: the last one that is so old, and those made since."""
    with forecasting() as forecasts:
        for minute in range(6):
            keep(history, 1, SETTLED + 60.0 * minute)
            forecasts.run([question(history, minutes_later=minute)])
        tier = forecasts._tiers[TIER]
        for kept in (tier.projections, tier.requests):
            assert [one.made_at for one in kept] == [NOW + 60.0 * minute for minute in (2, 3, 4, 5)]


def test_a_tier_that_is_watched_no_more_is_forgotten(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        forecasts.keep(())
        assert forecasts.projections() == {}
        assert shown(forecasts).gap == "no forecast is made yet"


def test_a_tier_that_has_been_silent_for_weeks_is_answered_in_time(tmp_path: Path) -> None:
    path = keep(tmp_path / "history.db", 3 * DAY_MINUTES, SETTLED - 20 * 86_400)
    with forecasting() as forecasts:
        assert forecasts.run([question(path)]) == ()
        assert forecasts.pid is not None
        assert cpu_seconds(forecasts.pid) < 10.0
        found = shown(forecasts)
        assert found.recommended is None
        assert found.now_rps is None
        assert found.prewarm is not None
        assert found.prewarm.reason == "the newest demand of the tier is 20 d old; after 10 min nothing is recommended"


def test_a_history_without_this_tier_or_without_a_file_says_so(history: Path, tmp_path: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history, tier="unseen"), question(tmp_path / "none.db", tier="nowhere")])
        assert forecasts.status("unseen", None, 1, NOW).gap == "no demand of this tier has been kept yet"
        assert "none.db" in forecasts.status("nowhere", None, 1, NOW).gap
        assert forecasts.health().failures == {}


def test_the_daemons_side_loads_no_numbers_library() -> None:
    code = (
        "import sys, agent.daemon.daemon, agent.forecasting.service, agent.forecasting.requests, exporters.status.page\n"
        "print([m for m in ('numpy', 'pandas', 'scipy', 'statsmodels', 'lightgbm', 'dateutil', 'holidays') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=True
    )
    assert done.stdout.strip() == "[]"


def test_asking_where_nothing_answers_ends_the_process() -> None:
    one = WorkerProcess(saying("time.sleep(60)")(0))
    with pytest.raises(WorkerError):
        one.ask(b"?\n", 0.1)
    assert not Path(f"/proc/{one.pid}").exists()
