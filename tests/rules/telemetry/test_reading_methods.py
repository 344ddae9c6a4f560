"""Times per token and to the first one where the engine does not print them as they are asked for."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import permutations

import pytest
import recorded
from making import EDGES, START, gauge, histogram, window

from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.replicas.track import ScrapeTrack, record_success
from rules.telemetry import windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window


def value(name: str, of: Window) -> SignalValue:
    return read(BY_NAME[name], of)


def queued(**more: tuple[Histogram, ...]) -> Window:
    """100 requests: queued for less than 0.1 s but for four of 0.2 s, and whole in 0.7 s but for two of 3 s."""
    parts = {
        "queue_seconds": (histogram([0.05] * 96 + [0.2] * 4),),
        "e2e_seconds": (histogram([0.7] * 98 + [3.0] * 2),),
    }
    return window(START, histograms={**parts, **more})


def test_a_first_token_comes_after_the_queue_and_before_the_end() -> None:
    assert value("ttft_p50_seconds", queued()) == Reading(value=None, low=0.0, high=1.0, n=100)
    assert value("ttft_p99_seconds", queued()) == Reading(value=None, low=0.1, high=5.0, n=100)


def test_a_first_token_that_the_engine_times_itself_is_not_bracketed() -> None:
    found = value("ttft_p50_seconds", queued(ttft_seconds=(histogram([0.7] * 100),)))
    assert isinstance(found, Reading)
    assert (found.low, found.high) == (0.5, 1.0)
    assert found.value is not None


def test_nothing_is_bracketed_that_is_missing_for_a_while_only() -> None:
    assert value("ttft_p99_seconds", replace(queued(), gaps={"ttft_seconds": Gap.RESTARTED})) == Missing(
        gap=Gap.RESTARTED
    )


@pytest.mark.parametrize("family", ["queue_seconds", "e2e_seconds"])
def test_one_side_alone_brackets_nothing(family: str) -> None:
    poorer = replace(queued(), histograms={k: v for k, v in queued().histograms.items() if k != family})
    assert value("ttft_p99_seconds", poorer) == Missing(gap=Gap.NOT_EXPOSED)
    assert value("itl_p99_seconds", queued()) == Missing(gap=Gap.NOT_EXPOSED)


def test_the_time_per_token_is_below_that_of_the_whole_inference() -> None:
    whole = window(START, histograms={"whole_per_token_seconds": (histogram([0.2] * 100),)})
    assert value("tpot_p99_seconds", whole) == Reading(value=None, low=0.0, high=0.5, n=100)


def test_without_decode_times_whole_and_first_token_tell_the_mean_and_no_bounds() -> None:
    lengths = (histogram([3.0] * 100),)
    first = (histogram([0.2] * 100),)
    found = value("tpot_mean_seconds", queued(ttft_seconds=first, generation_tokens_per_request=lengths))
    # (0.98 x 0.7 + 0.02 x 3 - 0.2) / (3 - 1)
    assert found == Reading(value=pytest.approx(0.273), low=None, high=None, n=100)


def test_whole_and_first_token_of_nobody_tell_nothing() -> None:
    nobody = (Histogram(edges=EDGES, counts=(0.0,) * 5, total=0.0),)
    found = value(
        "tpot_mean_seconds",
        queued(ttft_seconds=nobody, generation_tokens_per_request=(histogram([3.0]),)),
    )
    assert found == Missing(gap=Gap.NO_TRAFFIC)


def test_an_engine_that_sums_its_generating_time_tells_the_mean_by_its_tokens() -> None:
    found = value("tpot_mean_seconds", window(START, counters={"generation_seconds": 30.0, "generation_tokens": 600.0}))
    assert found == Reading(value=0.05, low=0.05, high=0.05, n=600)


def test_arrivals_that_are_counted_are_not_reckoned() -> None:
    counters = {"requests_arrived": 90.0, "requests_finished": 60.0, "in_system_change": 0.0}
    assert value("arrival_rps", window(START, 60.0, counters=counters)) == Reading(value=1.5, low=1.5, high=1.5, n=90)


def test_an_engine_that_prints_its_hit_ratio_is_read_where_it_counts_nothing() -> None:
    printed = window(START, gauges={"prefix_hit_gauge": gauge(0.4, low=0.3, high=0.5)})
    assert value("prefix_hit_ratio", printed) == Reading(value=0.4, low=0.3, high=0.5, n=4)
    counted = replace(printed, counters={"prefix_hit_tokens": 10.0, "prefix_queried_tokens": 100.0})
    assert value("prefix_hit_ratio", counted) == Reading(value=0.1, low=0.1, high=0.1, n=100)


def test_speculation_printed_as_averages_is_solved_for_acceptance() -> None:
    # 0.8 + 0.8^2 + 0.8^3 = 1.952 accepted of three positions
    printed = window(START, gauges={"spec_accept_length": gauge(2.952), "spec_steps": gauge(3.0)})
    found = value("speculative_acceptance", printed)
    assert found == Reading(value=pytest.approx(0.8), low=None, high=None, n=4)
    tokens = value("tokens_per_round", printed)
    assert isinstance(tokens, Reading)
    assert tokens.value == 2.952


def test_an_average_of_no_speculation_is_no_traffic() -> None:
    off = window(START, gauges={"spec_accept_length": gauge(0.0, low=0.0, high=0.0)})
    for name in ("tokens_per_round", "speculative_acceptance"):
        assert value(name, off) == Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted")


def test_without_the_number_of_positions_acceptance_does_not_follow() -> None:
    found = value("speculative_acceptance", window(START, gauges={"spec_accept_length": gauge(2.952)}))
    assert isinstance(found, Missing)
    assert "not of how many drafted" in found.text


def test_a_start_that_the_engine_timed_itself_is_a_lower_bound() -> None:
    told = window(START, gauges={"engine_startup_seconds": gauge(50.0)})
    assert value("cold_start_seconds", told) == Reading(value=None, low=50.0, high=None, n=4)


TIMES = (0.5, 1.0, 2.0, 4.0, math.inf)
LENGTHS = (1.0, 5.0, 20.0, 100.0, math.inf)
COARSE = (100.0, 300.0, math.inf)
"""The first edges of SGLang's histogram of lengths."""


