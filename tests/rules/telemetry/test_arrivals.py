"""Arriving work from windows: what was queued, refused, unseen or booked late."""

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import bare_page

from rules.replicas.state import ScrapeTrack, record_failure, record_success
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteDemand, MinuteSums, list_demand, minute_from_window, split_by_minute
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import NET_CHANGE, Window, gap_window
from rules.telemetry.work import CapacityLengths, MeanTokens, work_per_request

START = 1_700_006_400.0


def window(start: float, end: float, covered: float | None = None, **counters: float) -> Window:
    seconds = end - start if covered is None else covered
    waiting = GaugeSum(integral=2.0 * seconds, seconds=seconds, minimum=1.0, maximum=3.0, samples=1.0)
    return Window(
        start=start,
        end=end,
        expected_seconds=end - start,
        covered_seconds=seconds,
        counters=counters,
        gauges={"requests_waiting": waiting},
    )


def busy(start: float, end: float, rate: float = 1.0, covered: float | None = None, change: float = 0.0) -> Window:
    """`rate` requests a second finish, each with 100 prompt and 10 generated tokens."""
    finished = rate * (end - start if covered is None else covered)
    counters = {"requests_finished": finished, "prompt_tokens": 100 * finished, "generation_tokens": 10 * finished}
    return window(start, end, covered, **counters, **{NET_CHANGE: change})


def minutes(*several: Window) -> tuple[MinuteSums, ...]:
    """As the history sums them."""
    parts: dict[float, list[MinuteSums]] = {}
    for one in several:
        for part in split_by_minute(one):
            parts.setdefault(part.start, []).append(part)
    return tuple(arrivals.add(parts[start]) for start in sorted(parts))


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({"requests_arrived": 7.0, "requests_finished": 5.0, NET_CHANGE: 9.0, "admission_rejections": 3.0}, 7.0),
        ({"requests_finished": 5.0, NET_CHANGE: 2.0, "admission_rejections": 3.0}, 10.0),
        ({"requests_finished": 5.0, NET_CHANGE: -2.0}, 3.0),
        ({"requests_finished": 5.0}, 5.0),
        ({"requests_finished": 1.0, NET_CHANGE: -2.0}, -1.0),
        ({"prompt_tokens": 5.0, NET_CHANGE: 1.0, "admission_rejections": 3.0}, None),
    ],
)
def test_arrivals_are_counted_or_derived(counters: dict[str, float], expected: float | None) -> None:
    assert arrivals.count_arrivals(counters) == expected


def test_clock_jump_keeps_all_counts() -> None:
    parts = split_by_minute(window(0.0, 10 * 365 * 86_400.0, covered=15.0, requests_finished=1440.0))
    assert len(parts) == 1440
    assert sum(part.completed for part in parts) == pytest.approx(1440.0)
    assert parts[-1].last == 10 * 365 * 86_400.0


OWN_COUNT = window(START, START + 60, requests_arrived=60.0, requests_finished=20.0)
BUSY, TWICE = busy(START, START + 60), busy(START, START + 60, rate=2.0)
BEFORE = [busy(START - 300 + 60 * i, START - 240 + 60 * i) for i in range(5)]
SILENT = gap_window(START, START + 60, Gap.SCRAPE_FAILED)
CACHED = {"prefix_hit_tokens": 300.0, "prefix_queried_tokens": 400.0}


