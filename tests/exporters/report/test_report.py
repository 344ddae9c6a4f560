"""The report as data and as text: what it says of a whole week, of weeks that are none, and that its schema holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import jsonschema
import pytest
import yaml
from report_samples import DAY, HOUR, START, WEEK, finding, hour, hours, past, plan, reported, tier_past

from exporters.documents.prewarm import PrewarmValue, Strategy
from exporters.report.build import report
from exporters.report.findings import clock_change
from exporters.report.formats import observed_text, report_html, report_markdown
from exporters.report.inputs import Prewarming
from exporters.report.monitoring import judge_row
from exporters.report.next_plan import next_plan_text
from exporters.report.records import Report, TierReport, report_json, report_schema
from rules.catalogue.registry import CATALOGUE
from rules.confidence import Certainty
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan.checks import check_plan
from rules.plan.schema import Plan, parse_plan
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.finding import Finding, Transition, UnknownSpan
from rules.verdicts.verdict import Status, Subject

PLAN = plan()


def week(**parts: object) -> TierReport:
    return reported(PLAN, hours(), **parts)[0].tiers[0]


def test_the_verdict_says_what_to_do_and_the_money() -> None:
    assert week().verdict == (
        "t: shrink from 10 to 6 replicas (likely); it costs 1,200 USD a day, the proposal saves 480 USD a day; "
        "production confirms the benchmark up to 41% of the usable load."
    )


def test_the_headline_adds_up_the_money_of_one_currency() -> None:
    found, _ = reported(PLAN, hours())
    assert found.headline == "Shrink t: 480 USD a day less."


def test_the_json_holds_by_its_schema_and_reads_back() -> None:
    for several in (hours(), hours(84), []):
        found, _ = reported(PLAN, several)
        whole = json.loads(report_json(found))
        jsonschema.Draft202012Validator(report_schema()).validate(whole)
        assert whole["schema"] == 2
        assert whole["tiers"][0]["proposal"]["kind"] == found.tiers[0].proposal.kind


def test_the_schema_refuses_what_is_no_report() -> None:
    found, _ = reported(PLAN, hours())
    whole = json.loads(report_json(found))
    del whole["tiers"][0]["proposal"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(report_schema()).validate(whole)


def test_every_row_of_the_monitoring_table_has_target_trend_and_verdict() -> None:
    before = hour(-168, 10.0)
    rows = {one.key: one for one in week(before=before).monitoring}
    assert len(rows) == 32
    used = rows["fleet_utilization"]
    assert (used.status, used.certainty) == ("warning", "certain")
    assert used.observed.value == pytest.approx(2 / 7.33333333)
    assert used.change == pytest.approx(1.0)
    assert rows["ttft_p99_seconds"].target.text == "SLO 2 s"
    assert rows["completed_rps"].observed.value == pytest.approx(20.0)


def test_what_nobody_measures_is_not_healthy() -> None:
    memory = next(one for one in week().monitoring if one.key == "gpu_memory_utilization")
    assert (memory.observed.gap, memory.status) == ("not_exposed", "unknown")


def test_a_row_tells_how_often_its_rules_fired() -> None:
    fired = (
        finding("KvCacheCascade", 10, 12, Status.CRITICAL, sentence="It was full"),
        finding("KvCacheCascade", 20, 21),
    )
    row = next(one for one in week(findings=fired).monitoring if one.key == "kv_utilization")
    assert row.status == "critical"
    assert row.sentence == "fired twice, 3 h in all; at its worst: It was full"


def test_the_range_of_a_level_is_called_instants_and_the_rule_says_of_how_many_hours_it_speaks() -> None:
    found, _ = reported(PLAN, hours())
    row = next(one for one in found.tiers[0].monitoring if one.key == "kv_utilization")
    assert row.observed.high is not None
    assert "% (instants " in observed_text(row, "")
    assert "% (instants " in report_html(found)
    slow = next(one for one in found.tiers[0].monitoring if one.key == "ttft_p99_seconds")
    assert "instants" not in observed_text(slow, "")


def test_a_tier_that_is_kept_has_no_warning_sign_unless_a_finding_that_alerts_is_open() -> None:
    kept = plan(fleet={"instances": 6})
    seen = hours(replicas=6)
    flap = finding("QueueGrowing", 24, 25)

    def status(one: Plan, *findings: Finding) -> tuple[str, str]:
        found = reported(one, seen, findings=findings)[0].tiers[0]
        return found.proposal.kind, found.status

    assert status(kept, flap) == ("keep", "ok")
    assert status(kept, replace(flap, ended_at=None)) == ("keep", "warning")
    likely = tuple(replace(one, certainty=Certainty.LIKELY) for one in flap.transitions)
    worst = replace(flap.worst, certainty=Certainty.LIKELY)
    assert status(kept, replace(flap, ended_at=None, worst=worst, transitions=likely)) == ("keep", "ok")
    assert status(kept, replace(flap, ended_at=None, rule="KvCacheUnderused")) == ("keep", "ok")
    assert status(plan(fleet={"instances": 3}), flap) == ("grow", "warning")
    felt = finding("TtftSloBurn", 24, 25, Status.CRITICAL)
    assert status(kept, felt) == ("keep", "critical"), "users felt it in this time"


def test_every_question_has_an_answer_with_the_lengths_it_was_measured_at() -> None:
    found = week().questions
    assert len(found) == 9
    assert all(one.lengths == found[0].lengths for one in found)
    assert (
        found[0].lengths
        == "at prompts P50 500 to 1,000 tokens, P95 500 to 1,000 tokens; outputs P50 50 to 100 tokens, P95 50 to 100 tokens"
    )
    said = {one.key: one.numbers for one in found}
    # 20 rps x 80 tokens on 20 GPUs of 80 GB.
    assert said["efficiency"]["tokens_per_second_per_gpu"].value == pytest.approx(80.0)
    assert said["memory"]["tokens_per_second_per_gb_hbm"].value == pytest.approx(1.0)
    assert said["dollar"]["rps_per_gpu"].value == pytest.approx(1.0)
    assert said["dollar"]["cost_per_million_tokens"].value == pytest.approx(50 / (1600 * 3600) * 1e6)
    ttft = said["dollar"]["ttft_p99_seconds_per_money_an_hour"]
    assert (ttft.low, ttft.high) == (pytest.approx(0.05 / 5), pytest.approx(0.1 / 5))
    assert said["bound"]["prompt_by_generated_tokens"].value == pytest.approx(10.0)
    assert "MFU not exposed, MBU not exposed" in found[0].answer


def test_mfu_and_mbu_are_answered_where_the_engine_estimates_them() -> None:
    """99 TFLOP and 1.675 TB each second of a GPU: a tenth of an H100's 990, half of its 3.35."""
    estimated = {"estimated_flops": 99e12, "estimated_read_bytes": 1.5e12, "estimated_write_bytes": 0.175e12}
    week = [
        replace(one, counters={**one.counters, **{name: rate * 36_000 for name, rate in estimated.items()}})
        for one in hours()
    ]
    for precision, share in (("bf16", "MFU 10.0%"), ("fp8", "MFU not in plan")):
        found = reported(plan(precision={"weights": precision}), week)[0].tiers[0].questions[0]
        assert f"{share}, MBU 50.0%" in found.answer
        told = {name: reading.value for name, reading in found.numbers.items() if isinstance(reading, Reading)}
        assert (told["mbu"], told.get("mfu")) == (
            pytest.approx(0.5),
            pytest.approx(0.1) if precision == "bf16" else None,
        )


