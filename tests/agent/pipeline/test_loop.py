"""Turns over real engines on loopback: what fails costs only itself, and what is remembered goes on."""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import making
import pytest
from engine_server import Engine, Handler, answers_500, engines, give, hangs
from gpu_pages import T, readout
from loops import scrape_loop
from making import START, gauge, histogram, window
from waiting import CEILING_SECONDS, StandingClock, wait_for

from agent.config.peer import Peer
from agent.errors import ScrapeFailure
from agent.gpu.collector import GpuCollector, GpuReader
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.runtime_state import OPEN_MINUTES, TREND_MINUTES, RunningSums, RuntimeState
from agent.scrape.scrapers import Scrapers, Target
from agent.sources.scrape import ScrapeSource
from exporters.status.records import AgentStatus
from rules.confidence import Certainty
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaGpus, ReplicaKey, ReplicaScrape, StepResult
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan import load_bins
from rules.telemetry import windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, Status, Subject, Transition, Unknown, Verdict


class Watched:
    """Turns over some engines; `go` runs them 15 s apart."""

    def __init__(
        self, served: list[Engine], source: GpuReader | None = None, timeout: float = CEILING_SECONDS, **target: Any
    ) -> None:
        self.clock = StandingClock(T)
        targets = []
        for n, engine in enumerate(served):
            peer = Peer(url=engine.url, timeout_seconds=timeout)
            targets.append(Target(tier="t", replica=f"r{n}", pool="mixed", peer=peer, **target))
        tiers, gpus = {"t": load_bins.build_tier_context("t", None)}, GpuCollector(source)
        self.parts = scrape_loop(targets, tiers, Scrapers(targets, clock=self.clock), self.clock, gpus)
        self.loop, self.runtime = self.parts.loop, self.parts.runtime

    def go(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.clock.now += 15.0
            self.loop.run_cycle()

    def result(self, rule: str, replica: str = "r0") -> Any:
        return self.loop.state.rules[rule, Subject(tier="t", replica=replica)].result

    def status(self) -> AgentStatus:
        return self.parts.status(self.clock.now)


def test_gpus_bear_the_time_of_their_reading() -> None:
    clock, gpus = StandingClock(T), Mock(latest={})

    def start_scrapes() -> None:
        clock.now += 0.2

    scrapers = Mock(start_scrapes=start_scrapes, collect_results=lambda _: {})
    (seen,) = ScrapeSource((), scrapers, gpus, clock=clock).observe(T)
    gpus.read_gpus.assert_called_once_with(T + 0.2)
    assert seen.now == T + 0.2


@contextmanager
def watching(count: int = 1, **options: Any) -> Iterator[tuple[list[Engine], Watched]]:
    with engines(count) as served:
        watched = Watched(served, **options)
        yield served, watched
        watched.loop.stop()


def test_down_target_is_reported_with_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="agent.pipeline.change_log")
    with watching(2) as (served, watched):
        (before,) = watched.status().tiers
        watched.go(2)
        served[0].act = answers_500
        watched.go(4)
        assert [watched.loop.state.replicas["t", f"r{n}"].track.misses for n in (0, 1)] == [4, 0]
        down = watched.result("TargetDown")
        assert down.status is Status.WARNING
        assert down.sentence.endswith(": HTTP 500")
        assert isinstance(watched.result("TelemetryStale"), Unknown)
        assert watched.result("TargetDown", "r1").status is Status.OK
        served[0].act = None
        watched.go(7)
        assert watched.result("TargetDown").status is Status.OK
        assert watched.runtime.replicas["t", "r0"].error == ""
        (after,) = watched.status().tiers
    assert before.observed_seconds == 0
    assert 60 <= after.observed_seconds <= 13 * 15
    said = [record.getMessage().partition(":")[0].partition(" error=")[0] for record in caplog.records]
    assert said == [
        "scrape failed tier=t replica=r0",
        "finding rule=TargetDown subject=t/r0 status=warning certainty=certain",
        "scrape recovered tier=t replica=r0",
        "finding ended rule=TargetDown subject=t/r0",
    ]


def test_pages_are_shown_while_a_target_hangs() -> None:
    with watching(2) as (served, watched):
        watched.go(2)
        asked = len(served[0].asked)
        served[0].act = hangs
        turn = threading.Thread(target=watched.go)
        turn.start()
        assert wait_for(lambda: len(served[0].asked) > asked)
        with watched.loop.memory:
            shown = watched.status()
        assert turn.is_alive()
        assert [r.up for r in shown.tiers[0].replicas] == [True, True]
        served[0].released.set()
        turn.join()
        assert [r.up for r in watched.status().tiers[0].replicas] == [False, True]