@pytest.mark.parametrize(
    ("windows_", "expected"),
    [
        ([BUSY, TWICE], {"requests": 180.0, "waiting": 4.0, "expected_seconds": 120.0}),
        ([window(START, START + 60, requests_finished=5.0, **{NET_CHANGE: -9.0})], {"requests": 0.0}),
        (
            [window(START, START + 60, prompt_tokens=5.0)],
            {"requests": None, "prompt_tokens": 5.0, "generation_tokens": None},
        ),
        # Its own count covers its time.
        ([replace(OWN_COUNT, short_seconds={"requests_finished": 45.0})], {"requests": 60.0}),
        ([replace(OWN_COUNT, short_seconds={"requests_arrived": 15.0})], {"requests": 80.0}),
        ([replace(OWN_COUNT, short_seconds={"requests_arrived": 45.0})], {"requests": None}),
        # Half of a minute that was seen stands for the whole, no less.
        *(
            ([busy(START, START + 60, covered=covered)], {"requests": 60.0, "covered_seconds": covered, "waiting": 2.0})
            for covered in (60.0, 45.0, 30.0)
        ),
        *(
            ([busy(START, START + 60, covered=covered)], {"requests": None, "expected_seconds": 60.0, "waiting": None})
            for covered in (29.0, 0.0)
        ),
        # A silent replica counts as the mean, a late minute is scaled or missing.
        ([BUSY, BUSY, BUSY, SILENT], {"requests": 240.0, "waiting": 8.0}),
        ([busy(START + 20, START + 60)], {"requests": pytest.approx(60.0), "waiting": 2.0}),
        ([busy(START + 31, START + 60)], {"requests": None}),
        # Tokens of queued requests were asked for, those of a worked-off queue before.
        (
            [*BEFORE, busy(START, START + 60, change=30.0)],
            {"requests": 90.0, "prompt_tokens": 9000.0, "generation_tokens": 900.0},
        ),
        ([busy(START, START + 60, change=-15.0)], {"requests": 45.0, "generation_tokens": 450.0}),
        ([busy(START, START + 60, change=-55.0)], {"generation_tokens": 300.0}),
        # A stuck engine is asked for what arrives.
        (
            [*BEFORE, busy(START, START + 60, rate=0.0, change=40.0)],
            {"requests": 40.0, "prompt_tokens": 4000.0, "generation_tokens": 400.0},
        ),
        # One finished request tells the tokens of a request.
        (
            [window(START, START + 60, requests_finished=1.0, prompt_tokens=100.0, **{NET_CHANGE: 1.0})],
            {"requests": 2.0, "prompt_tokens": 200.0},
        ),
        (
            [window(START, START + 60, requests_finished=0.0, prompt_tokens=500.0, **{NET_CHANGE: 5.0})],
            {"requests": 5.0, "prompt_tokens": 500.0},
        ),
        ([BUSY], {"computed": None}),
        ([replace(BUSY, counters={**BUSY.counters, **CACHED})], {"computed": 0.25}),
    ],
)
def test_demand_of_a_minute(windows_: list[Window], expected: dict[str, Any]) -> None:
    last = list_demand(minutes(*windows_))[-1]
    assert {name: getattr(last, name) for name in expected} == expected


def test_windows_spread_over_their_minutes() -> None:
    found = list_demand(minutes(busy(START - 53, START + 7), busy(START + 7, START + 67, rate=2.0)))
    assert [one.start - START for one in found] == [-60.0, 0.0, 60.0]
    assert [one.requests for one in found] == [pytest.approx(60.0), pytest.approx(7.0 + 2 * 53.0), None]


def scrapes(*pages: tuple[float, float | None]) -> list[Window]:
    """The windows of (seconds, finished requests or None of a failed scrape)."""
    track, found = ScrapeTrack(), []
    for t, count in pages:
        if count is None:
            track, one = record_failure(track, START + t)
        else:
            counters = {"requests_finished": count, "engine_steps": count}
            track, one = record_success(track, bare_page(START + t, counters=counters))
        if one is not None:
            found.append(one)
    return found


def test_counters_book_the_minutes_of_silence() -> None:
    """Late ones fill their silence, a lost process's minutes miss, and so does one that nobody expected."""
    late = scrapes((0, 0.0), (60, 60.0), (120, None), (180, None), (240, 240.0), (300, 300.0))
    assert [one.requests for one in list_demand(minutes(*late))] == [pytest.approx(60.0)] * 5
    lost = scrapes((0, 100.0), (60, 160.0), (120, None), (180, 20.0), (240, 80.0))
    assert [one.requests for one in list_demand(minutes(*lost))] == [60.0, None, None, 60.0]
    first, *_ = list_demand(minutes(late[-2]))
    assert (first.expected_seconds, first.covered_seconds) == (0.0, 60.0)
    assert (first.requests, first.waiting) == (None, None)


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.floats(1.0, 900.0), min_size=1, max_size=30, unique=True),
    rate=st.floats(0.1, 50.0),
    offset=st.floats(0.0, 60.0),
)
def test_even_rate_survives_any_cuts(cuts: list[float], rate: float, offset: float) -> None:
    times = [START + offset + cut for cut in (0.0, *sorted(cuts), 960.0)]
    several = [busy(a, b, rate) for a, b in pairwise(times) if b > a]
    sums = minutes(*several)
    assert math.fsum(one.requests for one in sums) == pytest.approx(960 * rate)
    assert math.fsum(one.expected_seconds for one in sums) == pytest.approx(960)
    found = list_demand(sums)
    assert all(one.requests == pytest.approx(60 * rate, rel=1e-4) for one in found if one.requests is not None)
    assert sum(one.requests is not None for one in found) >= 15


