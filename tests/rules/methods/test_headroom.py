"""Headroom and yield: one table of cases over minutes, one over weeks (fires, just within, too early, over)."""

from dataclasses import replace
from typing import Any

import judging_samples
import pytest
from days_samples import OUTPUT_TOKENS, PROMPT_TOKENS, answered, binned, context, hour, hours, verdict
from judging_samples import each, minute
from rule_cases import EARLY, FAIRLY, FINE, GUESSED, UNPLANNED, UNSEEN, WARNED, Case, check_case, check_result

from rules.confidence import Certainty
from rules.evaluator import long_rules
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown

HEADROOM, YIELD = "NoHeadroom", "TokensPerGpuHourFalling"
TIER, BARE = context(), view_of("t", None)
WEEK, TWO_WEEKS = 168, 336


def live(rps: float, count: int = 15, **more: Any) -> list[Window]:
    tokens = {"prompt_tokens": 60 * rps * PROMPT_TOKENS, "generation_tokens": 60 * rps * OUTPUT_TOKENS}
    counters = {**tokens, **more.pop("counters", {})}
    return each(count, lambda n: minute(n, rps=rps, counters=counters, **more))


def two(several: list[Window]) -> dict[str, list[Window]]:
    return {"a": several, "b": several}


LONGER = live(4.0, counters={"prompt_tokens": 240 * 2 * PROMPT_TOKENS})
BOTH_LONGER = live(4.0, counters={"prompt_tokens": 480 * PROMPT_TOKENS, "generation_tokens": 480 * OUTPUT_TOKENS})
CALM_END = live(1.0, 15)[11:]
OVER = [*each(11, lambda n: minute(n, rps=7.0)), *(minute(n, rps=4.0) for n in range(11, 15))]
FILLING = each(15, lambda n: minute(n, rps=5.7 if n > 10 else 3.0))
BURST = each(15, lambda n: minute(n, rps=40.0 if n in (13, 14) else 3.0))
STRADDLING = [*live(4.0, 11, counters={"prompt_tokens": 480 * PROMPT_TOKENS}), *CALM_END]


def lacking(used: str, needed: str, cost: str) -> str:
    return f"Fleet utilisation is {used}; {needed} were ready; over 15 min; {cost} a day"


THREE = lacking("95.0%", "3 replicas are needed (63.3% used), 2.0", "1 more cost 60 USD")
# 18 rps of usable 6 on each of two replicas: one more would leave 200 %, five leave 85.7 %.
SEVEN = lacking("300.0%", "7 replicas are needed (85.7% used), 2.0", "5 more cost 300 USD")
TWO = lacking("100.0%", "2 replicas are needed (50.0% used), 1.0", "1 more cost 60 USD")
UNPRICED = lacking("95.0%", "2 replicas are needed (47.5% used), 1.0", "1 more cost 24 GPU-hours")

LIVE_CASES = [
    Case("95 %", TIER, two(live(5.7)), WARNED, THREE),
    Case("just within 90 %", TIER, two(live(5.38)), FINE),
    Case("just above 90 %", TIER, two(live(5.42)), WARNED),
    Case("more than one takes", TIER, two(live(7.0)), WARNED),
    Case("insufficient by far", TIER, two(live(18.0)), WARNED, SEVEN),
    Case("longer prompts", TIER, LONGER, GUESSED, TWO),
    Case("all longer", TIER, BOTH_LONGER, WARNED),
    Case("nine minutes", TIER, live(5.7, 9), EARLY, "540 s seen, 600 s are needed"),
    Case("ten minutes", TIER, live(5.7, 10), WARNED),
    Case("over", TIER, two(OVER), FAIRLY, "up to 90% leaves headroom; no longer in the last quarter of the time"),
    Case("maybe full, and over", TIER, two(STRADDLING), FAIRLY),
    Case("surely full, and over", TIER, two([*live(9.0, 11), *CALM_END]), FINE),
    Case("before the hold", TIER, two(FILLING), FAIRLY),
    Case("a burst", TIER, two(BURST), FAIRLY),
    Case("no plan", BARE, live(5.7), UNPLANNED),
    Case("no price", judging_samples.context(), live(5.7), GUESSED, UNPRICED),
    Case("pools without rates", context(pools=["prefill", "decode"]), live(5.7), UNPLANNED),
]


@pytest.mark.parametrize("case", LIVE_CASES, ids=str)
def test_headroom_over_minutes(case: Case) -> None:
    check_case(HEADROOM, case)


def test_full_tier_needs_a_replica() -> None:
    found = judging_samples.verdict(HEADROOM, TIER, LONGER)
    assert found.actions[0] == "Add a replica of this tier"
    assert (found.observed.low, found.observed.high) == (pytest.approx(2 / 3), pytest.approx(4 / 3))


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
    found = judging_samples.verdict(HEADROOM, context(workload=QUANTILES, guardrails=GUARDRAILS), live(rps))
    assert (found.status, found.certainty) == (status, certainty)
    assert (found.observed.low, found.observed.high) == (
        pytest.approx(rps / 6 * 400 / 655, rel=1e-3),
        pytest.approx(rps / 6 * 400 / 180, rel=1e-3),
    )


