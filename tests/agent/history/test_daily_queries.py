"""Simulated weeks in a real history, judged by the daemon's upkeep: what rules over days find there, and what stays of it."""

import io
import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_samples
import yaml
from daemon_runs import PLAN, ask, configuration, further, running, write
from days_samples import USABLE_RPS, hour
from engine_server import engines
from judging_samples import gauge
from report_samples import DAY, HOUR, START, TIER, USABLE, book, hours, plan, tier_view
from waiting import wait_for

from agent.cli.main import main
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, load
from agent.daemon.assembly import Assembly, assemble
from agent.daemon.daemon import Daemon
from agent.history import daily_queries
from agent.history.daily_queries import measured_views, read_capacity, read_daily_capacities
from agent.history.service import HistoryService
from agent.history.store import HistoryStore, Reader
from rules.catalogue.registry import BY_NAME
from rules.evaluator import rule_evaluation
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.plan.load_bins import bin_window
from rules.plan.schema import plan_version
from rules.telemetry.signals import Gap
from rules.telemetry.work import Capacity
from rules.verdicts.verdict import Finding, RuleResult, Status, Subject, Unknown, Verdict

WEEK = 168
PLANNED = load_plan(PLAN).tiers["cpu-small"]
VIEW = load_bins.build_tier_context("cpu-small", PLANNED)
VERSION = plan_version(PLANNED)
NOW = hour(WEEK).start + 45.0
"""Shortly after the end of the first week."""

TRAP = ("UtilizationTrap", Subject(tier="cpu-small"))


def booked(
    path: Path, used: float, count: int = WEEK, *, first: int = 0, version: str = VERSION, replicas: int = 4
) -> None:
    """Hours of the tier's plan in the history, at so much of its usable rate, each replica's on its own."""
    share = used * VIEW.capacity.rps / USABLE_RPS
    prompts, outputs = VIEW.capacity.lengths.prompt_tokens, VIEW.capacity.lengths.generation_tokens
    lengths = {"tokens": outputs.low, "counters": {"prompt_tokens": share * USABLE_RPS * 3600 * prompts.low}}
    path.parent.mkdir(exist_ok=True, mode=0o700)
    every = [
        ClosedMinute(tier="cpu-small", plan_version=version, slice=load_bins.bin_window(one, VIEW.curve, f"r{n}"))
        for one in (hour(number, used=share, replicas=1, kv=0.3, **lengths) for number in range(first, first + count))
        for n in range(replicas)
    ]
    with HistoryStore(path) as store:
        store.book(every)


def asked(path: Path, now: float = NOW, version: str = VERSION) -> dict[str, RuleResult]:
    """What upkeep tells of the tier."""
    keeping = HistoryService(lambda: HistoryStore(path, busy_timeout_seconds=0.05))
    with closing(keeping):
        results = keeping.long_answers({"cpu-small": VIEW}, {"cpu-small": version}, now)
        return {result.rule: result for result in results}


@pytest.fixture(name="path")
def history_path(tmp_path: Path) -> Path:
    return tmp_path / "sizewatch-data" / "history.db"


def test_week_in_the_trap_is_found(tmp_path: Path) -> None:
    for used, found in ((0.2, Status.WARNING), (0.39, Status.WARNING), (0.41, Status.OK)):
        path = tmp_path / f"{used}.db"
        booked(path, used)
        trap = asked(path)["UtilizationTrap"]
        assert trap.status is found
        assert f"Fleet utilisation is {used:.1%} over 7.0 days" in trap.sentence
        assert ("of 4.0 replicas" in trap.sentence) is (found is Status.WARNING)


def test_hours_under_another_plan_count_partly(path: Path) -> None:
    booked(path, 0.2, 100, version="before")
    booked(path, 0.2, 68, first=100)
    results = asked(path)
    trap, cache = results["UtilizationTrap"], results["KvCacheUnderused"]
    assert trap.text.startswith("68 of 168 hours seen")
    assert cache.status is Status.WARNING


