"""Lengths of the next plan: what production measured is taken over, a bound of it never."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from judging_samples import TOKEN_EDGES
from report_samples import hours, plan, reported

from exporters.report.build import next_plan_text
from exporters.report.formats import report_html, report_markdown
from exporters.report.records import Report
from rules.plan.schema import Plan, TokenQuantiles, parse_plan

LAST = TOKEN_EDGES[-2]
"""The last edge that is a number: what is longer lies above it."""

BEYOND = hours(168, outputs=LAST + 1.0)


RATES = {"average": 30, "peak": 50}


def planned(p50: float | None = None, p95: float | None = None, p99: float | None = None, **parts: Any) -> Plan:
    tokens = {key: value for key, value in (("p50", p50), ("p95", p95), ("p99", p99)) if value is not None}
    return plan(workload={"requests_per_second": RATES, "generation_tokens": tokens}, **parts)


def asked(one: Plan, several: list = BEYOND) -> tuple[Report, TokenQuantiles | None, str]:
    """The report, the outputs of the proposed plan, and its text."""
    found, proposed = reported(one, several)
    assert proposed is not None
    text = next_plan_text(found, proposed)
    assert parse_plan(yaml.safe_load(text)) == proposed
    workload = proposed.tiers["t"].workload
    return found, workload.generation_tokens if workload else None, text


def test_bounded_length_stays_and_says_why() -> None:
    found, outputs, text = asked(planned(90, 190, 199))
    assert outputs == TokenQuantiles(mean=5001, p50=90, p95=190, p99=199), "production's mean is exact"
    assert f"# outputs P99 in production: at least {LAST:,.0f} tokens" in text
    left = found.tiers[0].left
    assert [line.partition(":")[0] for line in left] == ["outputs P50", "outputs P95", "outputs P99"]
    assert left[2] == (
        f"outputs P99: production tells only that it is above {LAST:,.0f} tokens, where the engine's buckets end; the planned "
        "199 stays, too low as it is: take it from the requests that a gateway logs, and write it into the plan by hand"
    )
    assert f" # {left[2]}." in " ".join(text.replace("#   ", "").split())
    said = "not taken over, only bounds: outputs P50, outputs P95, outputs P99"
    assert said in report_markdown(found)
    assert said in report_html(found)
    changes = [change for change in found.plan_changes if "generation" in change]
    assert changes == ["t: generation tokens mean: 5,001, not given before"]


def test_unplanned_length_gets_the_mean_alone() -> None:
    found, outputs, _ = asked(planned())
    assert outputs == TokenQuantiles(mean=5001)
    assert all("the plan gets none" in line for line in found.tiers[0].left)


def test_falling_quantile_cannot_stay() -> None:
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


def test_measured_length_has_its_bucket() -> None:
    _, outputs, text = asked(planned(900, 1900, 1990), hours())
    assert outputs is not None
    assert f"# - generation tokens p50: 900 -> {outputs.p50:g} (-" in text
    assert re.search(r"# outputs P50 in production: \d+ tokens \(50 to 100 tokens\)$", text, re.MULTILINE)


@pytest.mark.parametrize(("mean", "expected", "lines"), [(400, 1235, 1), (1200, 1200, 0)])
def test_new_mean_leaves_the_curve_its_own(mean: float, expected: float, lines: int) -> None:
    tokens = {"prompt_tokens": {"mean": mean}, "generation_tokens": {"mean": 80}}
    one = plan(workload={"requests_per_second": RATES, **tokens})
    found, proposed = reported(one, hours(168, prompts=1234.5678))
    assert proposed is not None
    tier = proposed.tiers["t"]
    assert tier.value_at("workload.prompt_tokens.mean") == expected
    assert tier.curve is not None
    if not lines:
        assert tier.curve == one.tiers["t"].curve
    else:
        assert {point.prompt_tokens_mean for point in tier.curve.points} == {mean}
    change = "prompt tokens mean: 400 -> 1,235 (+209%)"
    assert found.plan_changes.count(f"t: {change}") == next_plan_text(found, proposed).count(f"# - {change}") == lines


def test_forbidden_mean_is_left_out() -> None:
    """By the quantiles that stay and the guardrail."""
    _, outputs, _ = asked(planned(p50=90, p99=199, guardrails={"max_generation_tokens": 2000}))
    assert outputs == TokenQuantiles(p50=90, p99=199)


def test_unrecommended_tier_keeps_its_lengths() -> None:
    found, outputs, text = asked(planned(90, 190, 199), hours(84, outputs=LAST + 1.0))
    assert outputs == TokenQuantiles(p50=90, p95=190, p99=199)
    assert found.tiers[0].left == ()
    assert "stays" not in text.replace("stays as it is", "").replace("the curve stays", "")
