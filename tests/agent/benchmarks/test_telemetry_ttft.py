"""The client's TTFT against the engine's own histogram of the same run."""

from __future__ import annotations

import math
import random

import pytest
from making import START, histogram, window
from telemetry_samples import run

from agent.benchmarks.points import BenchmarkMeasurement, Loop
from agent.benchmarks.telemetry_merge import RunTelemetry, disagreements, extract_fields
from rules.plan.schema import Point
from rules.telemetry.histograms import Histogram

EDGES = (0.1, 0.2, 0.4, 1.0, 10.0, math.inf)


def measured(
    p50: float | None, p99: float | None, requests: int | None = 100, loop: Loop = "open"
) -> BenchmarkMeasurement:
    """A run with this TTFT (seconds); a closed loop has ten clients."""
    point = Point(completed_rps=1.0, requests=requests, concurrency=10, ttft_p50_seconds=p50, ttft_p99_seconds=p99)  # type: ignore[call-arg]
    return BenchmarkMeasurement(source="bench.json", tool="test", loop=loop, point=point)


def engine(*seconds: float) -> tuple[Histogram, ...]:
    return (histogram(seconds, EDGES),)


CALM = engine(*[0.3] * 100)


def told(client: BenchmarkMeasurement, parts: tuple[Histogram, ...] = CALM, edges: float = 0.0) -> tuple[str, ...]:
    return disagreements(client, parts, edges)


def test_a_client_that_waits_for_a_parser_is_told_in_one_sentence() -> None:
    (remark,) = told(measured(13.0, 14.0))
    assert remark == (
        "TTFT P50 is 13 s at the client and 200 to 400 ms in the engine, "
        "TTFT P99 is 14 s at the client and 200 to 400 ms in the engine: "
        "likely --stream-interval, a reasoning parser, or time in the client, the front end or the network "
        "(docs/what-the-engine-cannot-see.md)"
    )


@pytest.mark.parametrize(("client", "agrees"), [(0.196, True), (0.195, False), (0.459, True), (0.461, False)])
def test_a_client_may_count_a_tenth_and_20_ms_more_and_a_fiftieth_less(client: float, agrees: bool) -> None:
    assert (told(measured(client, None)) == ()) is agrees


def test_a_client_that_is_earlier_counted_something_else() -> None:
    (remark,) = told(measured(0.01, 0.3))
    assert remark.startswith("TTFT P50 is 10 ms at the client and 200 to 400 ms in the engine: likely a first chunk")


def test_nothing_is_said_without_a_quantile_a_count_or_a_histogram() -> None:
    assert told(measured(None, None)) == ()
    assert told(measured(13.0, 14.0, requests=None)) == ()
    assert told(measured(13.0, 14.0), engine()) == ()


def test_an_open_last_bucket_bounds_no_client_from_above() -> None:
    assert told(measured(500.0, 500.0), engine(*[20.0] * 100)) == ()
    (remark,) = told(measured(1.0, 1.0), engine(*[20.0] * 100))
    assert "TTFT P50 is 1 s at the client and at least 10 s in the engine" in remark


def test_requests_that_only_one_side_counted_widen_the_bounds() -> None:
    # The slowest is the 100th of 100; P99 lies between the 99th and it.
    parts = engine(*[0.3] * 98, 5.0, 5.0)
    assert told(measured(0.3, 9.0), parts) == ()
    parts = engine(*[0.3] * 96, *[5.0] * 4)
    assert told(measured(0.3, 0.35), parts) != ()
    assert told(measured(0.3, 0.35), parts, edges=3.0) == ()
    assert told(measured(0.3, 0.35, requests=97), parts) == ()
    # The ten clients of a closed loop start with a burst, which some tools leave out.
    assert told(measured(0.3, 0.35, loop="closed"), parts) == ()


@pytest.mark.parametrize("seed", range(20))
def test_the_quantiles_of_the_same_requests_never_disagree(seed: int) -> None:
    """By interpolation as numpy does it and by nearest rank, with some requests in the engine alone."""
    chance = random.Random(seed)
    own = sorted(chance.lognormvariate(-1.5, 1.0) for _ in range(chance.randint(5, 300)))
    others = [chance.lognormvariate(-1.5, 1.0) for _ in range(chance.randint(0, 5))]

    def between(q: float) -> float:
        place = q * (len(own) - 1)
        below, above = own[math.floor(place)], own[math.ceil(place)]
        return below + (above - below) * (place - math.floor(place))

    def ranked(q: float) -> float:
        return own[math.ceil(round(q * len(own), 6)) - 1]

    for quantile in (between, ranked):
        client = measured(quantile(0.5), quantile(0.99), requests=len(own))
        assert told(client, engine(*own, *others)) == ()


def test_a_histogram_that_was_not_seen_in_the_whole_run_tells_nothing() -> None:
    client = measured(13.0, 14.0)
    whole = window(START, counters={"requests_finished": 100.0}, histograms={"ttft_seconds": CALM})
    assert any(
        text.startswith("TTFT") for text in extract_fields(client, RunTelemetry(window=whole, engine=None)).remarks
    )
    for poorer in (
        window(START, counters={"requests_finished": 100.0}),
        window(
            START,
            counters={"requests_finished": 100.0},
            histograms={"ttft_seconds": CALM},
            short_seconds={"ttft_seconds": 30.0},
        ),
    ):
        remarks = extract_fields(client, RunTelemetry(window=poorer, engine=None)).remarks
        assert not any(text.startswith("TTFT") for text in remarks)


def test_a_run_without_a_ttft_of_its_own_is_not_compared() -> None:
    assert told(run(requests=100)) == ()
