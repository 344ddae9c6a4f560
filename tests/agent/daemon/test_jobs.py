"""The daemon's jobs on APScheduler: on a grid, never two at once; and the files that it follows between them."""

import os
import socket
import ssl
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trustme
import yaml
from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers
from daemon_runs import PLAN, ask, configuration, looks_around, metric, running, write
from engine_server import engines
from report_runs import configured
from waiting import CEILING_SECONDS, wait_for

from agent.daemon import daemon as daemon_module
from agent.daemon import jobs as jobs_module
from agent.daemon.daemon import Daemon
from agent.daemon.jobs import BACK_FILL, CYCLE, FORECAST, REPORT, UPKEEP, DaemonJobs, GridTrigger

INTERVAL = 0.1


class Runs:
    """What the jobs call: notes when, and takes as long as it is told."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.skipped: list[str] = []
        self.seconds = 0.0
        self._running = threading.Lock()
        self.twice_at_once = False
        self.ends = ExitStack()

    def run(self) -> None:
        if not self._running.acquire(blocking=False):
            self.twice_at_once = True
            return
        self.begun.append(time.monotonic())
        time.sleep(self.seconds)
        self._running.release()

    def start(self, name: str = CYCLE, interval: float = INTERVAL, speed: float = 1.0) -> DaemonJobs:
        """Return the jobs of a daemon, of which the one of this name is noted, until the end of the test."""
        functions: dict[str, Callable[[], None]] = dict.fromkeys(
            (CYCLE, UPKEEP, FORECAST, REPORT, BACK_FILL), lambda: None
        )
        jobs = DaemonJobs(functions | {name: self.run}, self.skipped.append, speed=speed)
        self.ends.callback(jobs.shutdown)
        jobs.schedule(interval)
        return jobs


@pytest.fixture(name="runs")
def new_runs() -> Iterator[Runs]:
    runs = Runs()
    with runs.ends:
        yield runs


@pytest.fixture(name="jobs")
def started(runs: Runs) -> DaemonJobs:
    return runs.start()


def due(jobs: DaemonJobs, name: str = CYCLE) -> float:
    """When a job is due next, in unix seconds."""
    t: float = jobs.scheduler.get_job(name).next_run_time.timestamp()
    return t


def on_one_grid(first: float, other: float, interval: float = INTERVAL) -> bool:
    steps = (other - first) / interval
    return abs(steps - round(steps)) < 1e-3


def set_clock(patch: pytest.MonkeyPatch, now: Callable[[], datetime], *modules: ModuleType) -> None:
    """Let `datetime.now` of these modules return this time."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return now()

    for module in modules:
        patch.setattr(module, "datetime", Shifted)


def test_daemon_has_five_jobs(tmp_path: Path) -> None:
    loaded = configured(tmp_path)
    with running(loaded.path, cycles=1, speed=1.0) as daemon:
        by_name = {job.id: job for job in daemon.jobs.scheduler.get_jobs()}
        assert set(by_name) == {CYCLE, UPKEEP, FORECAST, REPORT, BACK_FILL}
        assert all(job.max_instances == 1 and job.coalesce for job in by_name.values())
        assert by_name[REPORT].trigger.interval == timedelta(minutes=1)


def test_long_cycles_are_skipped_and_counted(runs: Runs, jobs: DaemonJobs, caplog: pytest.LogCaptureFixture) -> None:
    assert wait_for(lambda: runs.begun)
    first = due(jobs)
    runs.seconds = 2.5 * INTERVAL
    assert wait_for(lambda: len(runs.begun) >= 4 and runs.skipped.count("the one before it still ran") >= 4)
    assert not runs.twice_at_once
    assert due(jobs) > first
    assert on_one_grid(first, due(jobs))
    assert "apscheduler" not in {record.name.partition(".")[0] for record in caplog.records}


