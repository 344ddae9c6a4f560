"""Four public sweeps of one H100 (inference-perf, vLLM 0.11, Llama-3-8B): what their curves say, and how they are judged.

The files lie beside the checkout, in ../shared, and are not ours to copy: without them these tests are skipped.
"""

import math
from functools import cache
from itertools import pairwise

import pytest
from judging_samples import each, minute, seen, verdict
from making import plan_document
from paths import SHARED
from result_files import read_results

from agent.benchmarks.curves import ImportedCurve, curve_of
from rules.confidence import Certainty
from rules.plan.curve import CERTAIN_REQUESTS, Curve
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import Point, TierPlan, parse_plan
from rules.verdicts.verdict import Status

SWEEPS = SHARED / "bench" / "inference-perf"
PLAIN, CHUNKED, EAGLE, QUANTIZED = "vllm", "vllm+chunking_and_prefix_caching", "vllm+eagle", "vllm+quantization"
EVERY = (PLAIN, CHUNKED, EAGLE, QUANTIZED)

pytestmark = pytest.mark.skipif(not SWEEPS.is_dir(), reason=f"the H100 sweeps are not there: {SWEEPS}")


@cache
def imported(sweep: str) -> ImportedCurve:
    files = sorted((SWEEPS / sweep / "results").glob("stage_*_lifecycle_metrics.json"))
    assert len(files) == 7
    return curve_of([one for file in files for one in read_results(file)])


def points(sweep: str) -> tuple[Point, ...]:
    return imported(sweep).curve.points


@cache
def tier(sweep: str) -> TierPlan:
    gpu = {"product": "NVIDIA H100 80GB HBM3", "per_replica": 1}
    curve = imported(sweep).curve.model_dump()
    document = plan_document(
        "h100", model="meta-llama/Meta-Llama-3-8B", gpu=gpu, slo={"ttft_p99_seconds": 1.0}, curve=curve
    )
    return parse_plan(document).tiers["h100"]


def curve(sweep: str) -> Curve:
    found = Curve.from_plan(tier(sweep))
    assert found is not None
    return found


# Completed rps at the highest offered rates, to a request: the capacity of each sweep.
@pytest.mark.parametrize(
    ("sweep", "low", "high"), [(PLAIN, 101, 103), (CHUNKED, 170, 173), (QUANTIZED, 172, 172), (EAGLE, 67, 68)]
)
def test_overload_completes_no_more_requests(sweep: str, low: int, high: int) -> None:
    saturated = [point for point in points(sweep) if point.completed_rps < 0.97 * (point.requested_rps or 0)]
    beyond = [round(point.completed_rps) for point in saturated]
    assert len(beyond) >= 2
    assert (min(beyond), max(beyond)) == (low, high)


@pytest.mark.parametrize(("sweep", "censored"), [(PLAIN, 3), (CHUNKED, 2), (QUANTIZED, 2), (EAGLE, 2)])
def test_stages_that_the_generator_limited_are_censored(sweep: str, censored: int) -> None:
    # They are the last ones: TTFT is flat there, as the generator did not let the queue grow.
    flags = [point.censored for point in points(sweep)]
    assert flags == [False] * (7 - censored) + [True] * censored
    tails = [point.ttft_p99_seconds or 0 for point in points(sweep) if point.censored]
    assert max(tails) < 1.1 * min(tails)


@pytest.mark.parametrize(("sweep", "before"), [(PLAIN, 91.36), (CHUNKED, 167.8), (QUANTIZED, 168.2), (EAGLE, 66.92)])
def test_curve_ends_at_last_load_taken(sweep: str, before: float) -> None:
    assert curve(sweep).top_rps == before
    assert curve(sweep).place(before * 1.021, None)[1]


def bins(sweep: str) -> list[int]:
    """Bins whose ends are well measured and far enough apart to tell the interpolated value from the upper one."""
    line = curve(sweep).points
    found = [
        place
        for place, (lower, upper) in enumerate(pairwise(line), start=1)
        if (lower.requests or 0) >= CERTAIN_REQUESTS
        and (upper.ttft_p99_seconds or 0) > 1.05 * (lower.ttft_p99_seconds or math.inf)
    ]
    # The last one, below the knee, is there in every sweep.
    assert len(line) - 1 in found
    return found


def judged(sweep: str, place: int, seconds: float) -> tuple[Status, Certainty]:
    """Five minutes in the middle of a bin, of which 2 % of the requests took `seconds` to their first token."""
    line = curve(sweep)
    rps = (line.points[place - 1].completed_rps + line.points[place].completed_rps) / 2
    slow, fast = 0.02 * rps * 60, 0.98 * rps * 60
    # The buckets part just below the slow ones, so that no bound hides them.
    ttft = seen({seconds: slow, 0.001: fast}, edges=(0.01, seconds * 0.999, math.inf))
    inside = line.concurrencies[place - 1]
    context = view_of("h100", tier(sweep))
    found = verdict(
        "TtftDivergence",
        context,
        each(5, lambda n: minute(n, rps=rps, in_system=inside, histograms={"ttft_seconds": ttft})),
    )
    return found.status, found.certainty


def expected(sweep: str, place: int) -> tuple[float, float]:
    """The interpolated value in the middle of a bin and the upper point's, TTFT P99."""
    line = curve(sweep)
    rps = (line.points[place - 1].completed_rps + line.points[place].completed_rps) / 2
    found = line.expectation(place, "ttft_p99_seconds", rps)
    return found.value, found.high


@pytest.mark.parametrize("sweep", EVERY)
def test_131_percent_of_upper_point_is_certain(sweep: str) -> None:
    for place in bins(sweep):
        _, upper = expected(sweep, place)
        assert judged(sweep, place, 1.31 * upper) == (Status.WARNING, Certainty.CERTAIN)


@pytest.mark.parametrize("sweep", EVERY)
def test_131_percent_of_interpolation_is_likely(sweep: str) -> None:
    for place in bins(sweep):
        interpolated, upper = expected(sweep, place)
        assert interpolated < upper
        assert judged(sweep, place, 1.31 * interpolated) == (Status.WARNING, Certainty.LIKELY)
        assert judged(sweep, place, 1.29 * interpolated)[0] is Status.OK


def test_bin_of_60_requests_is_never_certain() -> None:
    # The first stage has 60 requests; 3.31 x the upper point and still only likely.
    assert points(PLAIN)[0].requests == 60
    assert judged(PLAIN, 1, 3.31 * expected(PLAIN, 1)[1]) == (Status.WARNING, Certainty.LIKELY)
