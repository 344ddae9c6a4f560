"""Windows add up in any grouping, and hold what was seen: neither zeros for absences nor numbers across restarts."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import EDGES, START, cumulative, snapshot, window, without

from rules.plan.capacity import stated_capacity
from rules.telemetry import windows
from rules.telemetry.derived import PlanFacts
from rules.telemetry.families import FAMILIES, FamilyKind
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Cumulative
from rules.telemetry.readings import families_of, read, read_all
from rules.telemetry.signals import SIGNALS, Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import EVERYTHING, Window
from rules.telemetry.work import CapacityLengths, MeanTokens

BASIS = PlanFacts(
    prefix_reuse_seconds=10.0,
    peak_flops=1e3,
    peak_bytes_per_second=1e3,
    gpus_per_replica=4,
    gpu_hour_price=2.5,
    ttft_slo_seconds=1.0,
    tpot_slo_seconds=0.5,
    capacity=stated_capacity(
        3.0,
        "the plan",
        CapacityLengths(
            prompt_tokens=MeanTokens(low=400.0, high=400.0), generation_tokens=MeanTokens(low=100.0, high=300.0)
        ),
    ),
)
OLD_EDGES = (0.25, 2.0, math.inf)
SECONDS = 60.0

amounts = st.integers(0, 50).map(float)


@st.composite
def gauge_sums(draw: st.DrawFn) -> GaugeSum:
    low, high = sorted((draw(amounts), draw(amounts)))
    seconds = draw(st.sampled_from([20.0, 40.0, SECONDS]))
    middle = draw(st.integers(int(low), int(high)))
    return GaugeSum(integral=middle * seconds, seconds=seconds, minimum=low, maximum=high, samples=seconds / 20)


@st.composite
def seen_windows(draw: st.DrawFn, start: float) -> Window:
    """What two good pages tell: each family is there, or missing for once with its reason, or not exposed at all."""
    counters, parts, gauges, short, gaps = {}, {}, {}, {}, {}
    kinds = draw(st.lists(st.sampled_from("yyyyyymn"), min_size=len(FAMILIES), max_size=len(FAMILIES)))
    for family, how in zip(FAMILIES, kinds, strict=True):
        if how == "m":
            gaps[family.name] = draw(st.sampled_from([Gap.STALE, Gap.RESTARTED, Gap.SCRAPE_FAILED]))
            if family.kind is not FamilyKind.GAUGE:
                short[family.name] = SECONDS
        elif how == "y" and family.kind is FamilyKind.COUNTER:
            counters[family.name] = draw(amounts)
        elif how == "y" and family.kind is FamilyKind.HISTOGRAM:
            grid = draw(st.sampled_from([EDGES, OLD_EDGES]))
            counts = draw(st.lists(amounts, min_size=len(grid), max_size=len(grid)))
            total = draw(st.none() | amounts)
            parts[family.name] = (windows.Histogram(edges=grid, counts=tuple(counts), total=total),)
        elif how == "y":
            gauges[family.name] = draw(gauge_sums())
    return window(start, SECONDS, counters=counters, histograms=parts, gauges=gauges, short_seconds=short, gaps=gaps)


@st.composite
def fleets(draw: st.DrawFn) -> list[Window]:
    """Windows of up to three replicas over up to three minutes; some minutes failed."""
    starts = [
        START + SECONDS * minute for minute in range(draw(st.integers(1, 3))) for _ in range(draw(st.integers(1, 3)))
    ]
    return [
        draw(seen_windows(start))
        if draw(st.integers(0, 5))
        else windows.gap_window(start, start + SECONDS, draw(st.sampled_from([Gap.SCRAPE_FAILED, Gap.RESTARTED])))
        for start in starts
    ]


def in_some_grouping(several: list[Window], random: Random) -> Window:
    """Adds at random places until one window is left."""
    rest = list(several)
    random.shuffle(rest)
    while len(rest) > 1:
        taken = [rest.pop(random.randrange(len(rest))) for _ in range(random.randint(2, len(rest)))]
        rest.append(windows.sum_windows(taken))
    return rest[0]


WHOLE = ("cold_start_seconds", "tpot_mean_seconds", "cost_per_million_tokens")
"""Signals that no judgement reads over a sum of few families."""


@settings(max_examples=60)
@given(fleets(), st.randoms(use_true_random=False))
def test_any_grouping_reads_the_same(several: list[Window], random: Random) -> None:
    """In any order, and by the families of a signal alone, which are all that judgements add up."""
    whole = windows.sum_windows(several)
    grouped, readings = in_some_grouping(several, random), read_all(whole, BASIS)
    assert read_all(grouped, BASIS) == readings
    assert grouped == whole
    for signal in SIGNALS:
        if signal.name not in WHOLE:
            assert read(signal, windows.sum_families(several, families_of(signal)), BASIS) == readings[signal.name]


def test_known_families_and_empty_sums() -> None:
    known = {family.name for family in FAMILIES} | {"adapter_evictions"}
    assert {family for signal in SIGNALS for family in signal.families} <= known
    for several in ((), []):
        with pytest.raises(ValueError, match="no windows"):
            windows.sum_windows(several)
        with pytest.raises(ValueError, match="no windows"):
            windows.sum_families(several, ("requests_finished",))
    alone = window(START)
    assert windows.sum_families((alone,), ()) is alone, "nothing is added: it is returned whole"


def test_two_pages_make_one_window() -> None:
    before = snapshot(START, gauges={"requests_running": 2.0})
    after = snapshot(
        START + 10,
        counters={"requests_finished": 130.0, "engine_steps": 3100.0},
        histograms={"ttft_seconds": cumulative([0.2] * 100 + [0.7] * 30)},
        gauges={"requests_running": 6.0},
    )
    found = windows.diff_snapshots(before, after)
    assert (found.start, found.end, found.span) == (START, START + 10, 10)
    assert (found.expected_seconds, found.covered_seconds, found.coverage) == (10, 10, 1)
    assert found.counters["requests_finished"] == 30
    assert found.histograms["ttft_seconds"][0].counts == (0, 0, 30, 0, 0)
    assert found.histograms["ttft_seconds"][0].total == pytest.approx(21.0)
    assert found.gauges["requests_running"] == GaugeSum(integral=40, seconds=10, minimum=2, maximum=6, samples=1)
    assert found.gaps == {}
    assert found.short_seconds == {}


def test_system_change_counts_running_and_waiting() -> None:
    before = snapshot(START, gauges={"requests_running": 2.0, "requests_waiting": 1.0})
    after = snapshot(START + 10, gauges={"requests_running": 6.0, "requests_waiting": 0.0})
    assert windows.diff_snapshots(before, after).counters["in_system_change"] == 3
    assert "in_system_change" not in windows.diff_snapshots(without(before, "requests_waiting"), after).counters


@pytest.mark.parametrize("later", [0.0, -5.0])
def test_two_pages_out_of_order_are_refused(later: float) -> None:
    with pytest.raises(ValueError, match="out of order"):
        windows.diff_snapshots(snapshot(START), snapshot(START + later))
    assert windows.diff_snapshots(snapshot(START), snapshot(START + 0.5)).covered_seconds == 0.5


@pytest.mark.parametrize("family", ["requests_finished", "ttft_seconds", "kv_utilization"])
@pytest.mark.parametrize("is_later", [False, True])
def test_family_missing_once_is_a_gap(family: str, is_later: bool) -> None:
    before, after = snapshot(START), snapshot(START + 10)
    if is_later:
        found, reason = windows.diff_snapshots(before, without(after, family)), Gap.SCRAPE_FAILED
    else:
        found, reason = windows.diff_snapshots(without(before, family), after), Gap.NOT_EXPOSED
    assert family not in {*found.counters, *found.histograms, *found.gauges}
    assert found.explain_missing(family) is reason
    assert found.seconds_of(family) == (10 if family == "kv_utilization" else 0)
    assert found.seconds_of("generation_tokens") == 10


def test_missing_counter_costs_its_seconds() -> None:
    """Absent from the middle one of three pages: 20 of 40 seconds are known, and the rate is of those."""
    pages = [snapshot(START + 10 * i, counters={"requests_finished": 100.0 + 20 * i}) for i in range(5)]
    pages[1] = without(pages[1], "requests_finished")
    whole = windows.sum_windows(windows.diff_snapshots(a, b) for a, b in pairwise(pages))
    assert (whole.counters["requests_finished"], whole.seconds_of("requests_finished")) == (40, 20)
    assert read_all(whole)["completed_rps"] == Reading(value=None, low=1.0, high=None, n=40)
    assert read_all(whole)["generation_tokens_per_second"] == Reading(value=0.0, low=0.0, high=0.0, n=0)
    # A family that is not exposed outlives a failed scrape; one that is broken twice is one.
    failed = windows.gap_window(START + 10, START + 20, Gap.SCRAPE_FAILED)
    both = windows.sum_windows([windows.diff_snapshots(snapshot(START), snapshot(START + 10)), failed])
    assert both.explain_missing("spec_drafts") is Gap.NOT_EXPOSED
    assert failed.explain_missing("spec_drafts") is Gap.SCRAPE_FAILED
    broken = (snapshot(t, broken=frozenset({"ttft_seconds"})) for t in (START, START + 10))
    found = windows.diff_snapshots(*(without(page, "ttft_seconds") for page in broken))
    assert (found.explain_missing("ttft_seconds"), found.seconds_of("ttft_seconds")) == (Gap.SCRAPE_FAILED, 0)


def test_sum_keeps_graver_reason_and_marks() -> None:
    reasons = [Gap.STALE, Gap.SCRAPE_FAILED, Gap.RESTARTED]
    several = [window(START + 60 * i, gaps={"preemptions": reason}) for i, reason in enumerate(reasons)]
    assert windows.sum_windows(several).explain_missing("preemptions") is Gap.SCRAPE_FAILED
    assert windows.sum_windows(several[::2]).explain_missing("preemptions") is Gap.RESTARTED
    polled = window(START, sampled=frozenset({"gpu_power_watts"}))
    assert windows.sum_windows([polled, window(START + 60)]).sampled == {"gpu_power_watts"}


@pytest.mark.parametrize(
    ("ready", "cold"), [(START - 5, {"cold_starts": 1, "cold_start_seconds": 45}), (None, {}), (START - 50, {})]
)
def test_other_start_time_is_a_restart(ready: float | None, cold: dict[str, float]) -> None:
    after = snapshot(START + 10, started_at=START - 50, ready_at=ready, counters={"requests_finished": 500.0})
    found = windows.diff_snapshots(snapshot(START), after)
    assert (found.covered_seconds, found.gaps) == (0, {EVERYTHING: Gap.RESTARTED})
    assert found.counters == {"restarts": 1, **cold}
    assert (found.histograms, found.gauges) == ({}, {})


def untold(t: float, finished: float, tokens: float, preemptions: float, steps: float | None = None) -> Snapshot:
    """A page of a process that tells no start."""
    counters = {"requests_finished": finished, "generation_tokens": tokens, "preemptions": preemptions}
    page = snapshot(t, started_at=None, counters={**counters, "engine_steps": steps or 0.0})
    return page if steps else without(page, "engine_steps")


STEPLESS = untold(START, 100.0, 5000.0, 7.0)
STEPPED = untold(START, 100.0, 5000.0, 0.0, steps=3000.0)
IDLE_PAIR = [snapshot(t, started_at=None) for t in (START, START + 10)]


@pytest.mark.parametrize(
    ("before", "after", "is_another"),
    [
        # Start times may round.
        *(
            (snapshot(START), snapshot(START + 10, started_at=START - 1000 + later), later not in (0.9, -0.9))
            for later in (0.9, -0.9, 1.5, -1.5)
        ),
        # A service address that leads to either of two replicas.
        (snapshot(START, started_at=START - 50), snapshot(START + 10), True),
        (snapshot(START), snapshot(START + 10, engine="sglang"), True),
        # An idle engine is one process.
        (*IDLE_PAIR, False),
        (*(without(page, "engine_steps") for page in IDLE_PAIR), False),
        # Steps decide without start times, else most of the counters that are not 0.
        (STEPPED, untold(START + 10, 120.0, 6000.0, 1.0, steps=2999.0), True),
        (STEPPED, untold(START + 10, 120.0, 6000.0, 1.0, steps=3000.0), False),
        (STEPPED, untold(START + 10, 120.0, 10.0, 0.0, steps=3100.0), False),
        (STEPLESS, untold(START + 10, 120.0, 10.0, 7.0), False),
        (STEPLESS, untold(START + 10, 120.0, 10.0, 1.0), True),
        (STEPLESS, untold(START + 10, 100.0, 10.0, 7.0), True),
        (STEPLESS, untold(START + 10, 100.0, 5000.0, 7.0), False),
    ],
)
def test_restart_is_told_from_growth(before: Snapshot, after: Snapshot, is_another: bool) -> None:
    assert windows.is_restart(before, after) is is_another


def test_fallen_counter_breaks_itself_only() -> None:
    found = windows.diff_snapshots(snapshot(START), snapshot(START + 10, counters={"requests_finished": 3.0}))
    assert found.explain_missing("requests_finished") is Gap.RESTARTED
    assert found.short_seconds == {"requests_finished": 10}
    assert found.counters["generation_tokens"] == 0


@pytest.mark.parametrize("known", [(None, None), (START - 1000, None), (None, START - 5)])
def test_falling_counters_are_a_restart(known: tuple[float | None, float | None]) -> None:
    before = snapshot(START, started_at=known[0], ready_at=None)
    counters = {"requests_finished": 3.0, "generation_tokens": 80.0, "engine_steps": 3100.0}
    after = snapshot(START + 10, started_at=known[1], ready_at=None, counters=counters)
    found = windows.diff_snapshots(before, after)
    assert found.gaps == {EVERYTHING: Gap.RESTARTED}
    assert found.counters == {"restarts": 1}


@pytest.mark.parametrize("later", [cumulative([0.2] * 130, OLD_EDGES), cumulative([0.2] * 90)])
def test_new_edges_or_fallen_buckets_begin_anew(later: Cumulative) -> None:
    found = windows.diff_snapshots(snapshot(START), snapshot(START + 10, histograms={"ttft_seconds": later}))
    assert "ttft_seconds" not in found.histograms
    assert (found.explain_missing("ttft_seconds"), found.seconds_of("ttft_seconds")) == (Gap.RESTARTED, 0)
    assert found.counters["requests_finished"] == 0


def cancelled(t: float, steps: float, **gauges: float) -> windows.Snapshot:
    """A page after a mass cancel: the KV cache is empty, but the gauge still says 99 %."""
    stuck = {"requests_running": 40.0, "requests_waiting": 7.0, "kv_utilization": 0.99, "kv_utilization_max": 0.99}
    return snapshot(t, counters={"engine_steps": steps}, gauges={**stuck, "engine_awake": 1.0, **gauges})


EMPTY = dict.fromkeys(("requests_running", "requests_waiting", "kv_utilization", "kv_utilization_max"), 0.0)


def test_stepless_gauges_are_stale() -> None:
    before = cancelled(START, 3000)
    found = windows.diff_snapshots(before, cancelled(START + 10, 3000))
    assert found.gauges.keys().isdisjoint(EMPTY)
    assert {found.explain_missing(family) for family in EMPTY} == {Gap.STALE}
    assert found.gauges["engine_awake"].integral == 10
    assert read_all(found)["kv_utilization"] == Missing(gap=Gap.STALE)
    stepped = windows.diff_snapshots(before, cancelled(START + 10, 3001))
    assert stepped.gauges["kv_utilization"].integral == pytest.approx(9.9)
    idle = windows.diff_snapshots(cancelled(START, 3000, **EMPTY), cancelled(START + 10, 3000, **EMPTY))
    assert (idle.gauges["kv_utilization"].maximum, idle.gaps) == (0, {})
    uncounted = [without(cancelled(t, 0), "engine_steps") for t in (START, START + 10)]
    assert windows.diff_snapshots(*uncounted).gauges["kv_utilization"].minimum == 0.99


def test_coverage_stays_within_bounds() -> None:
    several = [window(START), window(START + 180)]
    assert windows.sum_windows(several).coverage == 0.5
    # Counters booked late reach back before the windows that expected them.
    late = window(START - 60, 120.0, expected_seconds=60.0)
    assert windows.sum_windows([window(START), late]).coverage == 1.0
    assert window(START, 0.0).coverage == 0.0
    # A family that appears late was not there before.
    several = [window(START), window(START + 60, counters={"preemptions": 6.0})]
    assert windows.sum_windows(several).seconds_of("preemptions") == 60


def test_minute_holds_the_window_middle() -> None:
    minute = START // 60 * 60
    assert windows.minute_of(window(minute + 50, 19)) == minute
    assert windows.minute_of(window(minute + 50, 21)) == minute + 60
