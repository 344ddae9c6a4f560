"""Calibration against simulated production whose truth is known: bounds hold it, estimates are near it."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean

import pytest
import recorded
from golden_text import check_golden
from making import histogram, plan_document, window

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from exporters.documents.calibration import (
    TIME,
    Calibration,
    CalibrationFile,
    Measure,
    calibrate,
    calibration_text,
    compare_calibrations,
)
from rules.confidence import nearest_rank
from rules.plan.load_bins import BinnedWindow, bin_window, build_tier_context, sum_by_bin
from rules.plan.schema import Point, parse_plan
from rules.telemetry.histograms import Histogram

TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf)
TPOT_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, math.inf)
E2E_EDGES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, math.inf)
"""Edges of vLLM."""

Z99 = NormalDist().inv_cdf(0.99)
LOADS = (1.0, 2.0, 4.0)


def point(rps: float) -> dict[str, float]:
    return {
        "completed_rps": rps,
        "concurrency": rps * (4 + rps),
        "requests": 3000,
        "ttft_p50_seconds": 0.12 * rps,
        "ttft_p99_seconds": 0.12 * rps * 3,
        "tpot_p50_seconds": 0.016 * rps,
        "tpot_p99_seconds": 0.016 * rps * 2,
    }


TIER = plan_document(
    gpu={"product": "H100", "per_replica": 2},
    slo={"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.2},
    workload={"prompt_tokens": {"mean": 1000.0}, "generation_tokens": {"mean": 200.0}},
    curve={"points": [point(rps) for rps in LOADS]},
)
CONTEXT = build_tier_context("chat", parse_plan(TIER).tiers["t"])
CURVE = CONTEXT.curve


def simulate(
    factor: float, requests: int, seed: int, prompt_tokens: float = 1000.0, points: Sequence[Point] = CURVE.points
) -> tuple[BinnedWindow, ...]:
    """Return one bin for each point of a curve, at its load, with every latency `factor` x the curve's."""
    rng, bins = random.Random(seed), []

    def draw(edges: tuple[float, ...], p50: float, p99: float | None) -> tuple[Histogram]:
        sigma = math.log(p99 / p50) / Z99 if p99 else 0.5
        return (histogram([factor * p50 * math.exp(rng.gauss(0, sigma)) for _ in range(requests)], edges),)

    for place, planned in enumerate(points):
        rps, tokens = planned.completed_rps, {"prompt_tokens": prompt_tokens, "generation_tokens": 200.0}
        # Mean of a log-normal distribution: median x exp(sigma^2 / 2).
        median = planned.concurrency / rps / math.exp(0.5**2 / 2)
        seen = window(
            0.0,
            requests / rps,
            counters={"requests_finished": float(requests)} | {key: n * requests for key, n in tokens.items()},
            histograms={
                "ttft_seconds": draw(TTFT_EDGES, planned.ttft_p50_seconds, planned.ttft_p99_seconds),
                "tpot_seconds": draw(TPOT_EDGES, planned.tpot_p50_seconds, planned.tpot_p99_seconds),
                "e2e_seconds": draw(E2E_EDGES, median, None),
            },
        )
        bins.append(BinnedWindow(replica=None, window=seen, rps=rps, in_system=None, bin=place))
    return tuple(bins)


def calibrated(factor: float, requests: int, seed: int = 1, **lengths: float) -> Calibration:
    return calibrate(CONTEXT, "vllm 0.33.0", "fp8", simulate(factor, requests, seed, **lengths))


def measures_of(made: Calibration) -> list[Measure]:
    return [measure for row in made.bins for measure in row.measures if measure.metric in CLIENT_TIMES]


@pytest.mark.parametrize("requests", [300, 3000])
def test_bounds_hold_the_truth(requests: int) -> None:
    """Over 100 seeds at least 95 % of each metric's bounds hold the true factor."""
    seeds = 100 if requests == 300 else 20
    held: dict[str, list[bool]] = {}
    for seed in range(seeds):
        for measure in measures_of(calibrated(1.1, requests, seed)):
            low, high = measure.factor.low or 0.0, measure.factor.high or math.inf
            held.setdefault(measure.metric, []).append(low <= 1.1 <= high)
    assert len(held) == 5
    for metric, each in held.items():
        # Chance alone leaves 95 % of so many trials a little short.
        allowance = 3 * math.sqrt(0.95 * 0.05 / len(each))
        assert sum(each) / len(each) >= 0.95 - allowance, metric


def test_estimate_is_near_and_tells_ten_percent() -> None:
    for measure in measures_of(calibrated(1.3, 3000)):
        assert measure.factor.value == pytest.approx(1.3, rel=0.1), measure.metric
    slower, equal = calibrated(1.1, 3000).factors[TIME], calibrated(1.0, 3000).factors[TIME]
    assert (slower.low or 0.0) > 1.0
    low, high = equal.low or 0.0, equal.high or math.inf
    assert low <= 1.0 <= high
    assert (high - low) / 2 <= 0.15


def test_too_few_requests_are_named() -> None:
    few = simulate(1.0, 299, 1)
    assert calibrate(CONTEXT, "vllm", "", few) == "no load bin has 300 requests; the fullest has 299"
    made = calibrate(CONTEXT, "vllm", "", (*few[:2], *simulate(1.0, 300, 1)[2:]))
    assert [len(row.measures) > 0 for row in made.bins] == [False, False, True]
    assert made.bins[0].missing[TIME] == "299 requests; 300 are needed"


