"""Four public sweeps of one H100 (inference-perf, vLLM 0.11, Llama-3-8B): what their curves say.

The files lie beside the checkout, in ../shared, and are not ours to copy: without them these tests are skipped.
"""

from functools import cache

import pytest
from making import plan_document
from paths import SHARED
from result_files import read_results

from agent.benchmarks.curves import ImportedCurve, curve_of
from rules.plan.curve import Curve
from rules.plan.schema import Point, parse_plan

SWEEPS = SHARED / "bench" / "inference-perf"
PLAIN, CHUNKED, EAGLE, QUANTIZED = "vllm", "vllm+chunking_and_prefix_caching", "vllm+eagle", "vllm+quantization"

pytestmark = pytest.mark.skipif(not SWEEPS.is_dir(), reason=f"the H100 sweeps are not there: {SWEEPS}")


@cache
def imported(sweep: str) -> ImportedCurve:
    files = sorted((SWEEPS / sweep / "results").glob("stage_*_lifecycle_metrics.json"))
    assert len(files) == 7
    return curve_of([one for file in files for one in read_results(file)])


def points(sweep: str) -> tuple[Point, ...]:
    return imported(sweep).curve.points


def curve(sweep: str) -> Curve:
    gpu = {"product": "NVIDIA H100 80GB HBM3", "per_replica": 1}
    measured = imported(sweep).curve.model_dump()
    document = plan_document("h100", gpu=gpu, slo={"ttft_p99_seconds": 1.0}, curve=measured)
    found = Curve.from_plan(parse_plan(document).tiers["h100"])
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
