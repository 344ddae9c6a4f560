from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, minute, unknown, verdict
from length_samples import sized, usual
from prose import explain

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.tier_rules import evaluate_rule
from rules.methods.drift import CUT
from rules.methods.evidence import OUTPUTS, PROMPTS
from rules.plan.load_bins import TierContext, bin_window
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Verdict

DRIFT, OUTPUT = "WorkloadDrift", "OutputLengthDrift"
QUANTILES = {"p50": 90, "p95": 160, "p99": 190}
AS_PLANNED = {"prompt_tokens": QUANTILES, "generation_tokens": QUANTILES}


def planned(**changes: Any) -> TierContext:
    return context(workload={**AS_PLANNED, **changes})


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def day(prompts: Mapping[float, float], outputs: Mapping[float, float], count: int = 6) -> list[Window]:
    return each(count, lambda n: sized(n, prompts, outputs))


def test_planned_and_narrow_buckets_pass() -> None:
    """The buckets hold the planned lengths; they are too wide to say that nothing moved: ok, and no more than likely."""
    found = verdict(DRIFT, planned(), day(usual(), usual()))
    assert said(found) == (Status.OK, Certainty.LIKELY)
    assert explain(found) == ("Prompts P95 100 to 200 tokens, 160 planned; outputs P95 100 to 200 tokens, 160 planned")
    assert found.actions == ()
    same = {"p50": None, "p95": 180, "p99": None}
    narrow = {"prompt_tokens": same, "generation_tokens": same}
    made = [replace(w, histograms={PROMPTS: _grid(), OUTPUTS: _grid()}) for w in each(6, minute)]
    assert said(verdict(DRIFT, context(workload=narrow), made)) == (Status.OK, Certainty.CERTAIN)


def _grid() -> Any:
    from judging_samples import seen

    return seen({180.0: 180.0}, (160.0, 200.0, float("inf")))


def test_longer_prompts_are_told_with_their_factor() -> None:
    found = verdict(DRIFT, planned(archetype="chat"), day(usual(long=20), usual()))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == ("Prompts are at least 1.2x as long as planned: P95 200 to 500 tokens, 160 planned")
    assert (found.observed.low, found.expected.value) == (200.0, 160)  # type: ignore[union-attr]
    assert found.actions[0].startswith("Size the tier again")


def test_longer_outputs_and_both_are_named() -> None:
    outputs = verdict(DRIFT, planned(archetype="chat"), day(usual(), usual(long=20)))
    assert outputs.sentence.startswith("Outputs are at least 1.2x as long")
    assert explain(outputs) == ("Outputs are at least 1.2x as long as planned: P95 200 to 500 tokens, 160 planned")
    both = verdict(DRIFT, planned(archetype="chat"), day(usual(long=20), usual(long=20)))
    assert explain(both) == (
        "Prompts are at least 1.2x as long as planned: P95 200 to 500 tokens, 160 planned; "
        "outputs at least 1.2x: P95 200 to 500 tokens, 160 planned"
    )


def test_shorter_requests_are_a_drift_too() -> None:
    short = {15.0: 180.0}
    found = verdict(DRIFT, planned(), day(usual(), short))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == ("Outputs are at most 0.11x as long as planned: P99 10 to 20 tokens, 190 planned")


def test_low_edge_meets_the_factor() -> None:
    """P95 is in (200, 500]: surely 1.2x of 166 tokens, not surely of 167."""
    just, below = ({"prompt_tokens": {"p95": p95}} for p95 in (166, 167))
    made = day(usual(long=20), usual())
    assert verdict(DRIFT, context(workload=just), made).status is Status.WARNING
    assert verdict(DRIFT, context(workload=below), made).status is Status.OK


def test_high_edge_meets_the_shorter_factor() -> None:
    """P50 is in (50, 100]: surely below 121 / 1.2, not below 119 / 1.2."""
    made = day({80.0: 180.0}, usual())
    for p50, status in ((121, Status.WARNING), (119, Status.OK)):
        assert verdict(DRIFT, context(workload={"prompt_tokens": {"p50": p50}}), made).status is status


def test_quantile_may_exceed_its_share() -> None:
    assert verdict(DRIFT, planned(prompt_tokens={"p95": 160}), day(usual(long=9), usual())).status is Status.OK


def test_few_more_may_be_chance() -> None:
    # 1080 requests, 54 expected above a P95: 72 are 2.5 standard deviations more, 84 are 4.2.
    for long, wanted in (
        (10, (Status.OK, Certainty.LIKELY)),
        (12, (Status.WARNING, Certainty.LIKELY)),
        (14, (Status.WARNING, Certainty.CERTAIN)),
    ):
        made = day(usual(long=long), usual())
        assert said(verdict(DRIFT, planned(prompt_tokens={"p95": 160}), made)) == wanted, long