def test_tokens_per_request_use_recent_requests() -> None:
    def long(start: float, count: float = 60.0) -> Window:
        return window(start, start + 60, requests_finished=count, generation_tokens=100 * count, **{NET_CHANGE: 0.0})

    def last_tokens(*several: Window) -> float | None:
        return list_demand(minutes(*several))[-1].generation_tokens

    early, few = ([long(START + 60 * i, count) for i in range(5)] for count in (60.0, 5.0))
    late = [busy(START + 300 + 60 * i, START + 360 + 60 * i) for i in range(14)]
    queued = busy(START + 300 + 60 * 14, START + 360 + 60 * 14, change=30.0)
    assert last_tokens(*early, *late, queued) == pytest.approx(900.0)
    sooner = busy(START + 300, START + 360, change=6.0)
    # Of 60 + 60 requests with 6600 tokens: 55 each. Of 25 + 60 requests with 3100 tokens.
    assert last_tokens(*early, sooner) == pytest.approx(600 + 6 * 55)
    assert last_tokens(*few, sooner) == pytest.approx(600 + 6 * 3100 / 85)


def test_different_minutes_do_not_add() -> None:
    with pytest.raises(ValueError, match="one and the same minute"):
        arrivals.add((minute_from_window(busy(START, START + 60)), minute_from_window(busy(START + 60, START + 120))))
    with pytest.raises(ValueError, match="one and the same minute"):
        arrivals.add(())


def test_replica_sum_keeps_minutes() -> None:
    replicas = [busy(START + 15, START + 75)] * 60
    each, added = minutes(*replicas), minutes(windows.sum_windows(replicas))
    assert [one.start for one in added] == [one.start for one in each] == [START, START + 60]
    for single, whole in zip(each, added, strict=True):
        assert (whole.first, whole.last) == (single.first, single.last)
        assert [getattr(whole, name) for name in ADDED] == pytest.approx([getattr(single, name) for name in ADDED])
    one = MinuteSums(start=0.0, first=1.0, last=2.0, **{name: float(i) for i, name in enumerate(ADDED)})
    both = arrivals.add((one, replace(one, first=0.5, last=1.5)))
    assert (both.first, both.last) == (0.5, 2.0)
    assert [getattr(both, name) for name in ADDED] == [2.0 * i for i in range(len(ADDED))]


def test_work_counts_tokens_not_cached_prompts() -> None:
    lengths = CapacityLengths(prompt_tokens=length(1000), generation_tokens=length(100), prefix_hit_ratio=0.5)
    known = MinuteDemand(
        start=START,
        requests=60.0,
        prompt_tokens=120_000.0,
        generation_tokens=12_000.0,
        waiting=None,
        covered_seconds=60.0,
        expected_seconds=60.0,
        computed=0.5,
    )
    assert known.work(lengths) == pytest.approx(120.0)
    # Nothing was cached: the prompts are four times the work, the outputs twice.
    assert replace(known, computed=1.0).work(lengths) == pytest.approx(180.0)
    assert replace(known, prompt_tokens=None).work(lengths) == pytest.approx(90.0)
    assert replace(known, prompt_tokens=None, generation_tokens=None).work(lengths) == 60.0
    assert known.work(CapacityLengths()) == 60.0
    assert replace(known, requests=None).work(lengths) is None


SHORT, LONG = (80, 44), (314, 160)
"""Mean prompt and output tokens of a benchmark, and of production from a minute on."""


def length(mean: int) -> MeanTokens:
    return MeanTokens(low=mean, high=mean)


SIZED = CapacityLengths(prompt_tokens=length(SHORT[0]), generation_tokens=length(SHORT[1]))


