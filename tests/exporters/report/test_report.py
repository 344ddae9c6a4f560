"""The report as data and as text: what it says of a whole week, and that its schema holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from page_reader import PageReader
from report_samples import (
    HOUR,
    START,
    WEEK,
    finding,
    foreign_alert,
    hour,
    hours,
    past,
    plan,
    reported,
    reported_tier,
    row_of,
    tier_past,
    unknown,
)

from exporters.documents.forecast import PrewarmValue, Strategy
from exporters.report.build import MOST_TIERS, message, next_plan_text, report
from exporters.report.findings import Prewarming
from exporters.report.formats import observed_text, report_html, report_markdown
from exporters.report.guide_tables import judge_row
from exporters.report.records import report_json, report_schema
from rules.catalogue.registry import CATALOGUE
from rules.confidence import Certainty
from rules.plan.checks import check_plan
from rules.plan.schema import Plan, parse_plan
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.verdict import Finding, Status, Transition

PLAN = plan()
USABLE = pytest.approx(7.33333333)


def test_verdict_says_action_and_money() -> None:
    assert reported_tier().verdict == (
        "t: shrink from 10 to 6 replicas (likely); it costs 1,200 USD a day, the proposal saves 480 USD a day; "
        "production confirms the benchmark up to 41% of the usable load."
    )


@pytest.mark.parametrize("count", [168, 84, 0])
def test_json_holds_by_its_schema(count: int) -> None:
    found, _ = reported(PLAN, hours(count))
    whole, schema = json.loads(report_json(found)), jsonschema.Draft202012Validator(report_schema())
    schema.validate(whole)
    assert (whole["schema"], whole["tiers"][0]["proposal"]["kind"]) == (2, found.tiers[0].proposal.kind)
    del whole["tiers"][0]["proposal"]
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(whole)


def test_monitoring_rows_have_target_and_trend() -> None:
    tier = reported_tier(before=hour(-168, 10.0))
    assert len(tier.monitoring) == 32
    used, memory = row_of(tier, "fleet_utilization"), row_of(tier, "gpu_memory_utilization")
    assert (used.status, used.certainty, used.change) == ("warning", "certain", pytest.approx(1.0))
    assert 2 / used.observed.value == USABLE
    assert row_of(tier, "ttft_p99_seconds").target.text == "SLO 2 s"
    assert row_of(tier, "completed_rps").observed.value == pytest.approx(20.0)
    assert (memory.observed.gap, memory.status) == ("not_exposed", "unknown"), "unmeasured is not healthy"


def test_row_tells_how_often_rules_fired() -> None:
    fired = (
        finding("KvCacheCascade", 10, 12, Status.CRITICAL, sentence="It was full"),
        finding("KvCacheCascade", 20, 21),
    )
    row = row_of(reported_tier(findings=fired), "kv_utilization")
    assert (row.status, row.sentence) == ("critical", "fired twice, 3 h in all; at its worst: It was full")


def test_range_of_a_level_is_instants() -> None:
    found, _ = reported(PLAN, hours())
    assert "% (instants " in observed_text(row_of(found.tiers[0], "kv_utilization"), "")
    assert "% (instants " in report_html(found)
    assert "instants" not in observed_text(row_of(found.tiers[0], "ttft_p99_seconds"), "")


FLAP = finding("QueueGrowing", 24, 25)
OPEN = replace(FLAP, ended_at=None)
LIKELY = replace(OPEN, worst=replace(FLAP.worst, certainty=Certainty.LIKELY), transitions=())


@pytest.mark.parametrize(
    ("instances", "found", "expected"),
    [
        (6, FLAP, ("keep", "ok")),
        (6, OPEN, ("keep", "warning")),
        (6, LIKELY, ("keep", "ok")),
        (6, replace(OPEN, rule="KvCacheUnderused"), ("keep", "ok")),
        (3, FLAP, ("grow", "warning")),
        # Users felt it in this time.
        (6, finding("TtftSloBurn", 24, 25, Status.CRITICAL), ("keep", "critical")),
    ],
)
def test_kept_tier_warns_while_alerts_last(instances: int, found: Finding, expected: tuple[str, str]) -> None:
    tier = reported_tier(hours(replicas=6), plan(fleet={"instances": instances}), findings=(found,))
    assert (tier.proposal.kind, tier.status) == expected


def test_questions_are_answered_at_their_lengths() -> None:
    found = {question.key: question for question in reported_tier().questions}
    assert len(found) == 9
    assert {question.lengths for question in found.values()} == {
        "at prompts P50 500 to 1,000 tokens, P95 500 to 1,000 tokens; outputs P50 50 to 100 tokens, P95 50 to 100 tokens"
    }
    # 20 rps x 80 tokens on 20 GPUs of 80 GB.
    expected = {
        "efficiency": ("tokens_per_second_per_gpu", 80.0),
        "memory": ("tokens_per_second_per_gb_hbm", 1.0),
        "dollar": ("rps_per_gpu", 1.0),
        "bound": ("prompt_by_generated_tokens", 10.0),
    }
    for key, (name, value) in expected.items():
        assert found[key].numbers[name].value == pytest.approx(value)
    dollar = found["dollar"].numbers
    assert dollar["cost_per_million_tokens"].value == pytest.approx(50 / (1600 * 3600) * 1e6)
    ttft = dollar["ttft_p99_seconds_per_money_an_hour"]
    assert (ttft.low, ttft.high) == (pytest.approx(0.05 / 5), pytest.approx(0.1 / 5))


@pytest.mark.parametrize(("precision", "share", "mfu"), [("bf16", "; MFU 10.0%", 0.1), ("fp8", "", None)])
def test_estimated_mfu_and_mbu_are_answered(precision: str, share: str, mfu: float | None) -> None:
    """99 TFLOP and 1.675 TB each second of a GPU: a tenth of an H100's 990, half of its 3.35."""
    rates = {"estimated_flops": 99e12, "estimated_read_bytes": 1.5e12, "estimated_write_bytes": 0.175e12}
    estimated = {name: rate * 36_000 for name, rate in rates.items()}
    several = [replace(window, counters={**window.counters, **estimated}) for window in hours()]
    found = reported_tier(several, plan(precision={"weights": precision})).questions[0]
    assert f"generated a GPU{share}; MBU 50.0%" in found.answer
    values = {name: value.value for name, value in found.numbers.items() if isinstance(value, Reading)}
    assert (values["mbu"], values.get("mfu")) == (pytest.approx(0.5), mfu and pytest.approx(mfu))


