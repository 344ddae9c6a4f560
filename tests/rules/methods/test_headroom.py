from dataclasses import replace
from typing import Any

import judging_samples
import pytest
from days_samples import OUTPUT_TOKENS, PROMPT_TOKENS, binned, context, hour, hours, unknown, verdict
from judging_samples import minute
from prose import explain

from rules.confidence import Certainty
from rules.evaluator import long_rules
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown, Verdict

WEEK, TWO_WEEKS = 168, 336


def live(rps: float, count: int = 15, **more: Any) -> list[Window]:
    tokens = {"prompt_tokens": 60 * rps * PROMPT_TOKENS, "generation_tokens": 60 * rps * OUTPUT_TOKENS}
    counters = {**tokens, **more.pop("counters", {})}
    return judging_samples.each(count, lambda n: minute(n, rps=rps, counters=counters, **more))


def headroom(several: list[Window]) -> Verdict:
    return judging_samples.verdict("NoHeadroom", context(), {"a": several, "b": several})


def test_full_quarter_hour_leaves_no_headroom() -> None:
    found = headroom(live(5.7))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Fleet utilisation is 95.0%; 3 replicas are needed (63.3% used), 2.0 were ready; "
        "over 15 min; "
        "1 more cost 60 USD a day"
    )
    assert found.actions[0] == "Add a replica of this tier"


@pytest.mark.parametrize(("rps", "status"), [(5.38, Status.OK), (5.42, Status.WARNING), (7.0, Status.WARNING)])
def test_up_to_ninety_percent_there_is_headroom(rps: float, status: Status) -> None:
    assert headroom(live(rps)).status is status


def test_insufficient_replica_tells_how_many_do() -> None:
    """18 rps of usable 6 on each of two replicas: one more would leave 200 %, five leave 85.7 %."""
    found = headroom(live(18.0))
    assert explain(found) == (
        "Fleet utilisation is 300.0%; 7 replicas are needed (85.7% used), 2.0 were ready; "
        "over 15 min; "
        "5 more cost 300 USD a day"
    )


def test_longer_prompts_are_more_work() -> None:
    made = live(4.0, counters={"prompt_tokens": 240 * 2 * PROMPT_TOKENS})
    found = judging_samples.verdict("NoHeadroom", context(), made)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "Fleet utilisation is 100.0%; 2 replicas are needed (50.0% used), 1.0 were ready; "
        "over 15 min; "
        "1 more cost 60 USD a day"
    )
    assert (found.observed.low, found.observed.high) == (pytest.approx(2 / 3), pytest.approx(4 / 3))
    both = live(4.0, counters={"prompt_tokens": 480 * PROMPT_TOKENS, "generation_tokens": 480 * OUTPUT_TOKENS})
    assert judging_samples.verdict("NoHeadroom", context(), both).certainty is Certainty.CERTAIN


QUANTILES = {"prompt_tokens": {"p50": 300, "p95": 900}, "generation_tokens": {"p50": 80, "p95": 200}}
GUARDRAILS = {"max_prompt_tokens": 2000, "max_generation_tokens": 400}


@pytest.mark.parametrize(
    ("rps", "status", "certainty"),
    [
        (2.0, Status.OK, Certainty.CERTAIN),
        (5.0, Status.OK, Certainty.LIKELY),
        (5.7, Status.WARNING, Certainty.LIKELY),
        (12.0, Status.WARNING, Certainty.CERTAIN),
    ],
)
def test_quantile_plan_gives_bounds(rps: float, status: Status, certainty: Certainty) -> None:
    """Planned means lie between 180 and 655 tokens of prompts, 46 and 150 of outputs; 400 and 100 come."""
    found = judging_samples.verdict("NoHeadroom", context(workload=QUANTILES, guardrails=GUARDRAILS), live(rps))
    assert (found.status, found.certainty) == (status, certainty)
    assert (found.observed.low, found.observed.high) == (
        pytest.approx(rps / 6 * 400 / 655, rel=1e-3),
        pytest.approx(rps / 6 * 400 / 180, rel=1e-3),
    )


