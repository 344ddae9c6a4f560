"""Readings of real recordings against what their clients measured, request by request.

The clients know the truth: when each request began, its first token, its end. Windows of 15 s are compared with the
requests that fall into them by the client's clock, replica by replica; quantiles where there are 20 or more.
"""

import functools
import math
from dataclasses import dataclass

import pytest
import recorded

from agent.replay.replay import replay
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.replicas.state import ScrapeTrack, record_failure, record_success
from rules.telemetry import histograms, windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, SignalValue
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

STEP_SECONDS = 15.0
FEWEST = 20

# A request that ends this close to a window's edge may be in the one or the other: the page is made a little before the
# recorder notes the time. All but one of all their requests are in the window that their client says.
EDGE_SECONDS = 0.05

# What lies between engine and client before the first token: HTTP, and the front end before it notes the arrival. On the
# mean 3 to 18 ms, measured below for every recording; single requests wait longer when the front end is busy.
TTFT_OVERHEAD_SECONDS = 0.01
MOST_OVERHEAD_SECONDS = 0.02
TTFT_SHARE = 0.95

# Tokens after the first come over an open stream: client and engine differ by less than this a token, on the mean.
TPOT_OVERHEAD_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client saw it: unix seconds of its first and last token, and its latencies."""

    replica: str
    first_at: float | None
    ttft: float
    ended_at: float | None
    tpot: float | None


def _of_tier(name: str) -> bool:
    recording, _ = load(recorded.folder(name))
    return all(target.tier == "cpu-small" for target in recording.targets)


NAMES = [name for name in recorded.names() if _of_tier(name)]


@functools.cache
def clients(name: str) -> tuple[Request, ...]:
    recording, _ = load(recorded.folder(name))
    only = recording.targets[0].replica
    return tuple(_request(row, only) for row in recorded.requests(name))


def _request(row: dict[str, str], only: str) -> Request:
    start, replica = float(row["t_start"]), row.get("replica") or only
    if not row["ttft"]:
        return Request(replica, None, math.nan, None, None)
    ttft = float(row["ttft"])
    if row["error"] or not row["e2e"]:
        return Request(replica, start + ttft, ttft, None, None)
    e2e, tokens = float(row["e2e"]), int(row["completion_tokens"])
    tpot = (e2e - ttft) / (tokens - 1) if tokens > 1 else None
    return Request(replica, start + ttft, ttft, start + e2e, tpot)


@functools.cache
def shown(name: str) -> tuple[tuple[str, Window], ...]:
    """Windows of the 15 s grid by replica, from the replay that the command uses."""
    recording, problems = load(recorded.folder(name))
    found = replay(recording, None, STEP_SECONDS)
    assert (problems, found.problems) == ((), [])
    return tuple((one.replica, one.window) for one in found.windows if one.replica is not None)


def inside(window: Window, t: float | None) -> bool:
    return t is not None and window.start < t <= window.end


def at_edge(window: Window, t: float | None) -> bool:
    return t is not None and min(abs(t - window.start), abs(t - window.end)) <= EDGE_SECONDS


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[max(1, math.ceil(round(q * len(values), 6))) - 1]


def bounds(reading: SignalValue) -> tuple[float, float]:
    assert reading.low is not None
    return reading.low, math.inf if reading.high is None else reading.high


def test_there_are_recordings_of_the_tier() -> None:
    assert {"steady", "diurnal", "kv_cascade", "restart", "prefix", "lora", "specdecode", "routing"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_window_requests_match_clients(name: str) -> None:
    compared = 0
    for replica, window in shown(name):
        mine = [request for request in clients(name) if request.replica == replica]
        for family, times in (
            ("requests_finished", [r.ended_at for r in mine]),
            ("ttft_seconds", [r.first_at for r in mine]),
        ):
            truth = sum(inside(window, t) for t in times)
            if window.coverage < 1:
                continue
            compared += truth
            parts = window.histograms.get(family, ())
            found = window.counters[family] if not parts else math.fsum(part.n for part in parts)
            assert abs(found - truth) <= sum(at_edge(window, t) for t in times), (window.start, family)
    assert compared > 350


@pytest.mark.parametrize("name", NAMES)
def test_recording_counts_every_request_once(name: str) -> None:
    """Between the first and the last page of each process of each replica; the last request may end on that page."""
    for replica, window in whole_processes(name):
        ended = [r.ended_at for r in clients(name) if r.replica == replica]
        truth = sum(inside(window, t) for t in ended)
        at_ends = sum(at_edge(window, t) for t in ended)
        assert abs(window.counters["requests_finished"] - truth) <= min(1, at_ends), (replica, window.start)


def whole_processes(name: str) -> list[tuple[str, Window]]:
    """One window for each process: all of its scrapes added up."""
    recording, _ = load(recorded.folder(name))
    found = []
    for target, scraped in zip(recording.targets, by_target(name), strict=True):
        track, several = ScrapeTrack(), []
        for t, page in scraped:
            track, window = record_success(track, page) if page else record_failure(track, t)
            if window is not None and window.covered_seconds > 0:
                several.append(window)
            elif several and window is not None and "restarts" in window.counters:
                found.append((target.replica, windows.sum_windows(several)))
                several = []
        found.append((target.replica, windows.sum_windows(several)))
    return found


@functools.cache
def by_target(name: str) -> tuple[tuple[tuple[float, Snapshot | None], ...], ...]:
    """The scrapes of each target: time, and the page if there was one."""
    recording, _ = load(recorded.folder(name))
    readers = [PageReader() for _ in recording.targets]
    found: list[list[tuple[float, Snapshot | None]]] = [[] for _ in recording.targets]
    for scrape in scrapes(recording, []):
        page = None if scrape.body is None else readers[scrape.target].read(scrape.body, scrape.t)
        found[scrape.target].append((scrape.t, page))
    return tuple(tuple(several) for several in found)


@pytest.mark.parametrize("name", NAMES)
def test_client_overhead_is_small(name: str) -> None:
    """The mean over windows with equal counts, from the engine's own sums: what the allowance below rests on."""
    for family, most in (("ttft_seconds", MOST_OVERHEAD_SECONDS), ("tpot_seconds", TPOT_OVERHEAD_SECONDS)):
        excess = n = 0.0
        for replica, window in shown(name):
            mine = [request for request in clients(name) if request.replica == replica]
            if family == "ttft_seconds":
                measured = [r.ttft for r in mine if inside(window, r.first_at)]
            else:
                measured = [r.tpot for r in mine if r.tpot is not None and inside(window, r.ended_at)]
            mean = histograms.mean(window.histograms.get(family, ()))
            if mean is not None and math.fsum(part.n for part in window.histograms[family]) == len(measured):
                excess, n = excess + math.fsum(measured) - mean * len(measured), n + len(measured)
        assert n > 0
        assert -most < excess / n < most, family
        assert family != "ttft_seconds" or excess > 0