def test_numbers_without_lengths_compare_with_nothing() -> None:
    found = reported_tier([replace(window, histograms={}) for window in hours()])
    assert found.questions[0].lengths == "lengths are not known: compare these numbers with nothing"


def test_week_is_by_the_users_clock() -> None:
    found, _ = reported(PLAN, hours(), zone="Europe/Berlin")
    week = {(hour.weekday, hour.hour): hour.utilization for hour in found.tiers[0].week}
    # Busy from 8 to 20 UTC is 9 to 21 in winter.
    assert (1 / week[0, 8], 3 / week[0, 9], len(week)) == (USABLE, USABLE, 168)


def test_incidents_have_stages_and_explained_alerts() -> None:
    steps = []
    for stage in (1, 2, 3):
        t = START + 10 * HOUR + 60 * stage
        steps.append(Transition(t=t, status=Status.WARNING, stage=stage, certainty=Certainty.CERTAIN))
    cascade = finding("KvCacheCascade", 10, 11, replica="r1", transitions=tuple(steps))
    alerts = [foreign_alert(*named, START + 10.1 * HOUR, None) for named in (("Slow", cascade), ("Other", None))]
    (row,) = reported_tier(findings=(cascade, finding("UtilizationTrap", 1, None)), foreign=tuple(alerts)).incidents
    assert row.rule == "KvCacheCascade"
    assert [step.stage for step in row.worst.transitions] == [1, 2, 3]
    assert [(alert.name, alert.text) for alert in row.foreign] == [("Slow", "why")]


def test_unknown_times_add_up_by_rule() -> None:
    spans = []
    # A second replica that is silent at the same time adds nothing.
    for replica in (None, "r2"):
        for start, end in ((-1, 1), (5, 7), (WEEK / HOUR - 1, None)):
            spans.append(unknown("TtftDivergence", start, end, replica=replica))
    found = reported_tier(unknowns=tuple(spans)).quality.blind
    assert [(row.rule, row.seconds) for row in found] == [("TtftDivergence", 4 * HOUR)]


GPU_RULES = ("GpuComputeLow", "GpuSaturated", "GpuUtilizationShortfall")


