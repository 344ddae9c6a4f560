"""The daemon's books: running sums that survive restarts and corrupt sums, failures, the last hour."""

import math
from dataclasses import replace
from typing import Any

import pytest
from making import START, finding, gauge, histogram, verdict, window

from agent.errors import ScrapeFailure
from agent.pipeline.runtime_state import OPEN_MINUTES, TREND_MINUTES, RunningSums, RuntimeState
from rules.evaluator.observation import (
    ClosedMinute,
    Observation,
    ReplicaGpus,
    ReplicaKey,
    ReplicaScrape,
    StepResult,
)
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan import load_bins
from rules.telemetry import windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window

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
    span = finding(verdict(), ended_at=START)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(runtime, "record_minutes", broken)
    with pytest.raises(ZeroDivisionError):
        runtime.accept(StepResult(now=START, closed=(span,), events=(event,)))
    assert (runtime.past, runtime.events) == ([span], (event,))
