"""The report as data and as text: what it says of a whole week, and that its schema holds."""

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from golden_text import check_golden
from page_reader import PageReader
from report_samples import (
    HOUR,
    START,
    USABLE,
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
from exporters.report.formats import curve_sentence, observed_text, report_html, report_markdown
from exporters.report.guide_tables import ROWS, TargetRange, judge_row, monitoring_rows
from exporters.report.records import TierReport, report_json, report_schema
from rules.catalogue.registry import CATALOGUE
from rules.confidence import Certainty
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan.checks import check_plan
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Plan, parse_plan
from rules.telemetry.signals import Gap, Missing, Reading
from rules.verdicts.verdict import Finding, IdleReplicas, Status

PLAN = plan()
WHOLE = reported(PLAN, hours())[0]

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


def test_quiet_week_reads_as_the_golden() -> None:
    found, proposed = reported(PLAN, hours(), no_prewarming="forecasting is switched off")
    assert proposed is not None
    check_golden(__file__, "quiet_week.md", report_markdown(found))
    check_golden(__file__, "quiet_week.plan.yaml", next_plan_text(found, proposed))


def test_eventful_week_reads_as_the_golden() -> None:
    """With a cascade on two replicas, alerts of another system of which it explains one, restarts and pre-warming."""
    cascades = [finding("KvCacheCascade", 10, 11, replica="r1"), finding("KvCacheCascade", 30, 31, replica="r7")]
    cascades.append(finding("KvCacheCascade", 50, 51, Status.CRITICAL, replica="r7", sentence="r7 was full"))
    alerts = [foreign_alert(*named, START + 10.1 * HOUR, None) for named in (("Slow", cascades[0]), ("Other", None))]
    forecast = {"method": "profile", "naive": "same hour yesterday", "covered_ratio": 0.96, "error_ratio": 0.8}
    restarts = [TimelineEvent(t=START, kind=TimelineKind.RESTART, tier="t", replica="r1", text="the engine restarted")]
    trap, price = finding("UtilizationTrap", 1, None), {"cost_per_day": 4.8, "currency": "USD"}
    none = IdleReplicas(replicas=0.04, ready=1, needed=1, minimum_warm=0, **price)
    found, _ = reported(
        plan(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 12}),
        hours(),
        findings=(*cascades, replace(trap, worst=replace(trap.worst, idle=none))),
        foreign=tuple(alerts),
        events=tuple(restarts),
        prewarming=Prewarming(worth=WORTH, forecasts=168, **forecast),
        before=hour(-168, 10.0),
    )
    check_golden(__file__, "eventful_week.md", report_markdown(found))
    # The titles of the squares of the week are left out.
    lines = [
        line for line in PageReader(report_html(found)).lines if not re.fullmatch(r"\w{3} \d+:00: \d+% used", line)
    ]
    check_golden(__file__, "eventful_week.txt", "\n".join(lines))


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
    assert 2 / used.observed.value == pytest.approx(USABLE)
    cost = row_of(tier, "cost_per_million_tokens")
    assert (cost.status, observed_text(cost, tier.currency)) == ("not_judged", "8.68 USD, -50%")
    assert row_of(tier, "completed_rps").observed.value == pytest.approx(20.0)
    assert (memory.observed.gap, memory.status) == ("not_exposed", "unknown"), "unmeasured is not healthy"


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


@pytest.mark.parametrize(("precision", "share", "mfu"), [("bf16", "MFU 10.0%", 0.1), ("fp8", "MFU not in plan", None)])
def test_estimated_mfu_and_mbu_are_answered(precision: str, share: str, mfu: float | None) -> None:
    """99 TFLOP and 1.675 TB each second of a GPU: a tenth of an H100's 990, half of its 3.35."""
    rates = {"estimated_flops": 99e12, "estimated_read_bytes": 1.5e12, "estimated_write_bytes": 0.175e12}
    estimated = {name: rate * 36_000 for name, rate in rates.items()}
    several = [replace(window, counters={**window.counters, **estimated}) for window in hours()]
    found = reported_tier(several, plan(precision={"weights": precision})).questions[0]
    assert f"; {share}, MBU 50.0%" in found.answer
    values = {name: value.value for name, value in found.numbers.items() if isinstance(value, Reading)}
    assert (values["mbu"], values.get("mfu")) == (pytest.approx(0.5), mfu and pytest.approx(mfu))


def test_numbers_without_lengths_compare_with_nothing() -> None:
    found = reported_tier([replace(window, histograms={}) for window in hours()])
    assert found.questions[0].lengths == "lengths are not known: compare these numbers with nothing"