@pytest.mark.parametrize(
    ("rules", "silent_rules", "gap", "hours_long", "status"),
    [
        # Minutes after a restart, and hours.
        (("RequestsRefused",), ("RequestsRefused",), Gap.TOO_FEW_REQUESTS, 1 / 30, "ok"),
        (("RequestsRefused",), ("RequestsRefused",), Gap.TOO_FEW_REQUESTS, 8, "unknown"),
        # The plan has no gpu_utilization: GpuUtilizationShortfall is not in it, the others were judged.
        (GPU_RULES, (), Gap.NOT_IN_PLAN, 144, "ok"),
        (GPU_RULES, ("GpuSaturated",), Gap.OUTSIDE_BENCHMARK, 144, "ok"),
        (GPU_RULES, ("GpuComputeLow",), Gap.SCRAPE_FAILED, 144, "unknown"),
        (GPU_RULES, ("GpuComputeLow", "GpuSaturated"), Gap.NOT_EXPOSED, 144, "unknown"),
        (("GpuUtilizationShortfall",), (), Gap.NOT_IN_PLAN, 144, "unknown"),
    ],
)
def test_gaps_hide_no_rule_that_judged(
    rules: tuple[str, ...], silent_rules: tuple[str, ...], gap: Gap, hours_long: float, status: str
) -> None:
    spans = tuple(unknown(rule, 24, 24 + hours_long, gap) for rule in silent_rules)
    assert judge_row(rules, tier_past(PLAN, hours(), unknowns=spans)).status == status


MARGIN = "pre-warming with the margin"
WORTH = PrewarmValue(
    start=START,
    end=START + WEEK,
    zone="UTC",
    requests=1e6,
    strategies=tuple(
        Strategy(name=name, violation_minutes=minutes, late_requests=late, replica_hours=paid, money=5 * paid)
        for name, minutes, late, paid in (
            ("reactive", 60, 500, 900),
            ("pre-warming", 5, 20, 1000),
            ("perfect foresight", 0, 0, 850),
            (MARGIN, 1, 4, 1120),
        )
    ),
    ours="pre-warming",
    perfect="perfect foresight",
    reacting="reactive",
    recommended="pre-warming",
    with_margin=MARGIN,
    short_reason="",
    covered_ratio=None,
    reason="It is worth it.",
    currency="USD",
)


def test_prewarming_says_saving_and_cost() -> None:
    quality = {"covered_ratio": 0.96, "error_ratio": 0.8, "forecasts": 168}
    part = Prewarming(worth=WORTH, method="profile", naive="same hour yesterday", **quality)
    found, _ = reported(PLAN, hours(), prewarming=part)
    saved = found.tiers[0].prewarming.saved
    assert saved is not None
    # What the margin costs is no part of it.
    assert (saved.replica_hours, saved.money, saved.late_requests) == (-100, -500, 480)
    text = report_markdown(found)
    assert (
        "against reacting to load: 100 replica-hours more (500 USD), 480 late requests fewer; the last 7 days: " in text
    )
    assert "96% of 168 were high enough (95% are meant to be); error 0.80 times that of same hour yesterday" in text
    assert f"reactive 4,500 USD; pre-warming 5,000 USD; perfect foresight 4,250 USD; {MARGIN} 5,600 USD" in text


def test_absent_forecast_has_a_reason() -> None:
    found, _ = reported(PLAN, hours(), no_prewarming="forecasting is switched off")
    assert "Not known: forecasting is switched off" in report_markdown(found)


def test_markdown_has_sections_in_order() -> None:
    text = report_markdown(reported(PLAN, hours())[0])
    assert re.findall(r"^### (.*)$", text, flags=re.MULTILINE) == [
        "Replicas and cost (steps 11 and 12)",
        "Plan against production",
        "Workload (step 1)",
        "Capacity of a replica",
        "Idle capacity, and levers that overlap",
        "Pre-warming",
        "Guardrails",
        "Questions of the sizing guide (8.4)",
    ]


@pytest.mark.parametrize("count", [168, 84, 0])
def test_page_is_whole_without_scripts(count: int) -> None:
    found, _ = reported(PLAN, hours(count))
    page = PageReader(report_html(found))
    assert "script" not in {tag for tag, _ in page.tags}
    named = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(value and value.startswith(("#", "data:")) for value in named)
    assert "url(" not in report_html(found)


