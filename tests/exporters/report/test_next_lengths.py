"""Lengths of the next plan: what production measured is taken over, a bound of it never."""

from __future__ import annotations

import re

import yaml
from length_samples import TOKEN_EDGES
from report_samples import hours, past, plan, tier_past

from exporters.report.build import report
from exporters.report.formats import report_html, report_markdown
from exporters.report.next_plan import next_plan_text
from exporters.report.records import Report
from rules.plan.schema import Plan, TokenQuantiles, parse_plan

LAST = TOKEN_EDGES[-2]
"""The last edge that is a number: what is longer lies above it."""

BEYOND = hours(168, outputs=LAST + 1.0)


def planned(p50: float | None = None, p95: float | None = None, p99: float | None = None) -> Plan:
    tokens = {key: value for key, value in (("p50", p50), ("p95", p95), ("p99", p99)) if value is not None}
    workload = {"requests_per_second": {"average": 30, "peak": 50}, "generation_tokens": tokens}
    return plan(workload=workload)


def asked(one: Plan, several: list = BEYOND) -> tuple[Report, TokenQuantiles | None, str]:
    """The report, the outputs of the proposed plan, and its text."""
    whole = past(one, tier_past(one, several))
    found, proposed = report(whole)
    assert proposed is not None
    text = next_plan_text(found, proposed)
    assert parse_plan(yaml.safe_load(text)) == proposed
    workload = proposed.tiers["t"].workload
    return found, workload.generation_tokens if workload else None, text


def test_a_length_of_which_only_a_bound_is_known_stays_and_says_why() -> None:
    found, outputs, text = asked(planned(90, 190, 199))
    assert outputs == TokenQuantiles(mean=5001, p50=90, p95=190, p99=199), "production's mean is exact"
    assert f"# outputs P99 in production: at least {LAST:,.0f} tokens" in text
    left = found.tiers[0].left
    assert [one.partition(":")[0] for one in left] == ["outputs P50", "outputs P95", "outputs P99"]
    assert left[2] == (
        f"outputs P99: production tells only that it is above {LAST:,.0f} tokens, where the engine's buckets end; the planned "
        "199 stays, too low as it is: take it from the requests that a gateway logs, and write it into the plan by hand"
    )
    assert f"    # {left[2]}." in text
    said = "not taken over, only bounds: outputs P50, outputs P95, outputs P99"
    assert said in report_markdown(found)
    assert said in report_html(found)
    assert [change for change in found.plan_changes if "generation" in change] == [
        "t: generation tokens mean: 5,001, not given before"
    ]


def test_a_plan_without_that_length_gets_the_mean_alone() -> None:
    found, outputs, _ = asked(planned())
    assert outputs == TokenQuantiles(mean=5001)
    assert all("the plan gets none" in one for one in found.tiers[0].left)


def test_an_old_value_below_the_quantile_before_it_cannot_stay() -> None:
    # Nine of ten are 950 tokens long, one lies in the last bucket: P95 and P99 are open, P50 is not.
    one = hours(168, outputs=950.0)
    longer = hours(168, outputs=LAST + 1.0)
    name = "generation_tokens_per_request"
    for at, few in zip(one, longer, strict=True):
        (base,), (tail,) = at.histograms[name], few.histograms[name]
        mixed = type(base)(
            edges=base.edges,
            counts=tuple(0.9 * a + 0.1 * b for a, b in zip(base.counts, tail.counts, strict=True)),
            total=None,
        )
        at.histograms[name] = (mixed,)
    found, outputs, _ = asked(planned(90, 190, 5_000_000), one)
    # P99 is planned beyond every bucket, which nothing contradicts.
    assert outputs is not None
    assert (outputs.p50 or 0) > 500
    assert (outputs.p95, outputs.p99) == (None, 5_000_000)
    assert [line.partition(":")[0] for line in found.tiers[0].left] == ["outputs P95"]
    assert "the planned 190 cannot stay, the quantile below it is longer" in found.tiers[0].left[0]
    assert "t: generation tokens p95: 190 before, not given any more" in found.plan_changes


def test_a_length_that_was_measured_says_between_what_it_lies() -> None:
    _, outputs, text = asked(planned(900, 1900, 1990), hours())
    assert outputs is not None
    assert f"# - generation tokens p50: 900 -> {outputs.p50:g} (-" in text
    assert re.search(r"# outputs P50 in production: \d+ tokens \(50 to 100 tokens\)$", text, re.MULTILINE)


def test_a_mean_of_production_takes_the_place_of_the_planned_one_and_the_curve_keeps_its_own() -> None:
    def workload(mean: float) -> dict[str, object]:
        rates = {"average": 30, "peak": 50}
        return {"requests_per_second": rates, "prompt_tokens": {"mean": mean}, "generation_tokens": {"mean": 80}}

    one = plan(workload=workload(400))
    whole = past(one, tier_past(one, hours(168, prompts=1234.5678)))
    found, proposed = report(whole)
    assert proposed is not None
    assert proposed.tiers["t"].workload is not None
    assert proposed.tiers["t"].workload.prompt_tokens is not None
    assert proposed.tiers["t"].workload.prompt_tokens.mean == 1235
    assert "# - prompt tokens mean: 400 -> 1,235 (+209%)" in next_plan_text(found, proposed)
    assert "t: prompt tokens mean: 400 -> 1,235 (+209%)" in found.plan_changes
    curve = proposed.tiers["t"].curve
    assert curve is not None
    assert {point.prompt_tokens_mean for point in curve.points} == {400}
    near = plan(workload=workload(1200))
    _, same = report(past(near, tier_past(near, hours(168, prompts=1234.5678))))
    assert same is not None
    assert same.tiers["t"].curve == near.tiers["t"].curve
    assert not any("prompts" in line and "mean" in line for line in found.plan_changes[1:])


def test_a_mean_that_the_quantiles_that_stay_and_the_guardrail_forbid_is_left_out() -> None:
    short = plan(
        workload={"requests_per_second": {"average": 30, "peak": 50}, "generation_tokens": {"p50": 90, "p99": 199}},
        guardrails={"max_generation_tokens": 2000},
    )
    _, outputs, _ = asked(short)
    assert outputs == TokenQuantiles(p50=90, p99=199)


def test_a_tier_without_a_recommendation_says_nothing_of_lengths() -> None:
    found, outputs, text = asked(planned(90, 190, 199), hours(84, outputs=LAST + 1.0))
    assert outputs == TokenQuantiles(p50=90, p95=190, p99=199)
    assert found.tiers[0].left == ()
    assert "stays" not in text.replace("stays as it is", "").replace("the curve stays", "")