def overloaded(minutes_before: int, minutes_after: int, counted_at_end: bool = False) -> list[Window]:
    """Pages of a replica with 32 places at which 4 requests a second arrive, first SHORT ones and then LONG ones.

    A short request takes 3 s, a long one 11 s, so that 2.9 of these finish a second.
    """
    waiting: list[tuple[int, int, int]] = []
    running: list[tuple[int, int, int, int]] = []
    found = []
    for step in range(4 * (minutes_before + minutes_after)):
        counters = dict.fromkeys(("requests_finished", "prompt_tokens", "generation_tokens", NET_CHANGE), 0.0)
        queued, begun = 0, 0
        for _ in range(15):
            size = (*SHORT, 3) if step < 4 * minutes_before else (*LONG, 11)
            waiting += [size] * 4
            counters[NET_CHANGE] += 4
            while waiting and len(running) < 32:
                prompt, output, seconds = waiting.pop(0)
                running.append((prompt, output, seconds, seconds))
                begun += 1
                counters["prompt_tokens"] += 0 if counted_at_end else prompt
            counters["generation_tokens"] += sum(output / seconds for _, output, seconds, _ in running)
            running = [(*one[:3], one[3] - 1) for one in running]
            ended = [one for one in running if one[3] == 0]
            running = [one for one in running if one[3] > 0]
            counters["prompt_tokens"] += sum(prompt for prompt, *_ in ended) if counted_at_end else 0
            counters["requests_finished"] += len(ended)
            counters[NET_CHANGE] -= len(ended)
            queued += len(waiting)
        seen = window(START + 15 * step, START + 15 * step + 15, **counters)
        first_tokens = Histogram(edges=(math.inf,), counts=(float(begun),), total=None)
        gauge = GaugeSum(integral=float(queued), seconds=15.0, minimum=0.0, maximum=float(queued), samples=1.0)
        found.append(replace(seen, histograms={"ttft_seconds": (first_tokens,)}, gauges={"requests_waiting": gauge}))
    return found


@pytest.mark.parametrize(("counted_at_end", "tolerance"), [(False, 0.1), (True, 0.2)])
def test_work_follows_a_step_of_lengths(counted_at_end: bool, tolerance: float) -> None:
    """Of the 15 minutes before, short requests would hide it for a quarter of an hour."""
    several = overloaded(15, 6, counted_at_end)
    work = [(one.work(SIZED) or 0.0) / 60 for one in list_demand(minutes(*several))]
    expected = 4 * (LONG[0] / SHORT[0] + LONG[1] / SHORT[1]) / 2
    assert work[5:15] == [pytest.approx(4.0, rel=0.02)] * 10
    assert work[15] == pytest.approx(expected, rel=0.3)
    assert work[16:] == [pytest.approx(expected, rel=tolerance)] * 5
    # The rule counts the same minutes of the same pages.
    late = windows.sum_windows(several[4 * 16 :])
    assert 4 * work_per_request(late, SIZED)[1] == pytest.approx(math.fsum(work[16:]) / 5, rel=0.05)


@pytest.mark.parametrize("rate", [0.5, 4.0])
def test_scattered_lengths_change_work_by_chance(rate: float) -> None:
    """Requests of exponential lengths, as many as before: the mean of an hour is true to three standard errors."""
    drawn = random.Random(3)
    count = round(60 * rate)
    several = []
    for place in range(60):
        tokens = {
            name: sum(drawn.expovariate(1 / mean) for _ in range(count))
            for name, mean in (("prompt_tokens", SHORT[0]), ("generation_tokens", SHORT[1]))
        }
        begin = START + 60 * place
        several.append(
            window(begin, begin + 60, requests_finished=count, **tokens, **{NET_CHANGE: drawn.choice((-4, 4))})
        )
    work = [(one.work(SIZED) or 0.0) / (one.requests or 1.0) for one in list_demand(minutes(*several))]
    assert math.fsum(work) / 60 == pytest.approx(1.0, abs=3 / math.sqrt(60 * count))


@given(
    past=st.lists(st.tuples(st.integers(0, 300), st.floats(0, 400)), max_size=20),
    now=st.tuples(st.integers(0, 300), st.floats(0, 1e5), st.floats(0, 1e5), st.integers(-300, 300)),
    more=st.tuples(st.integers(0, 300), st.floats(0, 1e5), st.floats(0, 1e5)),
)
def test_work_never_falls_with_more_tokens(
    past: list[tuple[int, float]], now: tuple[int, float, float, int], more: tuple[int, float, float]
) -> None:
    def made(place: int, finished: int, prompts: float, outputs: float, change: int) -> Window:
        begin = START + 60 * place
        tokens = {"prompt_tokens": prompts, "generation_tokens": outputs}
        return window(begin, begin + 60, requests_finished=finished, **tokens, **{NET_CHANGE: change})

    before = [made(place, count, count * each, count * each, 0) for place, (count, each) in enumerate(past)]
    finished, prompts, outputs, change = now
    queued, longer, outputs_more = more
    lower, higher = (
        list_demand(minutes(*before, made(len(past), *one)))[-1].work(SIZED)
        for one in (
            (finished, prompts, outputs, change),
            (finished, prompts + longer, outputs + outputs_more, change + queued),
        )
    )
    assert higher >= lower * (1 - 1e-9) - 1e-6