def test_unreadable_history_makes_daily_rules_unknown(path: Path) -> None:
    booked(path, 0.2, 2)
    keeping = HistoryService(lambda: HistoryStore(path, busy_timeout_seconds=0.05))
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE hours SET body = x'00'")
        other.commit()
    results = keeping.long_answers({"cpu-small": VIEW}, {"cpu-small": VERSION}, NOW - 166 * 3600)
    keeping.close()
    assert [a.rule for a in results] == [rule.name for rule in rule_evaluation.LONG]
    assert {a.reason for a in results if isinstance(a, Unknown)} == {Gap.STALE}
    assert keeping.error is not None
    assert all(keeping.error in a.text for a in results if isinstance(a, Unknown))


@contextmanager
def watching(folder: Path, **keys: Any) -> Iterator[tuple[Daemon, Path]]:
    """A daemon whose clock stands at NOW, and its configuration."""
    began = time.monotonic()

    def clock() -> float:
        return NOW + time.monotonic() - began

    def then(loaded: LoadedConfig, before: Assembly | None) -> Assembly:
        return assemble(loaded, before, clock=clock)

    with engines() as served:
        path = write(folder, configuration(served, **keys))
        with running(path, assemble=then, clock=clock) as daemon:
            yield daemon, path


def test_daemon_tells_the_trap_on_every_page(tmp_path: Path, path: Path) -> None:
    def kept() -> list[Finding]:
        with HistoryStore.open_reader(path) as reader:
            return [one for one in reader.spans(Finding, 0.0) if one.rule == "UtilizationTrap"]

    booked(path, 0.2)
    with watching(tmp_path) as (daemon, _):
        for cycles in (0, 3):
            further(daemon, cycles)
            (tier,) = json.loads(ask(daemon, "api/status"))["tiers"]
            (told,) = [one for one in tier["verdicts"] if one["rule"] == "UtilizationTrap"]
            assert told["status"] == "warning", "it stands between two hours"
        lines = ask(daemon, "metrics").decode().splitlines()
        (exported,) = [one for one in lines if one.startswith("sizewatch_verdict{") and "UtilizationTrap" in one]
        assert exported.endswith(" 1.0")
        assert BY_NAME["UtilizationTrap"].title.encode() in ask(daemon)
        assert "UtilizationTrap" in {finding.rule for finding in daemon.loop.state.open_findings()}
        assert wait_for(kept)
    (finding,) = kept()
    assert (finding.subject, finding.ended_at) == (TRAP[1], None)


def test_failed_hour_is_tried_again_soon(tmp_path: Path, path: Path) -> None:
    booked(path, 0.2)
    with watching(tmp_path) as (daemon, _):
        history = daemon.assembly.history
        assert history is not None
        run = history.store()._connection.execute
        run("ALTER TABLE hours RENAME TO away")
        daemon._upkeep()
        assert {rule.reason for rule in daemon.assembly.long_results if isinstance(rule, Unknown)} == {Gap.STALE}
        assert set(history.read_errors) == {"retention", "capacity", "days"}
        run("ALTER TABLE away RENAME TO hours")
        daemon._forecast()
        assert "UtilizationTrap" in {rule.rule for rule in daemon.assembly.long_results if isinstance(rule, Verdict)}
        assert history.read_errors == {}


def test_reload_keeps_what_the_history_said(tmp_path: Path, path: Path) -> None:
    booked(path, 0.2)
    with watching(tmp_path) as (daemon, config):
        daemon.ask_reload()
        assert wait_for(lambda: daemon.counts.config_reloads == 1)
        further(daemon)
        rule_state = daemon.loop.state.rules[TRAP]
        assert rule_state.result.status is Status.WARNING
        began = rule_state.finding.started_at if rule_state.finding else None
        changed = PLAN.read_text(encoding="utf-8").replace("gpu_hour_price: 1.0", "gpu_hour_price: 2.0")
        assert changed != PLAN.read_text(encoding="utf-8")
        (tmp_path / "other.yaml").write_text(changed, encoding="utf-8")
        config.write_text(config.read_text(encoding="utf-8").replace(str(PLAN), "other.yaml"), encoding="utf-8")
        daemon.ask_reload()
        assert wait_for(lambda: daemon.counts.config_reloads == 2)
        further(daemon)
        after = daemon.loop.state.rules[TRAP]
        assert isinstance(after.result, Unknown)
        assert after.finding.started_at == began


