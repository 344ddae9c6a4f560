from __future__ import annotations

from typing import Any

import pytest
from judging_samples import context, each, minute, seen, unknown, verdict
from prose import explain

from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Verdict

RULE = "BenchmarkNotRepresentative"
SPANS = (0.5, 1.0, 2.0, 5.0, float("inf"))


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def staying(number: int, in_system: float, rps: float = 3.0, **more: Any) -> Window:
    """At 3 rps the benchmark's points have 1 s in the system on both sides (2 / 2 rps and 4 / 4 rps)."""
    return minute(number, rps=rps, in_system=in_system, **more)


def test_twice_the_time_is_representative() -> None:
    found = verdict(RULE, context(), each(6, lambda n: staying(n, 6.0)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "Requests stay 2.0x as long as in the benchmark; up to 2x is representative; "
        "2 s in the system, benchmark 1 s at this load; "
        "1,080 requests"
    )


def test_beyond_both_points_is_certain() -> None:
    found = verdict(RULE, context(), each(6, lambda n: staying(n, 6.2)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.observed == Reading(
        value=pytest.approx(6.2 / 3), low=pytest.approx(6.2 / 3), high=pytest.approx(6.2 / 3), n=1080
    )
    assert found.actions[0].startswith("Compare prompt and output lengths")


def test_beyond_middle_is_likely() -> None:
    """At 3 rps, between 1 / 2 and 4 / 4 rps: 0.71 s in the middle of the logarithms, 1 s at the slower end."""
    for in_system, wanted in (
        (4.2, (Status.OK, Certainty.CERTAIN)),
        (4.3, (Status.WARNING, Certainty.LIKELY)),
        (6.1, (Status.WARNING, Certainty.CERTAIN)),
    ):
        found = verdict(RULE, context({"concurrency": 1}), each(6, lambda n, k=in_system: staying(n, k)))
        assert said(found) == wanted, in_system


def test_three_slow_minutes_stay_likely() -> None:
    """4.3 and 6.1 in the system by turns are 1.73 s over the hold, less than twice the slower end's."""
    made = each(6, lambda n: staying(n, 6.1 if n >= 3 else 4.3))
    assert said(verdict(RULE, context({"concurrency": 1}), made)) == (Status.WARNING, Certainty.LIKELY)


def test_equal_load_decides_not_beyond() -> None:
    found = unknown(RULE, context(), each(6, lambda n: staying(n, 20.0)))
    assert found.reason is Gap.OUTSIDE_BENCHMARK


def test_a_thin_benchmark_supports_no_certain_finding() -> None:
    found = verdict(RULE, context(requests=100), each(6, lambda n: staying(n, 6.5)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)


def test_brief_or_past_jam_passes() -> None:
    two = each(6, lambda n: staying(n, 7.9 if n >= 4 else 5.4))
    assert verdict(RULE, context(), two).status is Status.OK
    assert verdict(RULE, context(), each(6, lambda n: staying(n, 7.9 if n >= 3 else 5.4))).status is Status.WARNING
    over = each(8, lambda n: staying(n, 7.9 if n < 6 else 3.0))
    assert verdict(RULE, context(), over).status is Status.OK


def test_rule_waits_for_its_data() -> None:
    assert unknown(RULE, context(), each(2, lambda n: staying(n, 6.5))).text == "120 s seen, 180 s are needed"
    few = unknown(RULE, context(), each(4, lambda n: staying(n, 1.0, rps=0.4)))
    assert few.text == "96 requests, 100 are needed"
    silent = unknown(RULE, context(), each(6, lambda n: staying(n, 6.5 if n < 4 else 0.0, rps=3.0 if n < 4 else 0.0)))
    assert silent.reason is Gap.TOO_FEW_REQUESTS
    assert silent.text == "0 requests in the last quarter of the time, 25 are needed"


def test_concurrency_needs_a_curve() -> None:
    from rules.plan.load_bins import build_tier_context as bare

    assert unknown(RULE, bare("t", None), each(6, minute)).reason is Gap.NOT_IN_PLAN
    bald = context({"concurrency": None}, {"concurrency": None}, {"concurrency": None})
    found = unknown(RULE, bald, each(6, minute))
    assert found.reason is Gap.NOT_IN_PLAN
    assert found.text == "the benchmark has no concurrencies, and no medians of TTFT, TPOT and output tokens"


def test_untold_running_is_not_judged() -> None:
    made = [
        Window(start=w.start, end=w.end, expected_seconds=60, covered_seconds=60, counters=w.counters)
        for w in each(6, minute)
    ]
    assert unknown(RULE, context(), made).reason is Gap.NOT_EXPOSED


def estimated(p99: float | None) -> Any:
    """Points without concurrency: 0.1 s to the first of 11 tokens, 0.09 s for each other: 1 s; the P99 as given."""
    medians = {"concurrency": None, "ttft_p50_seconds": 0.1, "tpot_p50_seconds": 0.09, "tpot_p99_seconds": p99}
    tokens = ({"output_tokens_per_second": 11 * rps} for rps in (2.0, 4.0, 6.0))
    return context(*({**medians, **one, "ttft_p99_seconds": 0.2} for one in tokens))


def test_estimate_is_certain_beyond_p99s() -> None:
    # The mean is at most (0.1 + 0.2) / 2 + 10 x (0.09 + 0.11) / 2 = 1.15 s.
    for in_system, certainty in ((6.6, Certainty.LIKELY), (7.2, Certainty.CERTAIN)):
        found = verdict(RULE, estimated(0.11), each(6, lambda n, k=in_system: staying(n, k)))
        assert said(found) == (Status.WARNING, certainty)
    assert explain(found) == (
        "Requests stay 2.4x as long as in the benchmark; up to 2x is representative; "
        "2.4 s in the system, benchmark 1 s at this load (at most 1.15 s); "
        "1,080 requests"
    )
    wide = verdict(RULE, estimated(None), each(6, lambda n: staying(n, 7.2)))
    assert said(wide) == (Status.WARNING, Certainty.LIKELY)


def spans(seconds: float, n: float = 180.0) -> dict[str, Any]:
    return {"histograms": {"e2e_seconds": seen({seconds: n}, SPANS)}}


@pytest.mark.parametrize(("seconds", "agrees"), [(1.0, True), (1.24, True), (1.3, False), (0.81, True), (0.75, False)])
def test_contradictory_telemetry_is_told(seconds: float, agrees: bool) -> None:
    """3 requests in the system at 3 rps are 1 s each; the histogram of whole requests says otherwise."""
    made = each(15, lambda n: staying(n, 3.0, **spans(seconds), gauges=sampled(3.0)))
    if agrees:
        assert verdict(RULE, context(), made).status is Status.OK
        return
    found = unknown(RULE, context(), made)
    assert found.reason is Gap.STALE
    assert found.text == (
        f"the telemetry contradicts itself: 3 requests in the system by the gauges, {3 * seconds:.3g} by Little's law"
    )


def sampled(in_system: float, samples: int = 12) -> dict[str, Any]:
    from rules.telemetry.gauges import GaugeSum

    level = {"seconds": 60.0, "minimum": 0.0, "maximum": in_system, "samples": samples}
    return {
        "requests_running": GaugeSum(integral=in_system * 60.0, **level),
        "requests_waiting": GaugeSum(integral=0.0, **level),
    }


def test_chance_disagreement_is_none() -> None:
    rarely = each(6, lambda n: staying(n, 3.0, **spans(1.3), gauges=sampled(3.0, samples=1)))
    assert verdict(RULE, context(), rarely).status is Status.OK
    passing = each(15, lambda n: staying(n, 3.0, **spans(3.0 if n < 9 else 1.0), gauges=sampled(3.0)))
    assert verdict(RULE, context(), passing).status is Status.OK


def test_moving_system_skips_little() -> None:
    filling = each(15, lambda n: staying(n, 3.0, **spans(1.5), gauges=sampled(3.0), change=30.0))
    assert verdict(RULE, context(), filling).status is Status.OK


def test_shorter_benchmark_is_suspect() -> None:
    from length_samples import sized, usual

    tier = context(workload={"generation_tokens": {"p50": 40, "p95": 80}})
    made = each(6, lambda n: sized(n, usual(), usual(long=30), in_system=6.5))
    found = verdict(RULE, tier, made)
    assert [cause.cause for cause in found.causes] == ["output lengths"]
    assert found.causes[0].evidence[0].startswith("outputs are longer than planned: ")


def of_length(number: int, prompts: float, in_system: float = 3.0) -> Window:
    return staying(number, in_system, counters={"prompt_tokens": 180 * prompts, "generation_tokens": 180 * 44.0})


MEASURED = ({"prompt_tokens_mean": 80},) * 3


@pytest.mark.parametrize("in_system", [3.0, 40.0], ids=["at a measured load", "beyond the benchmark"])
def test_other_lengths_are_other_workload(in_system: float) -> None:
    found = verdict(RULE, context(*MEASURED), each(12, lambda n: of_length(n, 314.0, in_system)))
    assert (*said(found), found.unit) == (Status.WARNING, Certainty.CERTAIN, "tokens")
    assert found.sentence == "Prompts are 3.9x as long as benchmarked: mean 314 tokens, 80 benchmarked"


def test_near_lengths_leave_it_to_time() -> None:
    made = each(12, lambda n: of_length(n, 150.0))
    assert "in the benchmark" in verdict(RULE, context(*MEASURED), made).sentence
    assert "in the benchmark" in verdict(RULE, context(), each(12, lambda n: of_length(n, 900.0))).sentence


def test_time_outweighs_lengths() -> None:
    made = each(6, lambda n: of_length(n, 314.0, 6.2))
    found = verdict(RULE, context(*MEASURED), made)
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert "in the benchmark" in found.sentence