def test_ten_minutes_are_enough() -> None:
    short = judging_samples.unknown("NoHeadroom", context(), live(5.7, 9))
    assert (short.reason, short.text) == (Gap.TOO_FEW_REQUESTS, "540 s seen, 600 s are needed")
    assert judging_samples.verdict("NoHeadroom", context(), live(5.7, 10)).status is Status.WARNING


def test_burst_is_no_lack_of_headroom() -> None:
    over = [*judging_samples.each(11, lambda n: minute(n, rps=7.0)), *(minute(n, rps=4.0) for n in range(11, 15))]
    assert headroom(over).status is Status.OK
    assert headroom(over).sentence.endswith("up to 90% leaves headroom; no longer in the last quarter of the time")
    straddling = [*live(4.0, 11, counters={"prompt_tokens": 480 * PROMPT_TOKENS}), *live(1.0, 15)[11:]]
    assert (headroom(straddling).status, headroom(straddling).certainty) == (Status.OK, Certainty.LIKELY)
    full = [*live(9.0, 11), *live(1.0, 15)[11:]]
    assert (headroom(full).status, headroom(full).certainty) == (Status.OK, Certainty.CERTAIN)
    filling = judging_samples.each(15, lambda n: minute(n, rps=5.7 if n > 10 else 3.0))
    assert headroom(filling).status is Status.OK, "the hold has not passed"
    burst = judging_samples.each(15, lambda n: minute(n, rps=40.0 if n in (13, 14) else 3.0))
    assert headroom(burst).status is Status.OK


def test_headroom_needs_curve_and_price() -> None:
    bare = judging_samples.unknown("NoHeadroom", view_of("t", None), live(5.7))
    assert bare.reason is Gap.NOT_IN_PLAN
    unpriced = judging_samples.verdict("NoHeadroom", judging_samples.context(), live(5.7))
    assert explain(unpriced) == (
        "Fleet utilisation is 95.0%; 2 replicas are needed (47.5% used), 1.0 were ready; "
        "over 15 min; "
        "1 more cost 24 GPU-hours a day"
    )
    apart = judging_samples.unknown("NoHeadroom", context(pools=["prefill", "decode"]), live(5.7))
    assert apart.reason is Gap.NOT_IN_PLAN


def peaks(until: int = WEEK, high: float = 0.95) -> list[Window]:
    """Two full hours every day, the last day on which they come being that of hour `until`."""
    return hours(WEEK, lambda n: hour(n, used=high if n % 24 in (10, 11) and n < until else 0.3))


def test_daily_full_hours_leave_none() -> None:
    found = verdict("NoHeadroom", context(), peaks())
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Fleet utilisation is 95.0%; in the busiest 8 of 168 hours, up to 90% leaves headroom; "
        "in the busiest 8 of 168 hours; "
        "the report and `sizewatch prewarm` have the replicas needed then"
    )
    assert verdict("NoHeadroom", context(), peaks(high=0.89)).status is Status.OK


def test_full_hours_end_with_their_days() -> None:
    assert verdict("NoHeadroom", context(), peaks(until=130)).status is Status.OK
    twice = hours(WEEK, lambda n: hour(n, used=2.0 if n > 165 else 0.3))
    assert verdict("NoHeadroom", context(), twice).status is Status.OK, "two hours are not three"


def told(*results: RuleResult) -> dict[tuple[str, Subject], RuleResult]:
    return {(result.rule, result.subject): result for result in results}


def test_week_speaks_between_peaks() -> None:
    weekly = verdict("NoHeadroom", context(), peaks())
    calm, full = headroom(live(3.0)), headroom(live(5.7))
    assert long_rules.prefer_firing_result(calm, told(weekly)) == replace(weekly, t=calm.t)
    assert long_rules.prefer_firing_result(full, told(weekly)) is full
    healthy = verdict("NoHeadroom", context(), peaks(until=0))
    assert long_rules.prefer_firing_result(calm, told(healthy)) is calm
    silent = Unknown(t=calm.t, rule="NoHeadroom", subject=calm.subject, reason=Gap.NO_TRAFFIC)
    assert long_rules.prefer_firing_result(silent, told(healthy)) is silent
    assert long_rules.prefer_firing_result(calm, {}) is calm