class Slow:
    """GPUs that take their time, until `ready` returns, and then are one GPU."""

    def __init__(self, ready: Callable[[], object] = lambda: None) -> None:
        self.ready = ready
        self.gone = False
        self.joules = 0.0

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        self.ready()
        if self.gone:
            return (), ("the GPU fell off the bus",)
        self.joules += 100.0
        counters = {"gpu_energy_joules": self.joules, "gpu_energy_covered_seconds": now - T}
        return (replace(readout("GPU-a", 0, t=now), counters=counters),), ()

    def close(self) -> None:
        """Holds nothing."""


def test_gpus_and_pages_are_waited_for_together() -> None:
    both = threading.Barrier(2)

    def waits(handler: Handler) -> None:
        both.wait(CEILING_SECONDS)
        give(handler, handler.server.pages[0])

    with watching(1, source=Slow(lambda: both.wait(CEILING_SECONDS)), gpus=("0",)) as (served, watched):
        served[0].act = waits
        watched.go()
        (replica,) = watched.status().tiers[0].replicas
        assert (replica.up, len(replica.gpus), both.broken) == (True, 1, False)


def test_lost_gpu_keeps_sums_not_levels() -> None:
    source = Slow()
    with watching(1, source=source, gpus=("0",)) as (_, watched):
        watched.go(4)
        (gpu,) = watched.status().tiers[0].replicas[0].gpus
        assert gpu.counters["gpu_energy_joules"] == 300.0
        assert gpu.gauges["gpu_temperature_celsius"] == 50.0
        source.gone = True
        watched.go(10)
        (gpu,) = watched.status().tiers[0].replicas[0].gpus
        assert gpu.counters["gpu_energy_joules"] == 300.0
        assert gpu.gauges == {}
        assert gpu.gaps["gpu_temperature_celsius"] == "not read for 150 s"
        assert watched.runtime.gpu_problems == ("the GPU fell off the bus",)
        stale = watched.result("TelemetryStale")
        assert (stale.status, stale.sentence) == (Status.WARNING, "GPU GPU-a has not been read for 150 s")


def test_defect_of_one_replica_spares_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with watching(2) as (_, watched):
        watched.go(2)
        apply = watched.loop.evaluator.apply_scrape

        def broken(state: Any, scrape: ReplicaScrape, *rest: Any) -> Any:
            if scrape.replica == "r0":
                raise ZeroDivisionError("a defect")
            return apply(state, scrape, *rest)

        monkeypatch.setattr(watched.loop.evaluator, "apply_scrape", broken)
        with caplog.at_level(logging.ERROR):
            watched.go(3)
        assert watched.loop.defects == 3
        assert "tier=t replica=r0" in caplog.text
        assert [watched.result("TargetDown", name).status for name in ("r0", "r1")] == [Status.WARNING, Status.OK]


def finding(rule: str = "TargetDown", replica: str | None = "r0", began: float = T - 600) -> Finding:
    """A finding, by default of ten minutes ago, that changed last half a minute later."""
    worst = making.verdict(rule, replica, began)
    change = Transition(t=began + 30, status=worst.status, stage=None, certainty=worst.certainty)
    return making.finding(worst, transitions=(change,))


def test_restored_finding_ends_when_over() -> None:
    with watching() as (_, watched):
        watched.loop.restore_findings([finding()], T, T - 60)
        (tier,) = watched.status().tiers
        assert [e.started_at for e in tier.findings] == [T - 600]
        assert [type(a) for a in tier.results] == [Unknown]
        watched.go()
        assert [(e.started_at, e.ended_at) for e in watched.runtime.past] == [(T - 600, T + 15)]


@pytest.mark.parametrize(
    ("left", "seen_at", "end"),
    [
        (finding(replica="gone"), T - 3599, T),
        (finding(rule="NoSuchRule"), T - 60, T),
        (finding(began=T - 9600), T - 3600, T - 3600),
        (finding(began=T - 9600), 0.0, T - 9570),
    ],
)
def test_unwatched_restored_finding_ends(left: Finding, seen_at: float, end: float) -> None:
    with watching() as (_, watched):
        watched.loop.restore_findings([left], T, seen_at)
        assert [e.ended_at for e in watched.runtime.past] == [end]
        assert watched.loop.state.rules == {}


