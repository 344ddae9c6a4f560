"""How long a gauge holds between two scrapes, and what Little's law says of the time in between."""

from collections.abc import Mapping

import pytest
from judging_samples import context
from making import START, bare_page, cumulative, snapshot

from rules.plan.load_bins import bin_window
from rules.telemetry import windows
from rules.telemetry.gauges import IN_SYSTEM_BY_LITTLE, interpolate
from rules.telemetry.histograms import Cumulative
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

EDGES = (1.0, 10.0, 100.0, float("inf"))
IDLE = {"requests_running": 0.0, "requests_waiting": 0.0, "kv_utilization": 0.0, "kv_utilization_max": 0.0}


def page(t: float, steps: float, seconds: list[float], gauges: Mapping[str, float] | None = None) -> Snapshot:
    """A page `t` seconds after the first whose finished requests took these seconds."""
    e2e: Cumulative = cumulative(seconds, EDGES)
    counters = {"engine_steps": steps, "requests_finished": float(len(seconds))}
    return snapshot(START + t, counters=counters, histograms={"e2e_seconds": e2e}, gauges=gauges or {})


def between(dt: float, seconds: list[float], *ends: Mapping[str, float]) -> Window:
    before, after = ends or (IDLE, IDLE)
    return windows.diff_snapshots(page(0, 0, [], before), page(dt, 9, seconds, after))


@pytest.mark.parametrize("dt", [15.0, 60.0, 75.0])
def test_gauge_holds_between_usual_scrapes(dt: float) -> None:
    window = between(dt, [1.0], {**IDLE, "kv_utilization": 0.2}, {**IDLE, "kv_utilization": 0.4})
    assert window.gauges["kv_utilization"].integral == pytest.approx(0.3 * dt)
    assert IN_SYSTEM_BY_LITTLE not in window.gauges


def test_late_gauge_is_a_gap() -> None:
    ends = [{**IDLE, "kv_utilization": 0.2, "engine_startup_seconds": 40.0}] * 2
    window = between(76.0, [1.0], *ends)
    assert window.gaps["kv_utilization"] is Gap.NOT_SCRAPED
    assert window.gauges["engine_startup_seconds"].maximum == 40.0


def test_idle_mean_is_exact_beyond_edges() -> None:
    told = between(400.0, [200.0]).gauges[IN_SYSTEM_BY_LITTLE]
    assert told.minimum == told.maximum == 0.5


def test_briefly_known_gauge_is_no_load() -> None:
    untimed = [snapshot(START + t, counters={"engine_steps": t}, gauges=IDLE) for t in (0.0, 100.0, 102.0)]
    both = windows.sum_windows((windows.diff_snapshots(*untimed[:2]), windows.diff_snapshots(*untimed[1:])))
    assert bin_window(both, None, "r").in_system is None


def test_little_counts_load_after_gaps() -> None:
    window = between(100.0, [20.0] * 50)
    assert window.gauges.keys() == {IN_SYSTEM_BY_LITTLE}
    assert {window.gaps[family] for family in IDLE} == {Gap.NOT_SCRAPED}
    told = window.gauges[IN_SYSTEM_BY_LITTLE]
    assert told.integral / told.seconds == told.minimum == told.maximum == 10.0
    assert bin_window(window, None, "r").in_system == 10.0


def test_gauge_holds_as_long_as_requests() -> None:
    busy = {**IDLE, "requests_running": 4.0, "kv_utilization": 0.5}
    assert "kv_utilization" in between(100.0, [150.0, 150.0], busy, busy).gauges


def test_bounds_open_by_standing_requests() -> None:
    """Four were there and may have spent all of their time before; three are there and may have come at once."""
    told = between(100.0, [20.0] * 50, {"requests_running": 4.0}, {"requests_running": 2.0, "requests_waiting": 1.0})
    little = told.gauges[IN_SYSTEM_BY_LITTLE]
    assert (little.minimum, little.integral / 100, little.maximum) == (10.0 - 4 * 100 / 100, 10.0, 13.0)


@pytest.mark.parametrize("dt", [15.0, 60.0])
def test_idle_gauges_of_busy_time_are_refuted(dt: float) -> None:
    window = between(dt, [9.0] * 400)
    assert {window.gaps[family] for family in IDLE} == {Gap.CONTRADICTORY}
    assert window.gauges[IN_SYSTEM_BY_LITTLE].minimum == 9.0 * 400 / dt


