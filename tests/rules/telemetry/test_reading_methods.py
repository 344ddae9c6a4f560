"""Times per token and to the first one where the engine does not print them as they are asked for."""

from dataclasses import replace

import pytest
from making import EDGES, START, gauge, histogram, window

from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import read
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


def test_ttft_lies_between_queue_and_end() -> None:
    assert value("ttft_p50_seconds", queued()) == Reading(value=None, low=0.0, high=1.0, n=100)
    assert value("ttft_p99_seconds", queued()) == Reading(value=None, low=0.1, high=5.0, n=100)


def test_own_ttft_is_not_bracketed() -> None:
    found = value("ttft_p50_seconds", queued(ttft_seconds=(histogram([0.7] * 100),)))
    assert (found.low, found.high) == (0.5, 1.0)
    assert found.value is not None


def test_passing_gap_is_not_bracketed() -> None:
    assert value("ttft_p99_seconds", replace(queued(), gaps={"ttft_seconds": Gap.RESTARTED})) == Missing(
        gap=Gap.RESTARTED
    )


@pytest.mark.parametrize("family", ["queue_seconds", "e2e_seconds"])
def test_one_side_alone_brackets_nothing(family: str) -> None:
    poorer = replace(queued(), histograms={k: v for k, v in queued().histograms.items() if k != family})
    assert value("ttft_p99_seconds", poorer) == Missing(gap=Gap.NOT_EXPOSED)
    assert value("itl_p99_seconds", queued()) == Missing(gap=Gap.NOT_EXPOSED)


def test_whole_inference_bounds_tpot() -> None:
    whole = window(START, histograms={"whole_per_token_seconds": (histogram([0.2] * 100),)})
    assert value("tpot_p99_seconds", whole) == Reading(value=None, low=0.0, high=0.5, n=100)


def test_mean_tpot_without_decode_times() -> None:
    lengths = (histogram([3.0] * 100),)
    first = (histogram([0.2] * 100),)
    found = value("tpot_mean_seconds", queued(ttft_seconds=first, generation_tokens_per_request=lengths))
    # (0.98 x 0.7 + 0.02 x 3 - 0.2) / (3 - 1)
    assert found == Reading(value=pytest.approx(0.273), low=None, high=None, n=100)


def test_mean_tpot_of_nobody_is_missing() -> None:
    nobody = (Histogram(edges=EDGES, counts=(0.0,) * 5, total=0.0),)
    found = value(
        "tpot_mean_seconds",
        queued(ttft_seconds=nobody, generation_tokens_per_request=(histogram([3.0]),)),
    )
    assert found == Missing(gap=Gap.NO_TRAFFIC)


def test_summed_times_and_counted_arrivals() -> None:
    found = value("tpot_mean_seconds", window(START, counters={"generation_seconds": 30.0, "generation_tokens": 600.0}))
    assert found == Reading(value=0.05, low=0.05, high=0.05, n=600)
    counters = {"requests_arrived": 90.0, "requests_finished": 60.0, "in_system_change": 0.0}
    assert value("arrival_rps", window(START, 60.0, counters=counters)) == Reading(value=1.5, low=1.5, high=1.5, n=90)


def test_printed_hit_ratio_without_counters() -> None:
    printed = window(START, gauges={"prefix_hit_gauge": gauge(0.4, low=0.3, high=0.5)})
    assert value("prefix_hit_ratio", printed) == Reading(value=0.4, low=0.3, high=0.5, n=4)
    counted = replace(printed, counters={"prefix_hit_tokens": 10.0, "prefix_queried_tokens": 100.0})
    assert value("prefix_hit_ratio", counted) == Reading(value=0.1, low=0.1, high=0.1, n=100)


def test_averages_solve_for_acceptance() -> None:
    # 0.8 + 0.8^2 + 0.8^3 = 1.952 accepted of three positions
    printed = window(START, gauges={"spec_accept_length": gauge(2.952), "spec_steps": gauge(3.0)})
    found = value("speculative_acceptance", printed)
    assert found == Reading(value=pytest.approx(0.8), low=None, high=None, n=4)
    tokens = value("tokens_per_round", printed)
    assert tokens.value == 2.952


def test_averages_without_drafts_or_positions() -> None:
    off = window(START, gauges={"spec_accept_length": gauge(0.0, low=0.0, high=0.0)})
    for name in ("tokens_per_round", "speculative_acceptance"):
        assert value(name, off) == Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted")
    found = value("speculative_acceptance", window(START, gauges={"spec_accept_length": gauge(2.952)}))
    assert isinstance(found, Missing)
    assert "not of how many drafted" in found.text


def test_timed_start_is_a_lower_bound() -> None:
    told = window(START, gauges={"engine_startup_seconds": gauge(50.0)})
    assert value("cold_start_seconds", told) == Reading(value=None, low=50.0, high=None, n=4)