@pytest.mark.parametrize("name", NAMES)
def test_tpot_bounds_hold_in_every_window(name: str) -> None:
    for replica, window in shown(name):
        measured = [
            r.tpot for r in clients(name) if r.replica == replica and r.tpot is not None and inside(window, r.ended_at)
        ]
        if len(measured) < FEWEST:
            continue
        readings = read_all(window)
        for q, signal in ((0.5, "tpot_p50_seconds"), (0.99, "tpot_p99_seconds")):
            low, high = bounds(readings[signal])
            assert low <= nearest_rank(measured, q) <= high, (window.start, signal)


def test_ttft_bounds_hold_in_most_windows() -> None:
    """The engine does not see stalls before the request reaches it: a few windows are wrong, and are said to be few."""
    outside, compared = [], 0
    for name in NAMES:
        for replica, window in shown(name):
            measured = [r.ttft for r in clients(name) if r.replica == replica and inside(window, r.first_at)]
            if len(measured) < FEWEST:
                continue
            readings = read_all(window)
            for q, signal in ((0.5, "ttft_p50_seconds"), (0.99, "ttft_p99_seconds")):
                compared += 1
                low, high = bounds(readings[signal])
                truth = nearest_rank(measured, q)
                if not low <= truth <= high + TTFT_OVERHEAD_SECONDS:
                    outside.append((name, window.start, signal, truth, low, high))
    assert compared > 150
    assert len(outside) <= (1 - TTFT_SHARE) * compared, outside


def test_outage_windows_are_gaps() -> None:
    """SIGKILL, 63 s of outage; SIGTERM, 34 s: no page, so no reading of anything."""
    whole = [window for _, window in shown("restart") if window.covered_seconds == 0]
    assert len(whole) >= 5
    for window in whole:
        assert window.coverage == 0
        for signal, reading in read_all(window).items():
            if signal == "cold_start_seconds" and "cold_starts" in window.counters:
                continue
            assert isinstance(reading, Missing), (window.start, signal)
            assert reading.gap in (Gap.SCRAPE_FAILED, Gap.RESTARTED, Gap.NOT_IN_PLAN, Gap.NO_TRAFFIC)
            assert reading.gap is not Gap.NO_TRAFFIC or signal == "cold_start_seconds"


def test_restarted_processes_count_exactly() -> None:
    """105, 77 and 79 requests between the first and the last page of each; what ends before the first page is lost."""
    processes = [window for _, window in whole_processes("restart")]
    assert [window.counters["requests_finished"] for window in processes] == [105, 77, 79]
    ended = [r.ended_at for r in clients("restart")]
    assert [sum(inside(window, t) for t in ended) for window in processes] == [105, 77, 79]
    lost = [t for t in ended if t is not None and not any(inside(window, t) for window in processes)]
    interval = 5.1
    for t in lost:
        assert any(
            window.start - interval < t <= window.start or window.end < t <= window.end + interval
            for window in processes
        )
    assert len(lost) <= 4


def test_restarts_and_cold_starts_are_timed() -> None:
    """The recording's stopwatch said 51.1 and 27.9 s from start to the first answer."""
    whole = windows.sum_windows(window for _, window in shown("restart"))
    assert (whole.counters["restarts"], whole.counters["cold_starts"]) == (2, 2)
    assert whole.counters["cold_start_seconds"] == pytest.approx(51.1 + 27.9, abs=2.0)
    found = read_all(whole)["cold_start_seconds"]
    assert found.value == pytest.approx((51.1 + 27.9) / 2, abs=1.0)


def test_dying_and_late_replicas() -> None:
    """A page 1 s after the kill has normal-looking gauges; its counters go no further than the clients' requests."""
    first = whole_processes("restart")[0][1]
    ended = [r.ended_at for r in clients("restart")]
    assert first.counters["requests_finished"] == sum(inside(first, t) for t in ended)
    # 19 failed scrapes before the second replica's first page.
    late = [window for replica, window in shown("scale_up_cold_cache") if replica == "cpu-small-1"]
    unseen = [window for window in late if window.covered_seconds == 0]
    assert len(unseen) >= 5
    assert all(isinstance(read_all(window)["completed_rps"], Missing) for window in unseen)
    assert sum(window.expected_seconds for window in late) == pytest.approx(late[-1].end - late[0].start, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_pages_have_no_problem(name: str) -> None:
    for scraped in by_target(name):
        for _, page in scraped:
            assert page is None or page.problems == ()