def test_week_is_by_the_users_clock() -> None:
    found, _ = reported(PLAN, hours(), zone="Europe/Berlin", findings=(finding("QueueGrowing", 8, 9),))
    assert "Mon 02 Nov 09:00 CET, for 1 h: QueueGrowing fired from 02 Nov 09:00 to 10:00." in report_markdown(found)
    week = {(hour.weekday, hour.hour): hour.utilization for hour in found.tiers[0].week}
    # Busy from 8 to 20 UTC is 9 to 21 in winter.
    assert (1 / week[0, 8], 3 / week[0, 9], len(week)) == (pytest.approx(USABLE), pytest.approx(USABLE), 168)


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


@pytest.mark.parametrize("count", [168, 84, 0])
def test_page_is_whole_without_scripts(count: int) -> None:
    found, _ = reported(PLAN, hours(count))
    page = PageReader(report_html(found))
    assert "script" not in {tag for tag, _ in page.tags}
    named = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(value and value.startswith(("#", "data:")) for value in named)
    assert "url(" not in report_html(found)


def test_page_draws_arrivals_and_week() -> None:
    tags = PageReader(report_html(WHOLE)).tags
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
    assert parse_plan(yaml.safe_load(next_plan_text(found, proposed))) == proposed
    return proposed


@pytest.mark.parametrize("prompts", [150.0, 800.0, 2600.0])
@pytest.mark.parametrize(
    "guardrails", [None, {"max_prompt_tokens": 1300, "queue_breaker": 1}, {"max_generation_tokens": 90_000}]
)
def test_next_guardrails_fit_the_next_plan(prompts: float, guardrails: dict[str, float] | None) -> None:
    proposed = proposed_from(plan(guardrails=guardrails), prompts=prompts)
    assert not [row.text for row in check_plan(proposed, CATALOGUE) if row.path.startswith("tiers.t.guardrails")]


def test_no_replica_hours_are_not_told() -> None:
    same = replace(WORTH, strategies=tuple(replace(one, replica_hours=900.2) for one in WORTH.strategies))
    text = report_markdown(reported(plan(), hours(), prewarming=Prewarming(worth=same))[0])
    assert "against reacting to load: 480 late requests fewer; " in text


def test_next_plan_with_empty_part_reads() -> None:
    tier = proposed_from(plan(slo={}, workload={"archetype": "batch"})).tiers["t"]
    assert tier.value_at("slo.ttft_p99_seconds") is None
    assert tier.value_at("workload.archetype") == "batch"


TINY = plan(cost={"gpu_hour_price": 1e-5, "currency": "BTC"})
MANY = "Shrink t, t, t and 2 more: 0.0096 BTC a day less."


def test_headline_has_money_after_few_tiers() -> None:
    for count, headline in ((0, "No tier is watched: the configuration names none."), (5, MANY)):
        tier = tier_past(TINY, hours())
        assert report(replace(past(TINY, tier), tiers=(tier,) * count))[0].headline == headline


def test_messages_read_as_the_golden() -> None:
    """No end of a line in a headline begins a header, and a subject is cut."""
    parts: tuple[dict[str, Any], ...] = (
        {},
        {"simulated": True},
        {"headline": "Grow a\r\nBcc: everybody@example.com\x1b[2J\u2028x"},
        {"headline": "x" * 1000},
        {"tiers": WHOLE.tiers * (MOST_TIERS + 3)},
    )
    lines = []
    for changed in parts:
        subject, body = message(json.loads(report_json(replace(WHOLE, **changed))), "https://w/report.html")
        assert "\n" not in subject
        lines += [f"---- {subject}", body]
    check_golden(__file__, "messages.txt", "\n".join(lines))


def tier_at(utilization: float) -> TierReport:
    """A week in which the ten replicas are used to this share, evenly."""
    return reported_tier(hours(rps=lambda n: utilization * 10 * USABLE))


def cost(tier: TierReport, name: str = "measured") -> Any:
    return next(row for row in tier.costs if row.name == name)


def test_half_use_doubles_cost_a_token() -> None:
    low, high = tier_at(0.4), tier_at(0.8)
    assert (cost(low).utilization, cost(high).utilization) == (pytest.approx(0.4), pytest.approx(0.8))
    assert cost(low).money_a_day == cost(high).money_a_day == 1200.0
    assert cost(low).per_million_tokens == pytest.approx(2 * cost(high).per_million_tokens)
    # Half the replicas for the same traffic.
    proposed = cost(low, "proposed")
    assert low.proposal.replicas == 5
    assert proposed.utilization == pytest.approx(0.8)
    assert proposed.per_million_tokens == pytest.approx(cost(low).per_million_tokens / 2)
    assert "; the plan has no price;" in reported_tier(one=plan(cost=None)).verdict
    fewer = reported_tier(hours(replicas=8)).verdict
    assert "it costs 960 USD a day, the proposal saves 480 USD a day against the 10 planned replicas" in fewer