def test_upkeep_ends_what_is_over(tmp_path: Path, path: Path) -> None:
    booked(path, 0.2)
    with engines() as served:
        parts = assemble(load(write(tmp_path, configuration(served))), clock=lambda: NOW)
        parts.loop.run_cycle()
        assert parts.loop.state.rules[TRAP].finding is not None
        booked(path, 0.7, 80, first=WEEK)
        parts.upkeep(NOW + 80 * 3600)
        parts.loop.run_cycle()
        rule_state = parts.loop.state.rules[TRAP]
        assert (rule_state.result.status, rule_state.finding) == (Status.OK, None)
        parts.close(NOW)


def test_node_without_a_history_says_so(tmp_path: Path) -> None:
    with engines() as served:
        config = write(tmp_path, configuration(served, role="node"))
        parts = assemble(load(config), clock=lambda: NOW)
        parts.loop.run_cycle()
        rule_state = parts.loop.state.rules[TRAP]
        assert (rule_state.result.reason, rule_state.result.text) == (Gap.NOT_EXPOSED, "this agent keeps no history")
        parts.close(NOW)


# ---- capacity while a replica is overloaded, and after it ----


PLANNED_TIER = tier_view()
BEGIN = START + 10 * HOUR
"""When the overload begins: ten in the morning."""

VERSIONS = {"t": "v1"}


def minutes(rps: float, count: int, begin: float, queue: float = 0.0, replica: str = "r0") -> Iterator[ClosedMinute]:
    """So many minutes of a replica that finishes `rps`, of which so many requests wait."""
    for place in range(count):
        whole = report_samples.hour(0, rps, 1, ttft={9.0: 1.0} if queue else None)
        window = replace(
            whole,
            start=begin + 60 * place,
            end=begin + 60 * place + 60,
            expected_seconds=60.0,
            covered_seconds=60.0,
            counters={name: value / 60 for name, value in whole.counters.items()},
            gauges={
                **whole.gauges,
                "requests_running": gauge(9.0 if queue else 2.0, seconds=60.0),
                "requests_waiting": gauge(queue, seconds=60.0),
            },
        )
        placed = bin_window(window, PLANNED_TIER.curve, replica)
        placed = replace(placed, bin=None, beyond="its queue grew") if queue else placed
        yield ClosedMinute(tier="t", plan_version="v1", slice=placed)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    """Half an hour at 3 rps as planned, then ten minutes in which 3.67 rps finish and 50 requests wait."""
    with HistoryStore(tmp_path / "history.db") as opened:
        opened.book(minutes(3.0, 30, BEGIN - 1800))
        opened.book(minutes(USABLE / 2, 10, BEGIN, queue=50.0))
        yield opened


def capacity(store: HistoryStore, now: float, version: str = "v1") -> Capacity:
    context = measured_views(store, {"t": PLANNED_TIER}, {"t": version}, now)["t"]
    assert context.capacity is not None
    return context.capacity


def test_overload_bounds_the_capacity_within_minutes(tmp_path: Path) -> None:
    with HistoryStore(tmp_path / "history.db") as store:
        store.book(minutes(3.0, 30, BEGIN - 1800))
        store.book(minutes(USABLE / 2, 2, BEGIN, queue=50.0))
        assert capacity(store, BEGIN + 150).rps == pytest.approx(USABLE)
        store.book(minutes(USABLE / 2, 2, BEGIN + 120, queue=50.0))
        bounded = capacity(store, BEGIN + 270)
    assert bounded.rps == pytest.approx(USABLE / 2, rel=0.01)
    assert bounded.low <= bounded.rps <= (bounded.high or 0.0)


def test_bound_lasts_for_days_and_plans(store: HistoryStore) -> None:
    for later in (2 * HOUR, DAY, 4 * DAY):
        assert capacity(store, BEGIN + later, "v2").rps == pytest.approx(USABLE / 2, rel=0.01)
    assert capacity(store, BEGIN + 6 * DAY, "v2").rps == pytest.approx(USABLE)