def test_without_lengths_no_number_may_be_compared() -> None:
    bare = [replace(one, histograms={}) for one in hours()]
    found = reported(PLAN, bare)[0].tiers[0]
    assert found.questions[0].lengths == "lengths are not known: compare these numbers with nothing"


def test_the_week_by_hour_is_by_the_users_clock() -> None:
    found = {(one.weekday, one.hour): one for one in reported(PLAN, hours(), zone="Europe/Berlin")[0].tiers[0].week}
    # Busy from 8 to 20 UTC is 9 to 21 in winter.
    assert found[0, 8].utilization == pytest.approx(1 / 7.33333333)
    assert found[0, 9].utilization == pytest.approx(3 / 7.33333333)
    assert len(found) == 168


def test_a_week_without_data_says_so_everywhere() -> None:
    found, proposed = reported(PLAN, [])
    tier = found.tiers[0]
    assert tier.verdict == "t: nothing was seen in this time, so nothing is known and nothing is proposed."
    assert tier.status == "unknown"
    assert {row.status for row in tier.monitoring} == {"unknown"}
    assert tier.quality.remarks[0].startswith("Nothing of this tier was seen from Mon 02 Nov 00:00 UTC to ")
    assert (tier.proposal.kind, found.plan_changes, proposed) == ("no_recommendation", (), PLAN)


def test_a_tier_that_vanished_says_when_it_was_last_seen() -> None:
    remark = week_of([], before=hour(-5, 10.0)).quality.remarks[0]
    assert "it was last seen at Sun 01 Nov 20:00 UTC. Is it gone? Then take it out of the plan." in remark