def test_late_cycle_is_skipped_with_reason(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine: the scheduler's thread gives out the run, and its own thread begins it two seconds later."""
    set_clock(monkeypatch, lambda: datetime.now(UTC) + timedelta(seconds=2.0), executors)
    runs.start()
    assert wait_for(lambda: runs.skipped.count("the machine was too busy to begin it") >= 2)
    assert not runs.begun


def test_another_interval_begins_a_grid_at_once(runs: Runs, jobs: DaemonJobs) -> None:
    assert wait_for(lambda: len(runs.begun) >= 2)
    before, now = len(runs.begun), time.time()
    jobs.schedule(3600.0)
    # It is left out where one of the old grid still ends at that moment, and that is told.
    assert wait_for(lambda: len(runs.begun) > before or runs.skipped), "the first of the new grid is at once"
    assert wait_for(lambda: now + 3600.0 <= due(jobs) <= time.time() + 3600.0)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, 56 * 365 * 86_400.0])
def test_cycles_continue_after_clock_was_set(
    runs: Runs, jobs: DaemonJobs, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    assert wait_for(lambda: runs.begun)
    real = time.time
    set_clock(monkeypatch, lambda: datetime.now(UTC) + timedelta(seconds=jump), schedulers, executors, jobs_module)
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    if jump < 0:
        time.sleep(3 * INTERVAL)
        still = len(runs.begun)
        time.sleep(3 * INTERVAL)
        assert len(runs.begun) == still, "APScheduler waits for the hour to come again"
    jobs.follow_clock()
    seen = len(runs.begun)
    assert wait_for(lambda: len(runs.begun) >= seen + 3)
    first = due(jobs)
    assert first - time.time() <= INTERVAL
    jobs.follow_clock()
    assert on_one_grid(first, due(jobs)), "a jump is followed once"
    assert len(runs.begun) + len(runs.skipped) < 1000


def test_missed_times_are_left_out() -> None:
    start = datetime(2026, 11, 2, tzinfo=UTC)
    trigger = GridTrigger(seconds=10.0, start_date=start)
    after = [trigger.get_next_fire_time(start, start + timedelta(seconds=seconds)) for seconds in (0, 9, 10, 47)]
    assert [(t - start).total_seconds() for t in after] == [10.0, 10.0, 10.0, 50.0]


def test_shutdown_waits_for_running_cycle(runs: Runs) -> None:
    runs.seconds = 0.3
    jobs = runs.start(interval=10.0)
    assert wait_for(lambda: bool(runs.begun))
    jobs.shutdown()
    assert time.monotonic() - runs.begun[0] >= 0.3


@pytest.mark.parametrize(("second", "wait"), [(0.0, 30.0), (29.0, 1.0), (30.0, 60.0), (59.0, 31.0)])
def test_forecast_is_due_after_whole_minute(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, second: float, wait: float
) -> None:
    start = datetime(2026, 11, 2, 12, 0, tzinfo=UTC) + timedelta(seconds=second)

    set_clock(monkeypatch, lambda: start, schedulers, jobs_module)
    jobs = runs.start(FORECAST, 15.0)
    # Two scrapes after the full minute.
    at = datetime.fromtimestamp(due(jobs, FORECAST), UTC)
    following = jobs.scheduler.get_job(FORECAST).trigger.get_next_fire_time(at, at)
    assert ((at - start).total_seconds(), (following - at).total_seconds()) == (wait, 60.0)


def test_forecasts_follow_speed_without_overlap(runs: Runs) -> None:
    runs.seconds = 0.15
    runs.start(FORECAST, 1000.0 * INTERVAL, speed=1000.0)
    assert wait_for(lambda: len(runs.begun) >= 3)
    assert not runs.twice_at_once


# ---- plan, secrets and certificates that change: however they are written, nobody restarts the daemon ----


FIRST, SECOND = "the-first-token-of-this-page", "the-second-token-of-this-page"
Change = Callable[..., None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "CLOCK_SECONDS", 0.05)


def in_place(folder: Path) -> Change:
    """Return a writer of files as an editor or `cp` does it."""

    def change(**files: str) -> None:
        for name, text in files.items():
            (folder / name).write_text(text)

    return change


def renamed(folder: Path) -> Change:
    """Return a writer of files that are moved to their place."""

    def change(**files: str) -> None:
        for name, text in files.items():
            (folder / "fresh").write_text(text)
            os.replace(folder / "fresh", folder / name)

    return change


def mounted(folder: Path) -> Change:
    """Return a writer of files as the kubelet mounts a Secret: links into `..data`, which is turned at once."""
    number = count()

    def change(**files: str) -> None:
        fresh = folder / f"..2026_{next(number)}"
        fresh.mkdir()
        before = {one.name: one.read_text() for one in (folder / "..data").glob("*")}
        for name, text in {**before, **files}.items():
            (fresh / name).write_text(text)
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(Path("..data") / name)
        (folder / "..tmp").symlink_to(fresh.name)
        os.replace(folder / "..tmp", folder / "..data")

    return change


WAYS = pytest.mark.parametrize("way", [in_place, renamed, mounted])


def certificate(authority: trustme.CA) -> dict[str, str]:
    made = authority.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    return {"cert": chain.decode(), "key": made.private_key_pem.bytes().decode()}


def shake_hands(daemon: Daemon, authority: trustme.CA, ours: trustme.LeafCert | None = None) -> ssl.SSLSocket | None:
    """Return a connection, None if its certificate is not the authority's."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if ours is not None:
        ours.configure_cert(context)
    try:
        return context.wrap_socket(
            socket.create_connection(("127.0.0.1", daemon.web.port)), server_hostname="localhost"
        )
    except ssl.SSLCertVerificationError:
        return None


def serves(daemon: Daemon, authority: trustme.CA) -> bool:
    """Return whether a new handshake shows a certificate of the authority."""
    connection = shake_hands(daemon, authority)
    if connection is not None:
        connection.close()
    return connection is not None


def page(connection: ssl.SSLSocket, path: str = "/healthz") -> bytes:
    with connection:
        connection.settimeout(CEILING_SECONDS)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return connection.recv(100)


USERS = "basic_auth_users: {eve: $2y$04$" + "a" * 53 + "}"


def secure(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: s/cert, key_file: s/key}")
    return {"config_file": str(path)}


@WAYS
def test_renewed_certificate_is_served(way: Callable[[Path], Change], tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    old, new, change = trustme.CA(), trustme.CA(), way(tmp_path / "s")
    change(**certificate(old))
    with running(write(tmp_path, configuration([], web=secure(tmp_path)))) as daemon:
        before = shake_hands(daemon, old)
        assert before is not None
        change(**certificate(new))
        assert wait_for(lambda: serves(daemon, new))
        assert not serves(daemon, old)
        assert b" 200 OK" in page(before)


@pytest.mark.parametrize("broken", ["half", "other key", "no key", "empty"])
def test_broken_certificate_keeps_the_previous(broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "s").mkdir()
    old, new, change = trustme.CA(), trustme.CA(), in_place(tmp_path / "s")
    change(**certificate(old))
    with running(write(tmp_path, configuration([], web=secure(tmp_path)))) as daemon:
        fresh = certificate(new)
        cert, key = {
            "half": (fresh["cert"][: len(fresh["cert"]) * 2 // 3], fresh["key"]),
            "other key": (fresh["cert"], certificate(new)["key"]),
            "no key": (fresh["cert"], "no key at all"),
            "empty": ("", fresh["key"]),
        }[broken]
        change(cert=cert, key=key)
        trouble = wait_for(lambda: daemon.counts.config_trouble)
        assert f"{tmp_path / 's' / 'cert'} and {tmp_path / 's' / 'key'} cannot be used" in trouble
        looks_around(daemon)
        assert serves(daemon, old)
        status = daemon.status()
        assert status.health.config_trouble == trouble
        told = [one.getMessage() for one in caplog.records if "configuration reload failed" in one.getMessage()]
        # Two files change one after the other: what is between is told as well.
        assert 1 <= len(told) <= 2
        change(**fresh)
        assert wait_for(lambda: serves(daemon, new))
        assert wait_for(lambda: daemon.counts.config_trouble is None)


def test_broken_client_ca_keeps_the_previous(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    authority, old, new, change = trustme.CA(), trustme.CA(), trustme.CA(), in_place(tmp_path / "s")
    change(**certificate(authority), ca=old.cert_pem.bytes().decode())
    web = secure(tmp_path)
    tls = "{cert_file: s/cert, key_file: s/key, client_ca_file: s/ca, client_auth_type: RequireAndVerifyClientCert}"
    (tmp_path / "web.yml").write_text(f"tls_server_config: {tls}")
    before, after = old.issue_cert("reader"), new.issue_cert("reader")

    def reads(ours: trustme.LeafCert) -> bool:
        try:
            connection = shake_hands(daemon, authority, ours)
            return connection is not None and b" 200 OK" in page(connection, "/readyz")
        except OSError:
            return False

    with running(write(tmp_path, configuration([], web=web))) as daemon:
        assert reads(before)
        text = new.cert_pem.bytes().decode()
        change(ca=text[: len(text) // 2])
        assert wait_for(lambda: daemon.counts.config_trouble)
        assert reads(before)
        change(ca=text)
        assert wait_for(lambda: reads(after))
        assert not reads(before)


def post(daemon: Daemon, token: str) -> int:
    """Return what the webhook answers to a body that is none."""
    with socket.create_connection(("127.0.0.1", daemon.web.port)) as connection:
        connection.settimeout(CEILING_SECONDS)
        lines = ("POST /webhook/alertmanager HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}")
        more = ("Content-Type: application/json", "Content-Length: 2")
        connection.sendall("\r\n".join((*lines, *more, "", "{}")).encode())
        return int(connection.recv(100).split()[1])


@WAYS
def test_tokens_and_users_are_followed(way: Callable[[Path], Change], tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    change = way(tmp_path / "s")
    change(page=FIRST, users=USERS, hook=FIRST)
    web = {"bearer_token_file": str(tmp_path / "s" / "page"), "config_file": str(tmp_path / "s" / "users")}
    receiver = {"receiver": {"bearer_token_file": str(tmp_path / "s" / "hook")}}

    def admits(token: str) -> bool:
        try:
            return bool(ask(daemon, "metrics", token))
        except urllib.error.HTTPError:
            return False

    with running(write(tmp_path, configuration([], web=web, alerting=receiver))) as daemon:
        assert (admits(FIRST), post(daemon, FIRST)) == (True, 400)
        change(page=SECOND, hook=SECOND)
        assert wait_for(lambda: admits(SECOND) and post(daemon, SECOND) == 400)
        assert (admits(FIRST), post(daemon, FIRST)) == (False, 401)
        change(page="", hook="short", users="broken")
        # The users are read before the webhook's token, and the first that cannot be used is told.
        assert wait_for(lambda: "s/users" in str(daemon.counts.config_trouble))
        assert (admits(SECOND), post(daemon, SECOND)) == (True, 400)
        # Those of the pages are taken although that of the webhook is still wrong.
        change(page=FIRST, users=USERS)
        assert wait_for(lambda: admits(FIRST))
        assert wait_for(lambda: "s/hook" in str(daemon.counts.config_trouble))
        assert post(daemon, SECOND) == 400
        change(hook=FIRST)
        assert wait_for(lambda: daemon.counts.config_trouble is None)
        assert post(daemon, FIRST) == 400


def test_refused_configuration_is_taken_once_mended(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(FIRST)
    with engines(2) as served:
        web = {"bearer_token_file": str(token)}
        with running(write(tmp_path, configuration(served[:1], web=web))) as daemon:
            write(tmp_path, configuration(served, web=web))
            token.write_text("short")
            daemon.ask_reload()
            assert wait_for(lambda: daemon.counts.config_trouble)
            looks_around(daemon)
            token.write_text(SECOND)
            assert wait_for(lambda: daemon.counts.config_reloads == 1)
            assert wait_for(lambda: len(daemon.loop.source.targets) == 2)
            assert daemon.counts.config_trouble is None


@WAYS
def test_changed_plan_is_taken_up(way: Callable[[Path], Change], tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    change, plan = way(tmp_path / "p"), yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    change(plan=yaml.safe_dump(plan))
    with (
        engines() as served,
        running(write(tmp_path, configuration(served, plan=str(tmp_path / "p" / "plan")))) as daemon,
    ):
        first = metric(daemon, "sizewatch_plan_slo_ttft_p99_seconds")
        change(plan="tiers: {cpu-small: {model")
        assert wait_for(lambda: daemon.counts.config_trouble)
        assert metric(daemon, "sizewatch_plan_slo_ttft_p99_seconds") == first
        assert b"Configuration reload failed" in ask(daemon)
        plan["tiers"]["cpu-small"]["slo"]["ttft_p99_seconds"] = 3.0
        change(plan=yaml.safe_dump(plan))
        assert wait_for(lambda: metric(daemon, "sizewatch_plan_slo_ttft_p99_seconds") == 3.0)
        assert daemon.counts.config_trouble is None