def weeks(used: float = 0.36, **later: Any) -> list[Window]:
    """Two weeks; the second with more of the traffic, and what is given by keyword."""
    return hours(TWO_WEEKS, lambda n: hour(n, **({"used": 0.3} if n < WEEK else {"used": used, **later})))


def test_falling_yield_is_found() -> None:
    found = verdict("TokensPerGpuHourFalling", context(), weeks(used=0.24, replicas=3))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Tokens per GPU-hour went -20.0% in a week, traffic +20.0%; on 7 of 7 days; "
        "requests per replica -20.0%; "
        "tokens per request unchanged"
    )


def test_shorter_answers_are_named_as_what_moved() -> None:
    found = verdict("TokensPerGpuHourFalling", context(), weeks(tokens=60.0))
    assert found.status is Status.WARNING
    assert explain(found) == (
        "Tokens per GPU-hour went -28.0% in a week, traffic +20.0%; on 7 of 7 days; "
        "requests per replica +20.0%; "
        "tokens per request -40.0%"
    )


@pytest.mark.parametrize(
    ("used", "tokens", "status"),
    [
        (0.36, 76.0, Status.OK),
        (0.36, 74.0, Status.WARNING),
        (0.314, 80.0, Status.OK),
        (0.316, 80.0, Status.WARNING),
        (0.2, 50.0, Status.OK),
    ],
)
def test_yield_falls_by_a_tenth(used: float, tokens: float, status: Status) -> None:
    assert verdict("TokensPerGpuHourFalling", context(), weeks(used=used, tokens=tokens)).status is status


def test_three_bad_days_are_certain() -> None:
    def bad(days: int) -> list[Window]:
        return hours(
            TWO_WEEKS,
            lambda n: hour(n, used=0.3 if n < WEEK else 0.33, tokens=10.0 if n >= TWO_WEEKS - 24 * days else 100.0),
        )

    found = verdict("TokensPerGpuHourFalling", context(), bad(2))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert found.sentence.endswith("on 2 of 7 days")
    assert verdict("TokensPerGpuHourFalling", context(), bad(3)).certainty is Certainty.CERTAIN


@pytest.mark.parametrize("day", range(7))
def test_idle_weekends_make_no_fall(day: int) -> None:
    """Whatever weekday it is: both weeks hold each of them once."""

    def week_end(number: int) -> Window:
        quiet = (number // 24 + day) % 7 >= 5
        growth = 1.0 if number < WEEK else 1.1
        return hour(number, used=0.1 * growth if quiet else 0.3 * growth, replicas=6 if quiet else 4)

    assert verdict("TokensPerGpuHourFalling", context(), hours(TWO_WEEKS, week_end)).status is Status.OK


def test_yield_needs_two_weeks() -> None:
    assert unknown("TokensPerGpuHourFalling", context(), weeks()[1:]).reason is Gap.TOO_FEW_REQUESTS
    silent = hours(TWO_WEEKS, lambda n: hour(n, used=0.0 if n < WEEK else 0.3))
    assert unknown("TokensPerGpuHourFalling", context(), silent).reason is Gap.NO_TRAFFIC
    bare = unknown("TokensPerGpuHourFalling", view_of("t", None), weeks())
    assert bare.reason is Gap.NOT_IN_PLAN


def test_days_count_from_full_hour() -> None:
    several = weeks(used=0.24, replicas=3)
    for late in (0.0, 600.0, 3599.0):
        now = several[-1].end + late
        found = next(
            a
            for a in long_rules.evaluate_long_rules(context(), binned(several), now)
            if a.rule == "TokensPerGpuHourFalling"
        )
        assert (found.status, found.t) == (Status.WARNING, now)
    assert DAY_SECONDS == 24 * 3600