def test_burst_of_long_requests_passes() -> None:
    burst = each(6, lambda n: sized(n, usual(long=60 if n >= 4 else 0), usual()))
    assert verdict(DRIFT, planned(), burst).status is Status.OK
    lasting = each(6, lambda n: sized(n, usual(long=60 if n >= 3 else 0), usual()))
    assert verdict(DRIFT, planned(), lasting).status is Status.WARNING


def test_a_drift_that_is_over_is_over() -> None:
    over = each(8, lambda n: sized(n, usual(long=60 if n < 6 else 0), usual()))
    assert verdict(DRIFT, planned(), over).status is Status.OK


def test_drift_waits_for_time_and_requests() -> None:
    assert unknown(DRIFT, planned(), day(usual(long=60), usual(), count=2)).text == "120 s seen, 180 s are needed"
    few = day(usual(long=16, n=33), usual(n=33), count=3)
    assert unknown(DRIFT, planned(), few).text == "99 requests, 100 are needed"
    assert verdict(DRIFT, planned(), day(usual(long=30, n=64), usual(), count=3)).status is Status.WARNING


def test_a_plan_without_lengths_says_so() -> None:
    from rules.plan.load_bins import build_tier_context as bare

    made = day(usual(), usual())
    for tier, words in (
        (bare("t", None), "the plan has no workload, and its benchmark no lengths"),
        (context(), "the plan has no workload, and its benchmark no lengths"),
        (context(workload={"archetype": "chat"}), "the plan's workload has no prompt_tokens or generation_tokens"),
    ):
        found = unknown(DRIFT, tier, made)
        assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, words)
    other = context(workload={"prompt_tokens": {"p95": 100}})
    found = unknown(OUTPUT, other, made)
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the plan's workload has no generation_tokens")