def week_of(several: list, **parts: object) -> TierReport:
    return reported(PLAN, several, **parts)[0].tiers[0]


def test_a_tier_that_vanished_within_the_week_says_since_when() -> None:
    remarks = week_of(hours(96)).quality.remarks
    assert any(
        one.startswith("Nothing of this tier was seen since Fri 06 Nov 00:00 UTC: what is said") for one in remarks
    )


def test_half_a_week_says_how_much_and_where_the_hole_is() -> None:
    found = week_of([one for n, one in enumerate(hours()) if not 24 <= n < 108])
    assert found.quality.remarks[0] == (
        "Only 84 of 168 hours were seen; the longest hole is 3 d 12 h, Tue 03 Nov 00:00 UTC to Fri 06 Nov 12:00 UTC."
    )
    assert found.proposal.kind == "no_recommendation"


def test_a_plan_that_changed_on_wednesday_says_what_rests_on_which() -> None:
    whole = tier_past(PLAN, hours())
    seen = replace(whole.resize.seen, versions=("old", "new"), plan_hours=whole.resize.seen.plan_hours[-100:])
    changed = TimelineEvent(t=START + 68 * HOUR, kind=TimelineKind.PLAN, tier="t", replica=None, text="another plan")
    one = replace(whole, resize=replace(whole.resize, seen=seen), events=(changed,))
    remark = report(past(PLAN, one))[0].tiers[0].quality.remarks[0]
    assert remark == (
        "The plan changed on Wed 04 Nov 20:00 UTC: the comparison with the benchmark, the curve and fleet utilisation rest on the "
        "100 hours since then; traffic, cost and incidents on the whole time."
    )


def test_the_clock_that_changed_is_told() -> None:
    # 25 October 2026: the clocks of Europe went back.
    begin = START - 10 * DAY
    assert clock_change(begin, begin + WEEK, "UTC") == ""
    assert clock_change(begin, begin + WEEK, "Europe/Berlin").startswith(
        "The clock in Europe/Berlin was set back by 1 h on Sun 25 Oct: "
    )
    assert clock_change(START, START + WEEK, "Europe/Berlin") == ""


def test_incidents_come_stage_by_stage_with_the_alerts_they_explain() -> None:
    steps = tuple(
        Transition(t=START + 10 * HOUR + 60 * at, status=Status.WARNING, stage=at, certainty=Certainty.CERTAIN)
        for at in (1, 2, 3)
    )
    cascade = finding("KvCacheCascade", 10, 11, replica="r1", transitions=steps)
    tied = Diagnosis(
        rule="KvCacheCascade",
        subject=Subject(tier="t", replica="r1"),
        began_at=cascade.started_at,
        certain=True,
        sentence="why",
    )
    alert = ExternalAlert(
        name="Slow",
        labels=(),
        summary="",
        started_at=START + 10.1 * HOUR,
        ended_at=None,
        heard_at=START,
        tier="t",
        diagnosis=tied,
    )
    other = replace(alert, name="Other", diagnosis=None)
    found = week(findings=(cascade, finding("UtilizationTrap", 1, None)), foreign=(alert, other)).incidents
    assert [one.rule for one in found] == ["KvCacheCascade"]
    assert [step.stage for step in found[0].worst.transitions] == [1, 2, 3]
    assert [(row.name, row.text) for row in found[0].foreign] == [("Slow", "why")]


def test_what_was_not_known_is_added_up_by_rule_and_reason() -> None:
    spans = tuple(
        UnknownSpan(
            rule="TtftDivergence",
            subject=Subject(tier="t"),
            reason=Gap.SCRAPE_FAILED,
            text="",
            started_at=a,
            ended_at=b,
        )
        for a, b in ((START - HOUR, START + HOUR), (START + 5 * HOUR, START + 7 * HOUR), (START + WEEK - HOUR, None))
    )
    # A second replica that is silent at the same time adds nothing.
    spans += tuple(replace(span, subject=Subject(tier="t", replica="r2")) for span in spans)
    found = week(unknowns=spans).quality.blind
    assert [(one.rule, one.seconds) for one in found] == [("TtftDivergence", 4 * HOUR)]


@pytest.mark.parametrize(("seconds", "said"), [(120.0, "ok"), (8 * HOUR, "unknown")])
def test_a_rule_that_was_silent_for_minutes_after_a_restart_was_judged_in_this_week(seconds: float, said: str) -> None:
    silent = UnknownSpan(
        rule="RequestsRefused",
        subject=Subject(tier="t"),
        reason=Gap.TOO_FEW_REQUESTS,
        text="120 s seen, 180 s are needed",
        started_at=START + DAY,
        ended_at=START + DAY + seconds,
    )
    assert judge_row(("RequestsRefused",), tier_past(PLAN, hours(), unknowns=(silent,))).status == said