def peaks(until: int = WEEK, high: float = 0.95) -> list[Window]:
    """Two full hours every day, the last day on which they come being that of hour `until`."""
    return hours(WEEK, lambda n: hour(n, used=high if n % 24 in (10, 11) and n < until else 0.3))


def weeks(used: float = 0.36, **later: Any) -> list[Window]:
    """Two weeks; the second with more of the traffic, and what is given by keyword."""
    return hours(TWO_WEEKS, lambda n: hour(n, **({"used": 0.3} if n < WEEK else {"used": used, **later})))


def bad(days: int) -> list[Window]:
    """Two weeks; on the last days with short answers."""
    first = TWO_WEEKS - 24 * days
    return hours(TWO_WEEKS, lambda n: hour(n, used=0.3 if n < WEEK else 0.33, tokens=10.0 if n >= first else 100.0))


def week_ends(day: int) -> list[Window]:
    """Quiet week ends from this day on, and more traffic on fewer replicas on the others."""

    def made(number: int) -> Window:
        quiet = (number // 24 + day) % 7 >= 5
        growth = 1.0 if number < WEEK else 1.1
        return hour(number, used=0.1 * growth if quiet else 0.3 * growth, replicas=6 if quiet else 4)

    return hours(TWO_WEEKS, made)


TWO_HOURS = hours(WEEK, lambda n: hour(n, used=2.0 if n > 165 else 0.3))
SILENT_FIRST = hours(TWO_WEEKS, lambda n: hour(n, used=0.0 if n < WEEK else 0.3))
BUSIEST = (
    "Fleet utilisation is 95.0%; in the busiest 8 of 168 hours, up to 90% leaves headroom; "
    "in the busiest 8 of 168 hours; the report and `sizewatch prewarm` have the replicas needed then"
)
FELL = "in a week, traffic +20.0%; on 7 of 7 days; requests per replica"
MORE_REPLICAS = f"Tokens per GPU-hour went -20.0% {FELL} -20.0%; tokens per request unchanged"
SHORTER = f"Tokens per GPU-hour went -28.0% {FELL} +20.0%; tokens per request -40.0%"

DAYS_CASES = [
    (HEADROOM, Case("full hours every day", TIER, peaks(), WARNED, BUSIEST)),
    (HEADROOM, Case("less full hours", TIER, peaks(high=0.89), FINE)),
    (HEADROOM, Case("full hours that ended", TIER, peaks(until=130), FINE)),
    (HEADROOM, Case("two hours are not three", TIER, TWO_HOURS, FINE)),
    (YIELD, Case("more replicas", TIER, weeks(used=0.24, replicas=3), WARNED, MORE_REPLICAS)),
    (YIELD, Case("shorter answers", TIER, weeks(tokens=60.0), WARNED, SHORTER)),
    (YIELD, Case("9 % less", TIER, weeks(tokens=76.0), FINE)),
    (YIELD, Case("11 % less", TIER, weeks(tokens=74.0), WARNED)),
    (YIELD, Case("hardly more traffic", TIER, weeks(used=0.314, tokens=80.0), FINE)),
    (YIELD, Case("just more traffic", TIER, weeks(used=0.316, tokens=80.0), WARNED)),
    (YIELD, Case("less traffic", TIER, weeks(used=0.2, tokens=50.0), FINE)),
    (YIELD, Case("two bad days", TIER, bad(2), GUESSED, "on 2 of 7 days")),
    (YIELD, Case("three bad days", TIER, bad(3), WARNED)),
    # Whatever weekday it is: both weeks hold each of them once.
    *((YIELD, Case(f"week ends from day {day}", TIER, week_ends(day), FINE)) for day in range(7)),
    (YIELD, Case("an hour less than two weeks", TIER, weeks()[1:], EARLY)),
    (YIELD, Case("nothing served before", TIER, SILENT_FIRST, UNSEEN)),
    (YIELD, Case("no plan", BARE, weeks(), UNPLANNED)),
]


@pytest.mark.parametrize(("rule", "case"), DAYS_CASES, ids=str)
def test_headroom_and_yield_over_days(rule: str, case: Case) -> None:
    assert isinstance(case.replicas, list)
    check_result(answered(rule, case.tier, case.replicas), case.wanted, case.text)


def told(*results: RuleResult) -> dict[tuple[str, Subject], RuleResult]:
    return {(result.rule, result.subject): result for result in results}


def test_week_speaks_between_peaks() -> None:
    weekly = verdict(HEADROOM, TIER, peaks())
    calm, full = (judging_samples.verdict(HEADROOM, TIER, live(rps)) for rps in (3.0, 5.7))
    assert long_rules.prefer_firing_result(calm, told(weekly)) == replace(weekly, t=calm.t)
    assert long_rules.prefer_firing_result(full, told(weekly)) is full
    healthy = verdict(HEADROOM, TIER, peaks(until=0))
    assert long_rules.prefer_firing_result(calm, told(healthy)) is calm
    silent = Unknown(t=calm.t, rule=HEADROOM, subject=calm.subject, reason=Gap.NO_TRAFFIC)
    assert long_rules.prefer_firing_result(silent, told(healthy)) is silent
    assert long_rules.prefer_firing_result(calm, {}) is calm


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