def test_page_draws_arrivals_and_week() -> None:
    tags = PageReader(report_html(reported(PLAN, hours())[0])).tags
    charts = [attributes["aria-label"] for tag, attributes in tags if tag == "svg" and "aria-label" in attributes]
    assert charts == ["requests per second by hour, 168 hours", "fleet utilisation by hour of the week"]


def test_foreign_names_and_sentences_are_escaped() -> None:
    bad = finding("KvCacheCascade", 10, 11, sentence="<script>alert(1)</script>", replica='"><img>')
    text = report_html(reported(PLAN, hours(), findings=(bad,))[0])
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


def proposed_from(one: Plan, **parts: object) -> Plan:
    """The next plan of a week, which its text gives back."""
    found, proposed = report(past(one, tier_past(one, hours(**parts))))
    assert proposed is not None
    assert parse_plan(yaml.safe_load(next_plan_text(found, proposed))) == proposed
    return proposed


def test_next_plan_says_old_values() -> None:
    found, proposed = report(past(PLAN, tier_past(PLAN, hours())))
    assert proposed is not None
    tier = proposed.tiers["t"]
    # P50 lies in its bucket and stays; P95 does not, and no quantile is below the one before it.
    assert [tier.value_at(f"workload.prompt_tokens.{name}") for name in ("p50", "p95")] == [900, 900]
    assert [tier.value_at(f"fleet.{name}") for name in ("instances", "safety_factor")] == [6, 1.2]
    # Those of the next plan itself: 2.5 x its P95, and 2 s x 30 rps, of which 48 to 54 fit.
    assert [tier.value_at(f"guardrails.{name}") for name in ("queue_breaker", "max_prompt_tokens")] == [51, 2250]
    assert tier.curve == PLAN.tiers["t"].curve
    text = next_plan_text(found, proposed)
    assert "# - fleet instances: 10 -> 6 (-40%)" in text
    assert "# Shrink from 10 to 6 replicas (likely)." in text
    assert "t: fleet instances: 10 -> 6 (-40%)" in found.plan_changes


@pytest.mark.parametrize("prompts", [150.0, 800.0, 2600.0])
@pytest.mark.parametrize(
    "guardrails", [None, {"max_prompt_tokens": 1300, "queue_breaker": 1}, {"max_generation_tokens": 90_000}]
)
def test_next_guardrails_fit_the_next_plan(prompts: float, guardrails: dict[str, float] | None) -> None:
    proposed = proposed_from(plan(guardrails=guardrails), prompts=prompts)
    assert not [row.text for row in check_plan(proposed, CATALOGUE) if row.path.startswith("tiers.t.guardrails")]


def test_next_plan_with_empty_part_reads() -> None:
    tier = proposed_from(plan(slo={}, workload={"archetype": "batch"})).tiers["t"]
    assert tier.value_at("slo.ttft_p99_seconds") is None
    assert tier.value_at("workload.archetype") == "batch"


def test_fleet_of_no_tier_says_so() -> None:
    found, _ = report(replace(past(PLAN, tier_past(PLAN, [])), tiers=()))
    assert found.headline == "No tier is watched: the configuration names none."


def message_of(link: str = "", **parts: Any) -> tuple[str, str]:
    """Subject and body of the message of a week's report with these fields."""
    return message(json.loads(report_json(replace(reported(PLAN, hours())[0], **parts))), link)


def test_message_has_headline_and_verdicts() -> None:
    subject, body = message_of("https://w/reports/2026-11-09/report.html")
    assert subject == "Shrink t: 480 USD a day less."
    first, last = body.split("\n\n")
    assert first == reported_tier().verdict
    assert last == "Mon 02 Nov 00:00 UTC to Mon 09 Nov 00:00 UTC: https://w/reports/2026-11-09/report.html"
    assert message_of(simulated=True)[1].startswith("Simulated: none of this traffic is real")


def test_line_ends_begin_no_header() -> None:
    hostile = "Grow a\r\nBcc: everybody@example.com\x1b[2J\u2028x"
    assert message_of(headline=hostile)[0] == "Grow a Bcc: everybody@example.com [2J x"
    assert len(message_of(headline="x" * 1000)[0]) == 180


def test_many_tiers_are_counted() -> None:
    body = message_of(tiers=(reported_tier(),) * (MOST_TIERS + 3))[1]
    assert body.count("t: shrink from 10 to 6 replicas") == MOST_TIERS
    assert "3 more tiers are in the report." in body