GPU_RULES = ("GpuComputeLow", "GpuSaturated", "GpuUtilizationShortfall")


@pytest.mark.parametrize(
    ("rules", "silent_rules", "gap", "status"),
    [
        # The plan has no gpu_utilization: GpuUtilizationShortfall is not in it, the others were judged.
        (GPU_RULES, (), Gap.NOT_IN_PLAN, "ok"),
        (GPU_RULES, ("GpuSaturated",), Gap.OUTSIDE_BENCHMARK, "ok"),
        (GPU_RULES, ("GpuComputeLow",), Gap.SCRAPE_FAILED, "unknown"),
        (GPU_RULES, ("GpuComputeLow", "GpuSaturated"), Gap.NOT_EXPOSED, "unknown"),
        (("GpuUtilizationShortfall",), (), Gap.NOT_IN_PLAN, "unknown"),
    ],
)
def test_a_gap_that_waiting_does_not_end_hides_no_rule_that_was_judged(
    rules: tuple[str, ...], silent_rules: tuple[str, ...], gap: Gap, status: str
) -> None:
    spans = tuple(
        UnknownSpan(rule=rule, subject=Subject(tier="t"), reason=gap, text="", started_at=START, ended_at=None)
        for rule in silent_rules
    )
    assert judge_row(rules, tier_past(PLAN, hours(), unknowns=spans)).status == status


def worth() -> PrewarmValue:
    strategies = (
        Strategy(name="reactive", violation_minutes=60, late_requests=500, replica_hours=900, money=4500),
        Strategy(name="pre-warming", violation_minutes=5, late_requests=20, replica_hours=1000, money=5000),
        Strategy(name="perfect foresight", violation_minutes=0, late_requests=0, replica_hours=850, money=4250),
    )
    return PrewarmValue(
        start=START,
        end=START + WEEK,
        zone="UTC",
        requests=1e6,
        strategies=strategies,
        ours="pre-warming",
        perfect="perfect foresight",
        reacting="reactive",
        recommended="pre-warming",
        short_reason="",
        covered_ratio=None,
        reason="It is worth it.",
        currency="USD",
    )


def test_pre_warming_says_what_it_saved_and_cost() -> None:
    told = Prewarming(
        worth=worth(),
        method="profile",
        naive="same hour yesterday",
        covered_ratio=0.96,
        error_ratio=0.8,
        forecasts=168,
    )
    part = week(prewarming=told).prewarming
    assert part.saved is not None
    assert (part.saved.replica_hours, part.saved.money, part.saved.late_requests) == (-100, -500, 480)
    text = report_markdown(reported(PLAN, hours(), prewarming=told)[0])
    assert (
        "against reacting to load: 100 replica-hours more (500 USD), 480 late requests fewer; the last 7 days: " in text
    )
    assert "96% of 168 were high enough (95% are meant to be); error 0.80 times that of same hour yesterday" in text


def test_margin_differs_from_prewarming_savings() -> None:
    name = "pre-warming with the margin"
    roomy = Strategy(name=name, violation_minutes=1, late_requests=4, replica_hours=1120, money=5600)
    told = Prewarming(worth=replace(worth(), strategies=(*worth().strategies, roomy), with_margin=name))
    part = week(prewarming=told).prewarming
    assert part.saved is not None
    assert (part.saved.replica_hours, part.saved.money, part.saved.late_requests) == (-100, -500, 480)
    text = report_markdown(reported(PLAN, hours(), prewarming=told)[0])
    assert f"reactive 4,500 USD; pre-warming 5,000 USD; perfect foresight 4,250 USD; {name} 5,600 USD" in text


def test_without_a_forecast_the_report_says_why() -> None:
    part = week(no_prewarming="forecasting is switched off").prewarming
    assert part.missing == "forecasting is switched off"
    assert "Not known: forecasting is switched off" in report_markdown(
        reported(PLAN, hours(), no_prewarming="forecasting is switched off")[0]
    )


def test_the_markdown_has_every_section_in_its_order() -> None:
    text = report_markdown(reported(PLAN, hours())[0])
    titles = re.findall(r"^### (.*)$", text, flags=re.MULTILINE)
    assert titles == [
        "Replicas and cost (steps 11 and 12)",
        "Proposal",
        "Plan against production",
        "Workload (step 1)",
        "Capacity of a replica",
        "Idle capacity, and levers that overlap",
        "Pre-warming",
        "Guardrails",
        "Questions of the sizing guide (8.4)",
    ]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(found: Report) -> _Page:
    page = _Page()
    page.feed(report_html(found))
    page.close()
    return page


