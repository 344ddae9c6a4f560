"""The daemon's weekly reports, step by step with the time as an argument: made when due, made late, tried again, never twice."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from daemon_runs import ask, health, metric, reload_daemon, running
from paths import ROOT
from report_runs import (
    CANARY,
    DAY,
    DUE,
    HOUR,
    MINUTE,
    NAME,
    InThisProcess,
    configured,
    mail_server,
    remembered,
    state_of,
    waiting,
    webhook,
    with_history,
    written,
)
from report_samples import WEEK
from waiting import CEILING_SECONDS, wait_for

from agent.config.load import load
from agent.reporting import storage
from agent.reporting.service import JobRunner, ReportService, weekly_times
from agent.reporting.storage import STATE_FILE, ReportState


def service(place: Path, *runner: JobRunner) -> ReportService:
    return ReportService(place / "data", place / "data" / "reports", *runner)


def looked_after(place: Path, now: float, *, reports: ReportService | None = None) -> ReportService:
    """One look at `now` with the configuration that stands there."""
    reports = reports or service(place)
    reports.run(load(place / "sizewatch.yaml"), now)
    return reports


def names(place: Path) -> tuple[str, ...]:
    return storage.names(place / "data" / "reports")


def begun(place: Path, at: float = DUE - WEEK, made_for: float = 0.0) -> None:
    storage.write_state(place / "data" / STATE_FILE, ReportState(begun_at=at, made_for=made_for))


def test_report_is_made_and_sent_once(tmp_path: Path) -> None:
    with_history(tmp_path)
    with webhook() as hook:
        loaded = configured(tmp_path, {"chat": f"json://u:{CANARY}@{hook.place}/x"}, report={"keep": 1})
        reports = looked_after(tmp_path, DUE - HOUR)
        assert (names(tmp_path), hook.taken) == ((), [])
        looked_after(tmp_path, DUE, reports=reports)
        (found,) = hook.taken
        assert names(tmp_path) == (NAME,)
        assert found["title"] == reports.health(loaded, DUE).headline
        assert [one["filename"] for one in found["attachments"]] == ["report.html"]
        told = json.loads((tmp_path / "data" / "reports" / NAME / "report.json").read_text())
        assert (told["until"], told["until"] - told["since"]) == (DUE, WEEK)
        for later in (MINUTE, HOUR, DAY, WEEK - 1):
            looked_after(tmp_path, DUE + later, reports=reports)
        assert len(hook.taken) == 1
        # A daemon that begins anew knows what was done.
        health = looked_after(tmp_path, DUE + 2 * DAY).health(loaded, DUE + 2 * DAY)
        assert len(hook.taken) == 1
    assert (health.newest, health.made_at, health.next_at) == (NAME, DUE, DUE + WEEK)
    assert health.deliveries[0].last_success_at == DUE


def test_missed_report_is_made_at_start(tmp_path: Path) -> None:
    with_history(tmp_path)
    configured(tmp_path)
    # Nothing is due before the first start.
    looked_after(tmp_path, DUE + 1)
    assert (names(tmp_path), state_of(tmp_path).begun_at) == ((), DUE + 1)
    begun(tmp_path, DUE - 3 * WEEK, DUE - 2 * WEEK)
    late = DUE + 2 * DAY
    reports = looked_after(tmp_path, late, reports=service(tmp_path, InThisProcess()))
    # Those of two weeks were missed: only the newest is of any use.
    assert names(tmp_path) == (NAME,)
    path = tmp_path / "data" / "reports" / NAME / "report.json"
    told = json.loads(path.read_text())
    assert (told["until"], told["made_at"]) == (DUE, late)
    before = path.stat().st_mtime_ns
    looked_after(tmp_path, late + HOUR, reports=reports)
    looked_after(tmp_path, late + HOUR, reports=service(tmp_path, InThisProcess()))
    assert path.stat().st_mtime_ns == before


def test_failed_report_is_retried_less_often(tmp_path: Path) -> None:
    loaded = configured(tmp_path)
    begun(tmp_path)
    reports = looked_after(tmp_path, DUE, reports=service(tmp_path, InThisProcess()))
    assert "history" in reports.health(loaded, DUE).trouble
    for seconds, failures in ((0, 1), (59, 1), (60, 2), (60 + 119, 2)):
        looked_after(tmp_path, DUE + seconds, reports=reports)
        assert reports.health(loaded, DUE).failures == failures
    with_history(tmp_path)
    looked_after(tmp_path, DUE + HOUR, reports=reports)
    assert reports.health(loaded, DUE).trouble == ""
    assert (names(tmp_path), state_of(tmp_path).attempts) == ((NAME,), 0)


def test_hanging_or_fat_process_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    with webhook() as slow:
        slow.before = lambda: over.wait() and None
        loaded = waiting(tmp_path, {"slow": f"json://{slow.place}/?rto=50"})
        reports = looked_after(tmp_path, DUE, reports=service(tmp_path, JobRunner(1.0)))
        over.set()
    assert reports.health(loaded, DUE).deliveries[0].trouble == "its process took longer than 1 s and was ended"
    shutil.rmtree(tmp_path / "data")
    with_history(tmp_path)
    loaded = configured(tmp_path)
    begun(tmp_path)
    reports = looked_after(tmp_path, DUE, reports=service(tmp_path, JobRunner(0.05)))
    assert reports.health(loaded, DUE).trouble == "its process took longer than 0.05 s and was ended"
    monkeypatch.setattr("agent.reporting.service.REPORT_MEMORY_BYTES", 30 * 1024 * 1024)
    health = looked_after(tmp_path, DUE + 120).health(loaded, DUE)
    assert (health.failures, bool(health.trouble), names(tmp_path)) == (1, True, ())


def test_clock_jump_repeats_no_report(tmp_path: Path) -> None:
    configured(tmp_path, {"a": "json://127.0.0.1:1/"})
    remembered(tmp_path)
    looked_after(tmp_path, DUE - DAY, reports=service(tmp_path, InThisProcess()))
    assert (names(tmp_path), state_of(tmp_path).made_for) == ((), DUE)
    # The machine's clock stood at 2030 when the report was made.
    remembered(tmp_path, "a", made_for=DUE + 200 * WEEK, tried_at=DUE + 200 * WEEK)
    looked_after(tmp_path, DUE + HOUR, reports=service(tmp_path, InThisProcess()))
    state = state_of(tmp_path)
    assert (state.made_for, state.begun_at, state.tried_at) == (0.0, DUE + HOUR, 0.0)
    with_history(tmp_path)
    looked_after(tmp_path, DUE + WEEK, reports=service(tmp_path, InThisProcess()))
    assert names(tmp_path) == ("2026-11-16",)


def test_each_destination_stands_for_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with webhook() as good, webhook() as bad, mail_server() as box:
        bad.results = [500, 401]
        loaded = waiting(
            tmp_path,
            {
                "gone": f"json://u:{CANARY}@127.0.0.1:1/{CANARY}",
                "ill": f"json://u:{CANARY}@{bad.place}/{CANARY}",
                "chat": f"json://u:{CANARY}@{good.place}/{CANARY}",
                "mail": f"mailto://u:{CANARY}@127.0.0.1:{box.port}?to=a@example.com&from=b@example.com",
                "typo": f"jsno://{CANARY}",
            },
        )
        reports = looked_after(tmp_path, DUE)
        assert (len(good.taken), len(box.mails), bad.asked) == (1, 1, 1)
        told = {one.destination: one for one in reports.health(loaded, DUE).deliveries}
        assert {name: one.trouble for name, one in told.items()} == {
            "gone": "the connection was refused",
            "ill": "it answered 500",
            "chat": "",
            "mail": "",
            "typo": "its address is none that Apprise understands (such as mailtos://, slack://, json://)",
        }
        assert [(one.sent, one.failed, one.pending) for one in told.values()] == [
            (0, 1, 1), (0, 1, 1), (1, 0, 0), (1, 0, 0), (0, 1, 1),
        ]  # fmt: skip
        for seconds, trouble in ((61, "it answered 401"), (61 + 121, "")):
            looked_after(tmp_path, DUE + seconds, reports=reports)
            assert reports.health(loaded, DUE).deliveries[1].trouble == trouble
        assert (len(bad.taken), len(good.taken), len(box.mails)) == (1, 1, 1)
    for text in (caplog.text, repr(reports.health(loaded, DUE)), (tmp_path / "data" / STATE_FILE).read_text()):
        assert CANARY not in text


def test_silent_destination_is_given_up(tmp_path: Path) -> None:
    loaded = waiting(tmp_path, {"gone": "json://127.0.0.1:1/"}, report={"retry_for": "10m"})
    reports = looked_after(tmp_path, DUE)
    for minute in range(1, 20):
        looked_after(tmp_path, DUE + 60 * minute, reports=reports)
    (told,) = reports.health(loaded, DUE).deliveries
    # After 0, 1, 3 and 7 minutes; another one would come after 15.
    assert (told.failed, told.given_up, told.pending) == (3, 1, 0)
    assert told.trouble == f"the report of {NAME} was given up: the connection was refused"
    # That is still known after a restart.
    assert looked_after(tmp_path, DUE + HOUR).health(loaded, DUE).deliveries[0].trouble == told.trouble


def test_variable_address_reaches_its_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as hook:
        monkeypatch.setenv("CHAT_URL", f"json://{hook.place}/mine")
        deliver = [{"name": "chat", "url_env": "CHAT_URL", "with": []}, {"name": "unset", "url_env": "NO_SUCH_URL"}]
        loaded = waiting(tmp_path, report={"deliver": deliver})
        reports = looked_after(tmp_path, DUE)
        (found,) = hook.taken
    assert (found["path"], found["attachments"]) == ("/mine", [])
    trouble = reports.health(loaded, DUE).deliveries[1].trouble
    assert trouble == "the environment variable NO_SUCH_URL is not set, or holds more than one address"


def test_defect_of_a_job_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = None
    result = JobRunner().generate(nothing, DUE, DUE, tmp_path, NAME)
    assert result.trouble.startswith("defect: AttributeError: ")
    assert "report failed\nTraceback" in caplog.text
    assert "in run_generate" in caplog.text


def test_stop_leaves_delivery_for_next_start(tmp_path: Path) -> None:
    with webhook() as hook:
        asked, over = threading.Event(), threading.Event()
        hook.before = lambda: (asked.set(), over.wait())[0]
        waiting(tmp_path, {"chat": f"json://{hook.place}/"})
        reports = service(tmp_path)
        thread = threading.Thread(target=looked_after, args=(tmp_path, DUE), kwargs={"reports": reports})
        thread.start()
        assert asked.wait(CEILING_SECONDS)
        reports.close()
        thread.join(CEILING_SECONDS)
        assert not thread.is_alive()
        over.set()
        (delivery,) = state_of(tmp_path).deliveries.values()
        assert (delivery.is_pending, delivery.attempts) == (True, 1)


def test_bad_state_sends_nothing(tmp_path: Path) -> None:
    with webhook() as hook:
        loaded = waiting(tmp_path, {"chat": f"json://{hook.place}/"})
        # Whoever runs the tests may write everywhere: a folder in the place of the file nobody can write.
        blocked = tmp_path / "data" / f".{STATE_FILE}.new"
        blocked.mkdir()
        reports = looked_after(tmp_path, DUE)
        assert "cannot be read or written" in reports.health(loaded, DUE).trouble
        blocked.rmdir()
        (tmp_path / "data" / STATE_FILE).write_text('{"begun_at": ')
        looked_after(tmp_path, DUE + HOUR)
        assert hook.taken == []
    assert state_of(tmp_path).begun_at == DUE + HOUR


def test_newer_report_replaces_waiting_one(tmp_path: Path) -> None:
    with_history(tmp_path)
    with webhook() as hook:
        loaded = waiting(tmp_path, {"chat": f"json://{hook.place}/"}, report={"retry_for": "7d"})
        hook.results = [503]
        reports = looked_after(tmp_path, DUE)
        looked_after(tmp_path, DUE + WEEK, reports=reports)
        assert len(hook.taken) == 1
    told = reports.health(loaded, DUE).deliveries[0]
    assert (told.sent, told.failed, told.given_up, told.pending, told.trouble) == (1, 1, 1, 0, "")


def test_hostile_name_is_escaped_in_mail(tmp_path: Path) -> None:
    with mail_server() as box, webhook() as hook:
        mail = f"mailto://u:p@127.0.0.1:{box.port}?to=a@example.com&from=b@example.com&format=html"
        configured(tmp_path, {"mail": mail, "chat": f"json://{hook.place}/"})
        place = written(tmp_path)
        told = json.loads((place / "report.json").read_text())
        told["tiers"][0]["verdict"] = "<script>alert(1)</script> & co: keep 10 replicas"
        told["headline"] = "Keep <script>alert(1)</script>\nBcc: x@example.com"
        (place / "report.json").write_text(json.dumps(told))
        remembered(tmp_path, "mail", "chat")
        looked_after(tmp_path, DUE)
        (mailed,), (posted,) = box.mails, hook.taken
    body = mailed.get_body(("html",))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&nbsp;&amp;&nbsp;co" in body.get_content()
    assert "<script" not in body.get_content()
    assert mailed["Subject"] == "Keep <script>alert(1)</script> Bcc: x@example.com"
    assert mailed["Bcc"] is None
    assert posted["message"].startswith("<script>alert(1)</script> & co: keep 10 replicas")


def test_process_shows_no_secret(tmp_path: Path) -> None:
    seen: list[str] = []
    with webhook() as hook:

        def look() -> None:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    words, stat = ((process / file).read_bytes() for file in ("cmdline", "stat"))
                    if b"multiprocessing.spawn" in words and str(os.getpid()).encode() in stat.split():
                        seen.append((words + (process / "environ").read_bytes()).decode())

        hook.before = look
        waiting(tmp_path, {"chat": f"json://u:{CANARY}@{hook.place}/"})
        looked_after(tmp_path, DUE)
        assert len(hook.taken) == 1
    assert seen
    assert CANARY not in "".join(seen)


# ---- when a report is due: over changes of the clock, at the very instant, in every zone ----


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def utc(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%m-%d %H:%M")


@pytest.mark.parametrize(
    ("weekday", "of_day", "now", "expected"),
    [
        # To the second: 7:00 in Berlin is 6:00 in winter.
        (0, time(7), "2026-11-23 06:00:00", ("11-23 06:00", "11-30 06:00")),
        (0, time(7), "2026-11-23 05:59:59", ("11-16 06:00", "11-23 06:00")),
        # 2026-03-29 and 2026-10-25 are Sundays. The time on the wall stays.
        (0, time(7), "2026-03-29 12:00", ("03-23 06:00", "03-30 05:00")),
        (0, time(7), "2026-10-20 12:00", ("10-19 05:00", "10-26 06:00")),
        # The hour from 02:00 to 03:00 is left out on 29 March: the report comes an hour later on the wall.
        (6, time(2, 30), "2026-03-28 12:00", ("03-22 01:30", "03-29 01:30")),
        (6, time(2, 30), "2026-03-29 01:10", ("03-22 01:30", "03-29 01:30")),
        (6, time(2, 30), "2026-03-29 01:30", ("03-29 01:30", "04-05 00:30")),
        # The same hour comes twice on 25 October: the second is not another report.
        (6, time(2, 30), "2026-10-25 00:29", ("10-18 00:30", "10-25 00:30")),
        (6, time(2, 30), "2026-10-25 01:30", ("10-25 00:30", "11-01 01:30")),
        # A day of 23 hours comes before this Monday.
        (0, time(0, 15), "2026-03-29 12:00", ("03-22 23:15", "03-29 22:15")),
    ],
)
def test_due_times_over_changes_of_the_clock(weekday: int, of_day: time, now: str, expected: tuple[str, str]) -> None:
    latest, following = weekly_times(weekday, of_day, ZoneInfo("Europe/Berlin"), at(now))
    assert (utc(latest), utc(following)) == expected


@pytest.mark.parametrize(
    "zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu", "America/St_Johns", "UTC"]
)
def test_every_instant_lies_between_two_reports(zone: str) -> None:
    for day in range(366):
        now = at("2026-01-01 00:10") + day * DAY
        latest, following = weekly_times(2, time(0, 15), ZoneInfo(zone), now)
        assert latest <= now < following
        assert abs(following - latest - WEEK) <= HOUR
        assert weekly_times(2, time(0, 15), ZoneInfo(zone), following)[0] == following
        assert datetime.fromtimestamp(latest, ZoneInfo(zone)).weekday() == 2


# ---- the folder: whole or not at all, the newest by name, nothing foreign touched, no link followed ----

ONE = {"report.html": b"<html>", "report.json": b"{}"}


def test_report_appears_whole(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    (root / ".new-2026-11-09").mkdir(parents=True)
    (root / ".new-2026-11-09" / "report.html").write_bytes(b"half")
    assert storage.names(root) == storage.names(tmp_path / "nowhere") == ()
    storage.publish(root, "2026-11-23", ONE, keep=26)
    storage.publish(root, "2026-11-16", {"report.html": b"late"}, keep=26)
    assert storage.names(root) == ("2026-11-23", "2026-11-16")
    assert sorted(path.name for path in root.iterdir()) == ["2026-11-16", "2026-11-23"]
    assert storage.files(root, "2026-11-16") == ("report.html",)
    # Of the same date, the later report replaces the earlier.
    storage.publish(root, "2026-11-23", {"report.md": b"again"}, keep=26)
    assert storage.files(root, "2026-11-23") == ("report.md",)
    assert storage.read_report_file(root, "2026-11-23", "report.html") is None


def test_only_old_own_reports_go(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "2026-plans").mkdir()
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / "2020-01-01").symlink_to(outside)
    for day in range(10, 16):
        storage.publish(tmp_path, f"2026-11-{day}", ONE, keep=2)
    kept = {"2026-11-15", "2026-11-14", "notes.txt", "2026-plans", "2020-01-01"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert (outside / "kept").read_text() == "kept"


def test_only_files_of_reports_are_read(tmp_path: Path) -> None:
    storage.publish(tmp_path, "2026-11-23", {**ONE, "report.md": b"x" * 100, "secret": b"no"}, keep=26)
    for name in ("..", "2026-11-23/..", "2026-11-2٣", "", "latest"):
        assert storage.read_report_file(tmp_path, name, "report.html") is None
    for file in ("../secret", "secret"):
        assert storage.read_report_file(tmp_path, "2026-11-23", file) is None
    place = tmp_path / "2026-11-23"
    (place / "report.json").unlink()
    os.mkfifo(place / "report.json")
    (place / "plan.next.yaml").mkdir()
    for file in ("report.json", "plan.next.yaml"):
        assert storage.read_report_file(tmp_path, "2026-11-23", file) is None
    assert storage.read_report_file(tmp_path, "2026-11-23", "report.md") == b"x" * 100


# ---- a whole daemon: its report is made, served and told, without a heavy library or a secret in the daemon itself ----


HEAVY = {"pandas", "numpy", "scipy", "statsmodels", "apprise"}

DAEMON = """
import json, pathlib, sys, time, urllib.request, warnings
# Not by -W: the report's process would have the option too, and its libraries warn.
warnings.simplefilter("error")
from agent.config.load import load
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.config.web import Web