def ended(times: list[float], tokens: list[int], edges: tuple[float, ...] = LENGTHS) -> Window:
    return window(
        START,
        histograms={
            "e2e_seconds": (histogram(times, TIMES),),
            "generation_tokens_per_request": (histogram(tokens, edges),),
        },
    )


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[math.ceil(round(q * len(values), 6)) - 1]


def test_whole_times_and_lengths_bound_the_time_per_token() -> None:
    # 98 requests in at most 2 s with at least 21 tokens, two in at most 4 s with 6 or more.
    found = value("tpot_p50_seconds", ended([1.5] * 98 + [3.0] * 2, [50] * 98 + [10] * 2))
    assert found == Reading(value=None, low=0.0, high=2.0 / 20, n=100)
    # Any two may be the short ones: one of 100 may lie beyond, so a length of 20 steps is not sure.
    found = value("tpot_p99_seconds", ended([1.5] * 98 + [3.0] * 2, [50] * 98 + [10] * 2))
    assert found == Reading(value=None, low=0.0, high=4.0 / 5, n=100)


@pytest.mark.parametrize("seed", range(40))
def test_no_way_to_pair_times_and_lengths_is_above_the_bound(seed: int) -> None:
    """Every pairing of six requests, with times at the upper edges and lengths as short as their bucket allows."""
    chance = random.Random(seed)
    edges = chance.choice((LENGTHS, COARSE))
    times = [chance.choice(TIMES[:-1]) for _ in range(6)]
    tokens = [chance.choice((1, 2, 6, 21, 101, 301)) for _ in range(6)]
    for q, name in ((0.5, "tpot_p50_seconds"), (0.99, "tpot_p99_seconds")):
        found = value(name, ended(times, tokens, edges))
        pairings = [
            [time / (length - 1) for time, length in zip(order, tokens, strict=True) if length > 1]
            for order in permutations(times)
        ]
        if not pairings[0]:
            continue
        assert isinstance(found, Reading)
        assert found.high is not None
        assert max(nearest_rank(each, q) for each in pairings) <= found.high + 1e-12


def test_the_bound_is_reached_by_the_worst_pairing() -> None:
    times, tokens = [0.5, 1.0, 2.0, 4.0], [2, 6, 21, 101]
    found = value("tpot_p50_seconds", ended(times, tokens))
    assert isinstance(found, Reading)
    worst = max(
        nearest_rank([time / (length - 1) for time, length in zip(order, tokens, strict=True)], 0.5)
        for order in permutations(times)
    )
    assert found.high == worst


def test_requests_of_one_token_have_no_time_per_token() -> None:
    found = value("tpot_p99_seconds", ended([0.4] * 10 + [1.5] * 90, [1] * 10 + [50] * 90))
    assert found == Reading(value=None, low=0.0, high=2.0 / 20, n=90)
    assert value("tpot_p99_seconds", ended([0.4] * 3, [1] * 3)) == Missing(
        gap=Gap.NO_TRAFFIC, text="no request generated a second token"
    )