def test_drift_needs_histograms_and_traffic() -> None:
    found = unknown(DRIFT, planned(), each(6, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "no lengths of prompts or outputs were seen")
    idle = unknown(DRIFT, planned(), each(6, lambda n: sized(n, {}, {}, rps=0.0)))
    assert idle.reason is Gap.NO_TRAFFIC


def test_no_replica_ever_seen_is_unknown() -> None:
    found = evaluate_rule(BY_NAME[DRIFT], planned(), (), now=0.0)
    assert (found.reason, found.text) == (Gap.SCRAPE_FAILED, "no replica of the tier has been seen")  # type: ignore[union-attr]


def test_requests_above_planned_peak_drift() -> None:
    busy = context(workload={"requests_per_second": {"average": 1.0, "peak": 2.4}})
    found = verdict(DRIFT, busy, each(6, lambda n: minute(n, rps=3.0)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.unit == "per_second"
    assert (
        found.sentence
        == "The peak load is above the plan; 3 rps or more arrived in three minutes, 2.4 rps planned (1.2x)"
    )
    just = context(workload={"requests_per_second": {"peak": 2.5}})
    assert verdict(DRIFT, just, each(6, lambda n: minute(n, rps=3.0))).status is Status.OK


def test_short_peak_is_no_drift() -> None:
    peak = context(workload={"requests_per_second": {"peak": 2.4}})
    two = each(6, lambda n: minute(n, rps=6.0 if n in (2, 3) else 1.0))
    assert verdict(DRIFT, peak, two).status is Status.OK
    queued = each(6, lambda n: minute(n, rps=2.0, change=60.0 if n < 3 else 0.0))
    assert verdict(DRIFT, peak, queued).status is Status.WARNING


def test_peak_is_of_the_tier() -> None:
    peak = context(workload={"requests_per_second": {"peak": 2.4}})
    replicas = {name: each(6, lambda n: minute(n, rps=1.5)) for name in ("a", "b")}
    assert verdict(DRIFT, peak, replicas).status is Status.WARNING


@pytest.mark.parametrize(("night", "status"), [(0.5, Status.WARNING), (2.0, Status.OK)])
def test_day_compares_average_too(night: float, status: Status) -> None:
    """Six busy hours of 3 rps in 24; the planned ratio is 1.5."""
    tier = context(workload={"requests_per_second": {"average": 2.0, "peak": 3.0}})
    hours = [minute(60 * n, rps=3.0 if n >= 18 else night, seconds=3600.0) for n in range(24)]
    binned = tuple(bin_window(hour, tier.curve, None) for hour in hours)
    found = evaluate_rule(BY_NAME[DRIFT], tier, binned, now=hours[-1].end, period_seconds=3600.0)
    assert isinstance(found, Verdict)
    assert found.status is status
    assert ("peak to average" in found.sentence) is (status is Status.WARNING)


def test_output_drift_judges_the_p99_upwards_alone() -> None:
    long = verdict(OUTPUT, planned(), day(usual(), usual(long=10, length=900)))
    assert said(long) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(long) == ("Outputs are at least 2.6x as long as planned: P99 500 to 1,000 tokens, 190 planned")
    assert verdict(OUTPUT, planned(), day(usual(long=60, length=900), usual())).status is Status.OK
    assert verdict(OUTPUT, planned(), day(usual(), {15.0: 180.0})).status is Status.OK


def test_output_drift_tells_limited_answers() -> None:
    long = usual(long=10, length=900)
    cut = verdict(OUTPUT, planned(), each(6, lambda n: sized(n, usual(), long, counters={CUT: 45.0}, rps=3.0)))
    assert explain(cut).endswith("; 25% of all answers ended at their token limit")


def test_output_drift_begins_at_factor() -> None:
    made = day(usual(), usual(long=10))
    for p99, status in ((166, Status.WARNING), (167, Status.OK)):
        assert verdict(OUTPUT, planned(generation_tokens={"p99": p99}), made).status is status
    burst = each(6, lambda n: sized(n, usual(), usual(long=60 if n >= 4 else 0)))
    assert verdict(OUTPUT, planned(generation_tokens={"p99": 160}), burst).status is Status.OK
    few = day(usual(), usual(long=10, n=33), count=3)
    assert unknown(OUTPUT, planned(), few).reason is Gap.TOO_FEW_REQUESTS
    assert unknown(OUTPUT, planned(), day(usual(), usual(long=10), count=2)).text == "120 s seen, 180 s are needed"


def test_unplanned_p99_is_a_gap() -> None:
    found = unknown(OUTPUT, planned(generation_tokens={"p50": 90}), day(usual(), usual()))
    assert found.reason is Gap.NOT_IN_PLAN


def test_configured_factor_replaces_catalogue() -> None:
    tier = context(workload=AS_PLANNED, limits={DRIFT: {"factor": 2.0}})
    assert verdict(DRIFT, tier, day(usual(long=20), usual())).status is Status.OK


MEASURED = [{"prompt_tokens_mean": 80, "output_tokens_per_second": 44 * rps} for rps in (2, 4, 6)]


def of_length(number: int, prompt: float, output: float, rps: float = 3.0) -> Window:
    finished = rps * 60
    return minute(
        number, rps=rps, counters={"prompt_tokens": prompt * finished, "generation_tokens": output * finished}
    )


def benchmarked(**workload: Any) -> TierContext:
    return context(*MEASURED, **({"workload": workload} if workload else {}))


def test_benchmark_lengths_stand_for_planned_ones() -> None:
    found = verdict(DRIFT, benchmarked(), each(12, lambda n: of_length(n, 314.0, 160.0)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == "Prompts are 3.9x as long as benchmarked: mean 314 tokens, 80 benchmarked"
    peak = benchmarked(requests_per_second={"peak": 100})
    assert verdict(DRIFT, peak, each(12, lambda n: of_length(n, 314.0, 160.0))).sentence == found.sentence
    shorter = verdict(DRIFT, benchmarked(), each(12, lambda n: of_length(n, 20.0, 44.0)))
    assert shorter.sentence == "Prompts are 0.25x as long as benchmarked: mean 20 tokens, 80 benchmarked"


def test_passing_mean_is_no_drift() -> None:
    assert said(verdict(DRIFT, benchmarked(), each(12, lambda n: of_length(n, 90.0, 44.0))))[0] is Status.OK
    over = each(12, lambda n: of_length(n, 314.0 if n < 3 else 80.0, 44.0))
    assert said(verdict(DRIFT, benchmarked(), over))[0] is Status.OK
    few = verdict(DRIFT, benchmarked(), each(5, lambda n: of_length(n, 314.0, 44.0)))
    assert said(few) == (Status.WARNING, Certainty.LIKELY), "five minutes may all be long by chance"


def test_planned_lengths_precede_benchmark() -> None:
    own = {"prompt_tokens": QUANTILES, "generation_tokens": QUANTILES}
    found = verdict(DRIFT, context(*MEASURED, workload=own), day(usual(), usual()))
    assert said(found) == (Status.OK, Certainty.LIKELY)