def test_bursts_and_aborts_refute_no_gauge() -> None:
    one = {**IDLE, "requests_running": 1.0}
    assert "requests_running" in between(30.0, [9.0] * 400, one, one).gauges
    assert between(60.0, [9.0] * 400, one, one).gaps["requests_running"] is Gap.CONTRADICTORY
    full = {**IDLE, "requests_running": 50.0}
    assert "requests_running" in between(60.0, [1.0], full, IDLE).gauges


def test_front_end_requests_refute_no_gauge() -> None:
    """75 are there on average by whole times, 40 by the gauges; the front end may hold a fifth."""
    busy = {**IDLE, "requests_running": 40.0}
    assert "requests_running" in between(60.0, [9.0] * 500, busy, busy).gauges
    assert between(60.0, [9.0] * 1500, busy, busy).gaps["requests_running"] is Gap.CONTRADICTORY


def test_stepless_engine_is_believed_empty() -> None:
    idle = windows.diff_snapshots(page(0, 5, [], IDLE), page(250, 5, [], IDLE))
    assert idle.gauges["requests_running"].seconds == 250.0
    stale = windows.diff_snapshots(page(0, 5, []), page(250, 5, []))
    assert stale.gaps["requests_running"] is Gap.STALE


def test_countless_stepless_engine_keeps_gauges() -> None:
    """SGLang before it counted its passes: 1 running and a KV cache in use after the last request."""

    def sglang(t: float, tokens: int) -> Snapshot:
        gauges = {"requests_running": 1.0, "requests_waiting": 0.0, "kv_utilization": 0.2}
        itl = {"itl_seconds": cumulative([0.01] * tokens)}
        counters = {"requests_finished": 3.0}
        return bare_page(START + t, engine="sglang", generation="", counters=counters, histograms=itl, gauges=gauges)

    assert windows.diff_snapshots(sglang(0, 50), sglang(15, 60)).gauges["requests_running"].maximum == 1.0
    still = windows.diff_snapshots(sglang(0, 60), sglang(15, 60))
    assert (still.gaps["requests_running"], still.gaps["kv_utilization"]) == (Gap.STALE, Gap.STALE)
    assert still.gauges["requests_waiting"].maximum == 0.0


def test_seconds_long_gauge_is_no_mean() -> None:
    busy = between(100.0, [20.0] * 50)
    idle = windows.diff_snapshots(page(100, 9, [20.0] * 50, IDLE), page(102, 9, [20.0] * 50, IDLE))
    assert idle.gauge("kv_utilization") is not None
    assert windows.sum_windows((busy, idle)).gauge("kv_utilization") is None
    assert bin_window(windows.sum_windows((busy, idle)), None, "r").in_system == pytest.approx(1000 / 102)


def test_few_long_requests_hold_no_gauge() -> None:
    busy = {**IDLE, "requests_running": 4.0}
    assert between(120.0, [1.0] * 10 + [1000.0] * 2, busy, busy).gaps["kv_utilization"] is Gap.NOT_SCRAPED


def test_poorer_window_makes_no_gauge_known() -> None:
    unknown = windows.sum_windows(
        (between(100.0, [20.0] * 50), windows.diff_snapshots(page(100, 9, []), page(102, 19, [])))
    )
    stale = windows.diff_snapshots(page(102, 9, []), page(117, 9, []))
    assert stale.gaps["kv_utilization"] is Gap.STALE
    assert unknown.gauge("kv_utilization") is None
    assert windows.sum_windows((unknown, stale)).gauge("kv_utilization") is None


def test_open_bounds_place_no_load() -> None:
    """200 are there at both pages, and five short ones finished: between none and 200 on average."""
    crowd = {**IDLE, "requests_running": 200.0}
    open_ended = bin_window(between(80.0, [10.0] * 5, crowd, crowd), context().curve, "r")
    assert open_ended.in_system == 50 / 80
    assert (open_ended.bin, open_ended.beyond) == (None, "")
    assert bin_window(between(80.0, [10.0] * 5), context().curve, "r").bin == 0


@pytest.mark.parametrize("seconds", [1713149715.4445245, 1764128001.7331, 49.000000001, 14.13])
def test_rounding_keeps_mean_within_extremes(seconds: float) -> None:
    one = interpolate(0.643, 0.643, seconds)
    assert (one.mean, one.minimum, one.maximum) == (0.643, 0.643, 0.643)


@pytest.mark.parametrize(("before", "value"), [(2.0, 6.0), (6.0, 2.0)])
def test_gauge_extremes_are_its_ends(before: float, value: float) -> None:
    one = interpolate(before, value, 15.0)
    assert (one.minimum, one.maximum, one.mean) == (2.0, 6.0, 4.0)