def page(daemon, path):
    return urllib.request.urlopen(daemon.web.url + path, timeout=120).read().decode()

def on_cycle(daemon):
    if daemon.status() is None:
        return
    found = json.loads(page(daemon, "api/status"))["agent"]["reporting"]
    # A try is counted before what came of it is kept; only then is it on every page.
    if not found["newest"] or any(one["pending"] and not one["trouble"] for one in found["deliveries"]):
        return
    told = {path: page(daemon, path) for path in ("", "metrics", "api/status", "reports/", "reports/latest/report.html")}
    if not pathlib.Path(sys.argv[3]).exists():
        pathlib.Path(sys.argv[3]).write_text(json.dumps({"pages": told, "modules": sorted(sys.modules)}))
    daemon.stop()

loaded = load(pathlib.Path(sys.argv[1]))
start, began = float(sys.argv[2]), time.time()
surroundings = DaemonOptions(
    web=lambda _: Web.model_construct(listen="127.0.0.1:0"), on_cycle=on_cycle, speed=10.0,
    clock=lambda: start + time.time() - began,
)
Daemon(loaded, surroundings).run()
"""


def test_daemon_makes_and_sends_missed_report(tmp_path: Path) -> None:
    with_history(tmp_path)
    with webhook() as hook:
        addresses = {"chat": f"json://u:{CANARY}@{hook.place}/", "gone": f"json://u:{CANARY}@127.0.0.1:1/{CANARY}"}
        configured(tmp_path, addresses, scrape_interval="500ms", logging={"level": "debug"})
        begun(tmp_path)
        out = tmp_path / "told.json"
        words = [sys.executable, "-c", DAEMON, str(tmp_path / "sizewatch.yaml"), str(DUE + 60), str(out)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        assert len(hook.taken) == 1
    told = json.loads(out.read_text())
    pages = told["pages"]
    assert not HEAVY & {name.partition(".")[0] for name in told["modules"]}
    assert CANARY not in json.dumps(pages) + done.stdout + done.stderr
    assert "sizewatch_report_up 1.0" in pages["metrics"]
    assert 'sizewatch_report_deliveries_total{destination="chat",result="sent"} 1.0' in pages["metrics"]
    assert 'sizewatch_report_delivery_pending{destination="gone"} 1.0' in pages["metrics"]
    assert 'sizewatch_report_delivery_up{destination="gone"} 0.0' in pages["metrics"]
    assert "The weekly report does not reach gone: the connection was refused." in pages[""]
    assert f'href="reports/{NAME}/report.html"' in pages[""]
    assert NAME in pages["reports/"]
    assert "<svg" in pages["reports/latest/report.html"]


def test_reload_moves_reports_without_losing_one(tmp_path: Path) -> None:
    with webhook() as hook:
        waiting(tmp_path, {"chat": "json://127.0.0.1:1/"})
        now = [DUE + 10]
        with running(tmp_path / "sizewatch.yaml", cycles=1, clock=lambda: now[0], speed=200.0) as daemon:
            assert wait_for(lambda: health(daemon)["reporting"]["deliveries"][0]["failed"] == 1)
            configured(tmp_path, {"chat": f"json://{hook.place}/"}, report={"keep": 3})
            reload_daemon(daemon)
            now[0] += 120
            assert wait_for(lambda: hook.taken)
            assert wait_for(lambda: health(daemon)["reporting"]["deliveries"][0]["pending"] == 0)
            configured(tmp_path, report={"enabled": False})
            reload_daemon(daemon)
            assert health(daemon)["reporting"] is None
            with pytest.raises(OSError, match="404"):
                ask(daemon, "reports/")
    assert not any(delivery.is_pending for delivery in state_of(tmp_path).deliveries.values())


def test_failed_report_is_metric_and_notice(tmp_path: Path) -> None:
    with_history(tmp_path)
    configured(tmp_path)
    (tmp_path / "data" / "reports").write_text("a file in its place")
    begun(tmp_path)
    with running(tmp_path / "sizewatch.yaml", cycles=1, clock=lambda: DUE + 10) as daemon:
        assert wait_for(lambda: health(daemon)["reporting"]["failures"] == 1)
        assert metric(daemon, "sizewatch_report_up") == 0
        assert b"The weekly report cannot be written: " in ask(daemon)
        assert daemon.counts.cycle_errors == 0