def test_later_load_lifts_the_bound(store: HistoryStore) -> None:
    store.book(minutes(1.0, 2, BEGIN + 2 * HOUR, queue=9.0))
    assert capacity(store, BEGIN + 3 * HOUR).rps == pytest.approx(USABLE / 2, rel=0.01)
    store.book(minutes(6.0, 30, BEGIN + 4 * HOUR))
    assert capacity(store, BEGIN + 5 * HOUR).rps == pytest.approx(6.0, rel=0.01)


def test_replicas_that_carry_more_count(store: HistoryStore) -> None:
    store.book(minutes(5.0, 10, BEGIN, replica="r1"))
    store.book(minutes(0.2, 10, BEGIN, replica="new"))
    assert capacity(store, BEGIN + 660).rps == pytest.approx(USABLE * 0.75, rel=0.01)


def test_earlier_days_are_read_once(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier whose days tell nothing is read no oftener than others."""
    days: list[float] = []
    read = daily_queries.read_capacity_days
    monkeypatch.setattr(daily_queries, "read_capacity_days", lambda *words: days.append(words[3]) or read(*words))
    bare = tier_view(curve=None)
    known = read_daily_capacities(store, {"t": bare}, VERSIONS, BEGIN)
    assert known == {"t": None}
    measured_views(store, {"t": bare}, VERSIONS, BEGIN + 60, known)
    assert read_capacity(store, bare, BEGIN + 60, None) is None
    assert len(days) == 1


# ---- nothing reads further back than is kept ----


WEEKS = 13
AFTER_WEEKS = START + WEEKS * 7 * DAY + 60.0
MOST_DAYS = {"minutes": 2, "replica_bins": 8}
"""Days back by method of `Reader`. Sums by hour are read as long as they are kept."""


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, float]]:
    """A configuration with thirteen weeks of history, and the longest way back in seconds of each method so far."""
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": TIER}}))
    target = {"url": "http://127.0.0.1:9/metrics", "tier": "t", "replica": "r0"}
    config = tmp_path / "sizewatch.yaml"
    config.write_text(yaml.safe_dump({"plan": "plan.yaml", "targets": [target], "gpus": {"source": "none"}}))
    file = tmp_path / "sizewatch-data" / "history.db"
    file.parent.mkdir(mode=0o700)
    with HistoryStore(file) as store:
        book(store, plan(), hours(WEEKS * 7 * 24)[::12])
    longest: dict[str, float] = defaultdict(float)
    for name in (*MOST_DAYS, "bins"):
        read = getattr(Reader, name)

        def watched(reader, tier, since, *rest, read=read, name=name):  # type: ignore[no-untyped-def]
            longest[name] = max(longest[name], AFTER_WEEKS - since)
            return read(reader, tier, since, *rest)

        monkeypatch.setattr(Reader, name, watched)
    monkeypatch.setattr("time.time", lambda: AFTER_WEEKS)
    return str(config), longest


def test_nothing_reads_further_than_is_kept(reach: tuple[str, dict[str, float]]) -> None:
    config, longest = reach
    every = ("-c", config)
    with redirect_stdout(io.StringIO()):
        for words in (
            ("check", *every, "--since", "13w"),
            ("check", *every, "--since", "30m"),
            ("whatif", *every, "--instances", "8", "--since", "13w"),
            ("prewarm", *every),
            ("timeline", *every, "--since", "13w"),
            ("report", *every, "--since", "4w", "--out", str(Path(config).parent / "report")),
        ):
            assert main(list(words)) in (0, 1, 3), words
    daemon = assemble(load(Path(config)), clock=lambda: AFTER_WEEKS)
    try:
        daemon.upkeep(AFTER_WEEKS)
        daemon.forecast(AFTER_WEEKS)
    finally:
        daemon.close(AFTER_WEEKS)
    assert longest["bins"] > 12 * 7 * DAY, "the sums by hour are read as far as they are kept"
    assert longest["minutes"] > 0
    for name, days in MOST_DAYS.items():
        assert longest[name] <= days * DAY + HOUR, name