def test_lengths_and_missing_metrics_are_kept() -> None:
    made = calibrated(1.0, 300, prompt_tokens=1800.0)
    assert made.factors["prompt_tokens_mean"].value == pytest.approx(1.8)
    assert made.bins[0].missing["gpu_utilization"] == "the curve does not say which kind of utilisation it has"


def test_text_of_a_tier_fits_a_screen() -> None:
    """Of a long curve the fullest loads stand in the text."""
    made = calibrated(1.0, 300, prompt_tokens=1800.0)
    (first, *_) = made.bins
    busy = replace(first, requests=774_876.0, measures=tuple(replace(m, n=1_641_166_443.0) for m in first.measures))
    check_golden(__file__, "calibration.txt", calibration_text(file_of(replace(made, bins=(busy, *made.bins[1:])))))
    bins = [replace(first, bin=place, requests_per_second=place + 1, requests=300.0 + place) for place in range(9)]
    text = calibration_text(file_of(replace(made, bins=(*bins, replace(bins[0], bin=9, measures=())))))
    assert len(text.splitlines()) < 50
    assert "in the file only: 1 rps, 2 rps, 3 rps, 4 rps, 5 rps, 6 rps\n" in text
    assert "8: 9 rps" in text


def test_open_bucket_leaves_the_factor_open() -> None:
    (first, *_) = simulate(1.0, 300, 1)
    times = Histogram(edges=TTFT_EDGES, counts=(*[0.0] * (len(TTFT_EDGES) - 1), 300.0), total=None)
    seen = replace(first.window, histograms={**first.window.histograms, "ttft_seconds": (times,)})
    made = calibrate(CONTEXT, "vllm", "", (replace(first, window=seen),))
    factor = made.factors["ttft_p99_seconds"]
    assert (factor.value, factor.high, factor.low) == (None, None, pytest.approx(10.0 / 0.36))


def file_of(*made: Calibration) -> CalibrationFile:
    return CalibrationFile(made_at="2026-11-29T00:00:00Z", sizewatch="0", simulated=True, calibrations=made)


def test_releases_are_compared_at_equal_load() -> None:
    old = replace(calibrated(1.0, 3000), engine_release="0.32.0")
    new = replace(calibrated(1.18, 3000, seed=2), engine_release="0.33.0")
    lines = compare_calibrations(file_of(old), file_of(new))
    assert any(line.startswith("chat: 0.33.0 fp8 against 0.32.0 fp8: mean_seconds_in_system x 1.1") for line in lines)
    assert all(line.endswith("at equal load") for line in lines)
    assert compare_calibrations(file_of(old), file_of(replace(new, tier="other"))) == []


RECORDED = [(name, "cpu-small-open") for name in ("steady", "steady_quiet", "diurnal", "diurnal_quiet")]


@pytest.mark.parametrize(("name", "plan"), [*RECORDED, ("diurnal", "cpu-small")])
def test_bounds_hold_what_clients_measured(name: str, plan: str) -> None:
    """On real engines: the clients' own times of the requests that ended at each load."""
    result = replay(load(recorded.folder(name))[0], load_plan(recorded.PLANS / f"{plan}.yaml"))
    tier, context = next(iter(result.contexts.items()))
    windows = [shown for shown in result.windows if shown.tier == tier and shown.replica is not None]
    placed = [bin_window(shown.window, context.curve, shown.replica) for shown in windows]
    made = calibrate(context, "vllm 0.32.0", "", sum_by_bin(placed))
    rows = [row for row in recorded.requests(name) if row["e2e"] and not row["error"]]
    for load_bin in made.bins:
        spans = [part.window for part in placed if part.bin == load_bin.bin]
        requests = [
            row
            for row in rows
            if any(span.start <= float(row["t_start"]) + float(row["e2e"]) < span.end for span in spans)
        ]
        for measure in load_bin.measures:
            if measure.metric in CLIENT_TIMES:
                truth = CLIENT_TIMES[measure.metric]([client_times(row) for row in requests])
                assert len(requests) >= 300
                assert (measure.low or 0.0) <= truth <= (measure.high or math.inf), (load_bin.bin, measure)


def client_times(row: dict[str, str]) -> tuple[float, float, float]:
    """Return TTFT, time per output token and time of the whole request, in seconds."""
    first, whole, tokens = float(row["ttft"]), float(row["e2e"]), int(row["completion_tokens"])
    return first, (whole - first) / max(tokens - 1, 1), whole


CLIENT_TIMES: dict[str, Callable[[list[tuple[float, float, float]]], float]] = {
    "ttft_p50_seconds": lambda times: nearest_rank([first for first, _, _ in times], 0.5),
    "ttft_p99_seconds": lambda times: nearest_rank([first for first, _, _ in times], 0.99),
    "tpot_p50_seconds": lambda times: nearest_rank([token for _, token, _ in times], 0.5),
    "tpot_p99_seconds": lambda times: nearest_rank([token for _, token, _ in times], 0.99),
    TIME: lambda times: fmean(whole for _, _, whole in times),
}