def test_where_one_token_and_more_share_a_bucket_the_worse_case_counts() -> None:
    # The 50 short ones may all be slower than the median, which is then the slowest of the long ones.
    found = value("tpot_p50_seconds", ended([0.4] * 75 + [3.0] * 25, [50] * 50 + [200] * 50, COARSE))
    assert found == Reading(value=None, low=0.0, high=4.0 / 100, n=100)
    # Or ten of them are of one token: the median is then of the five others, and these may be the slow ones.
    found = value("tpot_p50_seconds", ended([0.4] * 10 + [3.0] * 5, [50] * 15, COARSE))
    assert found == Reading(value=None, low=0.0, high=4.0, n=15)


def test_a_request_that_one_histogram_lacks_counts_as_the_worst() -> None:
    unmeasured = value("tpot_p99_seconds", ended([1.5] * 99, [50] * 100))
    assert unmeasured == Reading(value=None, low=0.0, high=2.0 / 20, n=100)
    assert value("tpot_p99_seconds", ended([1.5] * 98, [50] * 100)) == Reading(value=None, low=0.0, high=None, n=100)
    assert value("tpot_p99_seconds", ended([1.5] * 100, [50] * 98)) == Reading(value=None, low=0.0, high=2.0, n=100)


def test_nobody_and_nothing_printed_bound_no_time_per_token() -> None:
    assert value("tpot_p99_seconds", ended([], [])) == Missing(gap=Gap.NO_TRAFFIC)
    whole = ended([1.5], [50])
    for family in whole.histograms:
        poorer = replace(whole, histograms={k: v for k, v in whole.histograms.items() if k != family})
        assert value("tpot_p99_seconds", poorer) == Missing(gap=Gap.NOT_EXPOSED)
    restarted = replace(whole, gaps={"tpot_seconds": Gap.RESTARTED})
    assert value("tpot_p99_seconds", restarted) == Missing(gap=Gap.RESTARTED)


def test_the_families_of_the_signal_are_all_that_the_bound_needs() -> None:
    whole = ended([1.5] * 100, [50] * 100)
    signal = BY_NAME["tpot_p99_seconds"]
    assert read(signal, windows.select_families(whole, families_of(signal))) == read(signal, whole)


def test_a_histogram_of_the_time_per_token_is_read_as_before() -> None:
    own = {**ended([1.5] * 10, [50] * 10).histograms, "tpot_seconds": (histogram([0.3] * 10),)}
    alone = window(START, histograms={"tpot_seconds": own["tpot_seconds"]})
    assert value("tpot_p99_seconds", window(START, histograms=own)) == value("tpot_p99_seconds", alone)


def recorded_windows(name: str, seconds: float) -> list[Window]:
    """The windows of the first target of a recording, added up to spans of about so many seconds."""
    recording, _ = load(recorded.folder(name))
    reader, track, spans = PageReader(recording.targets[0].engine), ScrapeTrack(), list[list[Window]]()
    for scrape in scrapes(recording, []):
        assert scrape.body is not None
        track, one = record_success(track, reader.read(scrape.body, scrape.t))
        if one is None:
            continue
        if not spans or spans[-1][-1].end - spans[-1][0].start > seconds - 1:
            spans.append([])
        spans[-1].append(one)
    return [windows.sum_windows(parts) for parts in spans]


@pytest.mark.parametrize("step", [5, 15, 60, 200])
def test_the_time_per_token_of_recorded_clients_lies_within_the_bound(step: int) -> None:
    """SGLang 0.5.23 as the releases before it print: without its histogram of the time per token."""
    truth = [
        (float(row["t_start"]) + float(row["e2e"]), (float(row["e2e"]) - float(row["ttft"])) / (int(tokens) - 1))
        for row in recorded.requests("sglang")
        if not row["error"] and int(tokens := row["completion_tokens"]) > 1
    ]
    compared, tightest = 0, math.inf
    for one in recorded_windows("sglang", step):
        poorer = replace(one, histograms={f: parts for f, parts in one.histograms.items() if f != "tpot_seconds"})
        seen = [tpot for end, tpot in truth if one.start < end <= one.end]
        for q, name in ((0.5, "tpot_p50_seconds"), (0.99, "tpot_p99_seconds")) if seen else ():
            found, measured = value(name, replace(poorer, gaps={})), nearest_rank(seen, q)
            assert isinstance(found, Reading)
            assert found.low is not None
            assert found.high is not None
            assert found.low <= measured <= found.high
            compared, tightest = compared + 1, min(tightest, found.high / measured)
    assert compared >= 2
    # 0.04 s where the clients measured 0.0075 s: its histogram of lengths tells nothing below 100 tokens.
    assert tightest < 6