def test_gpu_read_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="agent.pipeline.change_log")
    log = ChangeLog()
    for problems in ((), ("GPU 0: lost",), ("GPU 0: lost", "GPU 1: lost"), ()):
        log.accept(StepResult(now=T, observation=Observation(now=T, gpu_problems=problems)))
    said = ["GPU read failed", "GPU read recovered"]
    assert [r.getMessage().partition(" error=")[0] for r in caplog.records] == said


CASCADE = finding("KvCacheCascade").worst
WORSE = replace(CASCADE, status=Status.CRITICAL, stage=3)
OVER = replace(CASCADE, status=Status.OK)
SURE = replace(finding("TtftSloBurn").worst, status=Status.CRITICAL)
LIKELY = replace(SURE, certainty=Certainty.LIKELY)


@pytest.mark.parametrize(
    ("verdicts", "lines"),
    [
        (
            (CASCADE, CASCADE, WORSE, WORSE, OVER),
            [
                "WARNING finding rule=KvCacheCascade subject=t/r0 status=warning certainty=certain",
                "WARNING finding rule=KvCacheCascade subject=t/r0 status=critical certainty=certain",
                "INFO finding ended rule=KvCacheCascade subject=t/r0",
            ],
        ),
        (
            (LIKELY, LIKELY, SURE, LIKELY, SURE),
            [
                "INFO finding rule=TtftSloBurn subject=t/r0 status=critical certainty=likely",
                "WARNING finding rule=TtftSloBurn subject=t/r0 status=critical certainty=certain",
            ],
        ),
    ],
    ids=["worse", "certain"],
)
def test_worse_or_surer_finding_is_logged_again(
    verdicts: tuple[Verdict, ...], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agent.pipeline.change_log")
    evaluator, state, log = Evaluator({}), EvaluatorState(), ChangeLog()
    for verdict in verdicts:
        state.new_results = (verdict,)
        log.accept(evaluator.step(state, Observation(now=T)))
    assert [f"{one.levelname} {one.getMessage().partition(':')[0]}" for one in caplog.records] == lines


# ---- the books: sums that survive restarts and corrupt sums, failures, the last hour ----


KEY = ("t", "r")
VIEWS = {"t": load_bins.build_tier_context("t", None)}


def minute(number: int, finished: float, replica: str = "r", offset: float = 0.0) -> ClosedMinute:
    """A minute that is over; `offset` moves its scrapes within the minute."""
    whole = window(START + 60.0 * number + offset, counters={"requests_finished": finished})
    return ClosedMinute(tier="t", replica=replica, slice=load_bins.bin_window(whole, None, replica))


def completed(runtime: RuntimeState) -> list[float]:
    found = []
    for point in runtime.trend("t"):
        reading = point.readings["completed_rps"]
        assert reading.value is not None
        found.append(reading.value * 60.0)
    return found


EDGES = (0.3, math.inf)
WHOLE = histogram([0.2, 0.7])


@pytest.mark.parametrize(
    ("added", "counts", "total"),
    [
        ([WHOLE] * 3, (0.0, 3.0, 3.0, 0.0, 0.0), 2.7),
        # New edges begin the histogram again; a sum that is not trusted adds buckets only.
        ([WHOLE, histogram([0.2], EDGES)], (1.0, 0.0), 0.2),
        ([WHOLE, replace(WHOLE, total=None)], (0.0, 2.0, 2.0, 0.0, 0.0), 0.9),
    ],
    ids=["grows", "new edges", "untrusted sum"],
)
def test_sums_grow_by_accepted_windows(added: list[Histogram], counts: tuple[float, ...], total: float) -> None:
    sums = RunningSums()
    shown = []
    for n, part in enumerate(added, 1):
        counters = {"requests_finished": 2.0}
        sums.add(window(START + 15 * (n - 1), 15, counters=counters, histograms={"ttft_seconds": (part,)}))
        shown.append(sums.window())
    sums.add(windows.gap_window(START + 60, START + 75, Gap.RESTARTED))
    assert sums.window().counters == {"requests_finished": 2.0 * len(added)}
    assert [one.counters["requests_finished"] for one in shown] == [2.0 * n for n in range(1, len(added) + 1)]
    assert (shown[-1].start, shown[-1].end) == (START, START + 15 * len(added))
    (part,) = shown[-1].histograms["ttft_seconds"]
    assert (part.counts, part.total) == (counts, pytest.approx(total))


def test_gpu_counters_are_kept_by_gpu() -> None:
    runtime, elsewhere = RuntimeState(), ("t", "scraped by another agent")
    joules = (("GPU-a", 5.0), ("GPU-b", 7.0))
    of_gpus = {name: window(counters={"gpu_energy_joules": energy}) for name, energy in joules}
    gpus = {key: ReplicaGpus(windows=of_gpus) for key in (KEY, elsewhere)}
    both = window(counters={"requests_finished": 1.0, "gpu_energy_joules": 12.0}, gauges={"x": gauge(1.0)})
    for _ in range(2):
        runtime.accept(scraped(None, window=both, gpus=gpus))
    # GPUs count with the window of their replica, which a failed scrape has not.
    runtime.accept(scraped(ScrapeFailure.CONNECT, gpus={KEY: gpus[KEY]}))
    assert runtime.replicas[KEY].sums.window().counters == {"requests_finished": 2.0}
    totals = {"GPU-a": {"gpu_energy_joules": 10.0}, "GPU-b": {"gpu_energy_joules": 14.0}}
    assert [runtime.replicas[key].gpu_totals for key in (KEY, elsewhere)] == [totals, totals]


def scraped(kind: ScrapeFailure | None, key: ReplicaKey = KEY, window: Window | None = None, **more: Any) -> StepResult:
    """A failed scrape; without a kind the target is skipped after failures."""
    failure = kind.value if kind is not None else ""
    scrape = ReplicaScrape(tier=key[0], replica=key[1], t=START, error=f"{failure}: why", failure=failure)
    found = ((key, window),) if window is not None else ()
    return StepResult(now=START, observation=Observation(now=START, scrapes=(scrape,), **more), windows=found)


def test_failures_are_counted_by_kind() -> None:
    runtime = RuntimeState()
    for kind in (ScrapeFailure.CONNECT, ScrapeFailure.CONNECT, ScrapeFailure.TIMEOUT, None, None):
        runtime.accept(scraped(kind))
    assert dict(runtime.failures) == {("t", "r", "connect"): 2, ("t", "r", "timeout"): 1}
    assert runtime.replicas[KEY].error == "timeout: why"


def test_trend_has_one_point_a_minute() -> None:
    runtime = RuntimeState()
    silence = windows.gap_window(START, START + 60, Gap.SCRAPE_FAILED)
    silent = ClosedMinute(tier="t", replica="r", slice=load_bins.bin_window(silence, None, "r"))
    runtime.record_minutes((silent,), VIEWS)
    (point,) = runtime.trend("t")
    assert not any(isinstance(value, Reading) for value in point.readings.values()), "a gap is no number"
    # A minute that comes late keeps its place.
    for n in (*range(1, TREND_MINUTES + 3), TREND_MINUTES + 4, TREND_MINUTES + 3):
        runtime.record_minutes((minute(n, float(n)),), VIEWS)
    assert [p.t for p in runtime.trend("t")] == [START + 60.0 * (n + 1) for n in range(5, TREND_MINUTES + 5)]
    assert completed(runtime)[-1] == pytest.approx(64.0)
    assert runtime.trend("other") == ()
    assert len(runtime._minutes["t"]) == OPEN_MINUTES


def test_late_replicas_share_one_point() -> None:
    runtime = RuntimeState()
    runtime.record_minutes((minute(0, 60.0, "a"),), VIEWS)
    runtime.record_minutes((minute(0, 30.0, "b", offset=2.0), minute(1, 60.0, "a")), VIEWS)
    runtime.record_minutes((minute(1, 30.0, "b", offset=2.0),), VIEWS)
    assert len(runtime.trend("t")) == 2
    assert completed(runtime) == pytest.approx([90.0 * 120 / 124] * 2, rel=0.05)


def test_retained_replicas_keep_their_sums() -> None:
    runtime = RuntimeState()
    for key in (KEY, ("t", "gone")):
        runtime.accept(scraped(ScrapeFailure.CONNECT, key, window(counters={"requests_finished": 1.0})))
    runtime.record_minutes((minute(0, 1.0),), VIEWS)
    runtime.retain({KEY}, ())
    assert set(runtime.replicas) == {KEY}
    # A counter must not fall, but its series ends with its replica, as all others of it do.
    assert runtime.failures == {("t", "r", "connect"): 1}
    assert len(runtime.trend("t")) == 1


def test_unreadable_minute_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = RuntimeState()
    event = TimelineEvent(t=START, kind=TimelineKind.RESTART, tier="t", replica="r", text="the engine restarted")
    span = making.finding(making.verdict(), ended_at=START)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(runtime, "record_minutes", broken)
    with pytest.raises(ZeroDivisionError):
        runtime.accept(StepResult(now=START, closed=(span,), events=(event,)))
    assert (runtime.past, runtime.events) == ([span], (event,))