@pytest.mark.parametrize("count", [168, 84, 0])
def test_the_page_is_one_well_formed_file_without_scripts_or_anything_from_elsewhere(count: int) -> None:
    page = page_of(reported(PLAN, hours(count))[0])
    assert page.open == []
    assert "script" not in {tag for tag, _ in page.tags}
    named = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(value and value.startswith(("#", "data:")) for value in named)
    assert "url(" not in report_html(reported(PLAN, hours(count))[0])


def test_page_draws_arrivals_and_week() -> None:
    charts = [
        attributes["aria-label"]
        for tag, attributes in page_of(reported(PLAN, hours())[0]).tags
        if tag == "svg" and "aria-label" in attributes
    ]
    assert charts == [
        "requests per second by hour, 168 hours",
        "fleet utilisation by hour of the week",
    ]


def test_names_and_sentences_of_others_are_escaped() -> None:
    bad = finding("KvCacheCascade", 10, 11, sentence="<script>alert(1)</script>", replica='"><img>')
    text = report_html(reported(PLAN, hours(), findings=(bad,))[0])
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


def test_the_next_plan_is_valid_and_says_what_was() -> None:
    whole = past(PLAN, tier_past(PLAN, hours()))
    found, proposed = report(whole)
    assert proposed is not None
    text = next_plan_text(found, proposed)
    assert parse_plan(yaml.safe_load(text)) == proposed
    tier = proposed.tiers["t"]
    assert tier.fleet is not None
    assert tier.workload is not None
    assert tier.workload.prompt_tokens is not None
    assert tier.guardrails is not None
    # P50 lies in its bucket and stays; P95 does not, and no quantile is below the one before it.
    assert (tier.workload.prompt_tokens.p50, tier.workload.prompt_tokens.p95) == (900, 900)
    assert (tier.fleet.instances, tier.fleet.safety_factor) == (6, 1.2)
    # Those of the next plan itself: 2.5 x its P95, and 2 s x 30 rps, of which 48 to 54 fit.
    assert (tier.guardrails.queue_breaker, tier.guardrails.max_prompt_tokens) == (51, 2250)
    assert not [one for one in check_plan(proposed, CATALOGUE) if one.path.startswith("tiers.t.guardrails")]
    assert tier.curve == PLAN.tiers["t"].curve
    assert "# - fleet instances: 10 -> 6 (-40%)" in text
    assert "# Shrink from 10 to 6 replicas (likely)." in text
    assert "t: fleet instances: 10 -> 6 (-40%)" in found.plan_changes


@pytest.mark.parametrize("prompts", [150.0, 800.0, 2600.0])
@pytest.mark.parametrize(
    "guardrails", [None, {"max_prompt_tokens": 1300, "queue_breaker": 1}, {"max_generation_tokens": 90_000}]
)
def test_guardrails_of_the_next_plan_fit_the_next_plan(prompts: float, guardrails: dict[str, float] | None) -> None:
    guarded = plan(guardrails=guardrails)
    _, proposed = report(past(guarded, tier_past(guarded, hours(prompts=prompts))))
    assert proposed is not None
    assert not [one.text for one in check_plan(proposed, CATALOGUE) if one.path.startswith("tiers.t.guardrails")]


def test_a_next_plan_with_an_empty_part_can_be_read() -> None:
    batch = plan(slo={}, workload={"archetype": "batch"})
    whole = past(batch, tier_past(batch, hours()))
    found, proposed = report(whole)
    assert proposed is not None
    assert parse_plan(yaml.safe_load(next_plan_text(found, proposed))) == proposed


def test_a_tier_without_a_recommendation_keeps_its_plan() -> None:
    assert reported(PLAN, hours(84))[1] == PLAN


def test_a_simulated_week_says_so_on_every_format() -> None:
    whole = past(PLAN, tier_past(PLAN, hours()), simulated=True)
    found, proposed = report(whole)
    assert proposed is not None
    said = (report_html(found), report_markdown(found), next_plan_text(found, proposed))
    assert all("imulated" in text.replace("SIMULATED", "Simulated") for text in said)
    assert found.simulated


def test_a_fleet_of_no_tier_says_so() -> None:
    found, _ = report(replace(past(PLAN, tier_past(PLAN, [])), tiers=()))
    assert found.headline == "No tier is watched: the configuration names none."