def test_targets_are_the_guides_unless_overridden() -> None:
    lora = {"lora": {"max_adapters": 8}}
    context = build_tier_context("t", plan(**lora).tiers["t"])
    own = {
        "UtilizationTrap": {"target": 0.5},
        "NoHeadroom": {"target": 0.7},
        "KvCacheUnderused": {"below": 0.6},
        "KvCacheNearCeiling": {"above": 0.95},
        "KvEviction": {"warning": 0.1},
        "GpuComputeLow": {"below": 0.4},
        "SpeculationAcceptanceLow": {"below": 0.7},
    }
    expected = {
        "fleet_utilization": ("60-80 %", "50-70 %"),
        "kv_utilization": ("75-90 %", "60-95 %"),
        "eviction_rate": ("below 5 %", "below 10 %"),
        "gpu_utilization": ("60-85 % while serving", "40-85 % while serving"),
        "speculative_acceptance": ("above 60 %", "above 70 %"),
        "adapters_active": ("up to 8 (max_adapters)", "up to 8 (max_adapters)"),
    }
    targets = {key: target for key, _, target, _ in ROWS if key in expected}
    assert {
        key: (target(context).text, target(replace(context, limits=own)).text) for key, target in targets.items()
    } == expected


@pytest.mark.parametrize(("value", "met"), [(0.495, False), (0.6, True), (0.8504, True), (0.86, False), (None, None)])
def test_value_outside_its_target_misses_it(value: float | None, met: bool | None) -> None:
    observed = Missing(gap=Gap.NO_TRAFFIC) if value is None else Reading(value=value, low=value, high=value, n=1)
    assert TargetRange("60-85 %", 0.6, 0.85).is_met(observed) is met
    assert TargetRange("as planned").is_met(observed) is None


def test_counts_of_replicas_read_as_the_golden() -> None:
    """Ten are planned for 50 rps; 30 rps at 7.33 a replica need 6 with the margin, 7 with a safety factor of 1.6."""
    tiers = {
        "safety factor": reported_tier(one=plan(fleet={"instances": 10, "safety_factor": 1.6, "minimum_warm": 2})),
        "as planned": reported_tier(one=plan(fleet={"instances": 6, "minimum_warm": 2})),
        "memory bound": reported_tier(hours(kv=0.8)),
    }
    lines = []
    for name, tier in tiers.items():
        counts = (tier.count.replicas, tier.count.without_safety, tier.count.safety_factor)
        text = (
            report_markdown(replace(WHOLE, tiers=(tier,))).partition("### Replicas and cost")[2].partition("\n\n|")[0]
        )
        lines += [f"---- {name}: {counts}, {tier.proposal.now} now", tier.proposal.sentence, text]
    check_golden(__file__, "counts.md", "\n".join(lines))


def test_load_is_measured_by_present_capacity() -> None:
    # 30 rps of ten replicas at 7.33.
    assert "none lost, are used to 41%: 59% headroom is left." in curve_sentence(WHOLE.tiers[0])
    assert row_of(WHOLE.tiers[0], "completed_rps").target.text == "up to 73.3 rps, 10 replicas at 7.33 rps"
    lower = reported_tier(one=plan(operating_point={"c_max": 8, "usable_rps": 5.0}))
    assert row_of(lower, "completed_rps").target.text == "up to 50 rps, 10 replicas at 5 rps"
    refuted = reported_tier(hours(ttft={0.08: 0.95, 0.9: 0.05}))
    usable = refuted.curve.usable and refuted.curve.usable.rps
    assert usable < 0.95 * 7.33
    assert (
        row_of(refuted, "completed_rps").target.text == f"up to {10 * usable:.3g} rps, 10 replicas at {usable:.3g} rps"
    )


def test_utilisation_is_of_the_present_plan() -> None:
    """The re-sizing has it; the sum of all hours would be another number where the plan changed."""
    past = tier_past(plan(), hours())
    apart = replace(past, resize=replace(past.resize, utilization=Reading(value=0.123, low=0.1, high=0.2, n=9.0)))
    assert next(row for row in monitoring_rows(apart) if row.key == "fleet_utilization").observed.value == 0.123
