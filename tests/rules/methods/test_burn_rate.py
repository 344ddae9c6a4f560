"""Burn rates by hand: 180 requests a minute, 1 % of which may be slower than the promised 0.26 s."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import FAST, SLOW, START, add_minute, context, each, seen, unknown, verdict
from judging_samples import minute as minute_of_two

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator import tier_minutes, tier_rules
from rules.methods.burn_rate import PERIOD_SECONDS, RUNGS, format_span
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.telemetry.wording import split_claim
from rules.verdicts import error_budget
from rules.verdicts.error_budget import Budget
from rules.verdicts.verdict import FIRING, RuleResult, Status, Verdict

TTFT, TPOT, ITL, E2E = "TtftSloBurn", "TpotSloBurn", "ItlSloBurn", "E2eSloBurn"
EVERY = pytest.mark.parametrize("rule", [TTFT, TPOT, ITL, E2E])
FAMILIES = ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds")
PROMISED = dict.fromkeys(("ttft_p99_seconds", "tpot_p99_seconds", "itl_p99_seconds", "e2e_p99_seconds"), 0.26)
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY
HOUR = 3600.0
HOURLY = 180.0 * 60


def minute(number: float, **more: Any) -> Window:
    """A minute whose requests took as long by every family; each has one gap between two output events."""
    made = minute_of_two(number, **more)
    return replace(made, histograms=dict.fromkeys(FAMILIES, made.histograms["ttft_seconds"]))


def tier(**more: Any) -> TierContext:
    return context(slo=PROMISED, **more)


def hours(shares: Mapping[int, float], count: int = 72) -> list[BinnedWindow]:
    """So many hours before START; `shares` says of which of them (1 the latest) how much was slow."""
    made = []
    for back in range(count, 0, -1):
        slow = HOURLY * shares.get(back, 0.0)
        latencies = seen({SLOW: slow, FAST: HOURLY - slow})
        window = Window(
            start=START - back * HOUR,
            end=START - back * HOUR + HOUR,
            expected_seconds=HOUR,
            covered_seconds=HOUR,
            counters={"requests_finished": HOURLY},
            histograms=dict.fromkeys(FAMILIES, latencies),
        )
        made.append(load_bins.bin_window(window, None, None))
    return made


def answered(
    rule: str, several: list[Window], past: list[BinnedWindow] | None = None, seen_by: TierContext | None = None
) -> RuleResult:
    """What the rule says after these minutes, with the past of three days from the history."""
    by = seen_by or tier()
    kept = tier_minutes.TierMinutes(budget=error_budget.restore_budget(by, past or [], []))
    for one in several:
        kept = add_minute(kept, one, "a", by)
    now = several[-1].end
    return next(a for a in tier_rules.evaluate_tier_rules(kept, by, now) if a.rule == rule)


def told(rule: str, several: list[Window], past: list[BinnedWindow] | None = None, **more: Any) -> Verdict:
    found = answered(rule, several, past, **more)
    assert isinstance(found, Verdict), found
    return found


def hour(share: float, calm_from: int = 60) -> list[Window]:
    return each(60, lambda n: minute(n, slow=180 * share if n < calm_from else 0.0))


LADDER = [
    ("page_fast", {}, 0.16, 0.10, Status.CRITICAL, "14.4x is the limit over 1 h and 5 min"),
    ("page_slow", dict.fromkeys(range(1, 6), 0.07), 0.07, None, Status.CRITICAL, "6x is the limit over 6 h and 30 min"),
    (
        "ticket_fast",
        dict.fromkeys(range(1, 24), 0.035),
        0.035,
        None,
        Status.WARNING,
        "3x is the limit over 1 d and 2 h",
    ),
    (
        "ticket_slow",
        dict.fromkeys(range(1, 72), 0.012),
        0.012,
        None,
        Status.WARNING,
        "1x is the limit over 3 d and 6 h",
    ),
]


@pytest.mark.parametrize(("rung", "past", "share", "below", "status", "limit"), LADDER, ids=[row[0] for row in LADDER])
@EVERY
def test_each_rung_fires_at_its_limit(
    rule: str, rung: str, past: dict[int, float], share: float, below: float | None, status: Status, limit: str
) -> None:
    found = told(rule, hour(share), hours(past))
    assert (found.status, found.certainty) == (status, CERTAIN)
    assert limit in found.details
    assert len(found.actions) == len(BY_NAME[rule].actions)
    less = 0.8 if below is None else below / share
    calm = told(rule, hour(share * less), hours({back: part * less for back, part in past.items()}))
    assert (calm.status, calm.certainty) == (Status.OK, CERTAIN)


def test_sentence_tells_share_and_rate() -> None:
    found = told(TTFT, hour(0.18), hours({}))
    assert found.sentence.startswith(
        "18.0% of 10,800 requests in 1 h missed the 260 ms TTFT objective; the budget burns 18x too fast"
    )
    assert found.details[1:] == ("18.0% of 900 requests in the last 5 min", "2.5% of a month's budget was spent")
    assert len(found.sentence.partition(". ")[0].split()) <= 25
    claim, _ = split_claim(found.sentence)
    assert len(claim.split()) <= 14
    assert found.observed.value == pytest.approx(0.18)  # type: ignore[union-attr]


def test_burn_ends_within_short_window() -> None:
    assert told(TTFT, hour(0.3, calm_from=58), hours({})).status is Status.CRITICAL
    over = told(TTFT, hour(0.2, calm_from=55), hours({}))
    assert over.status is Status.OK
    assert over.sentence == (
        "TTFT recovering, budget spent from 08:00 to 08:55; 0 of 900 requests since missed the 260 ms TTFT objective"
    )
    assert len(over.sentence.split()) <= 25


@EVERY
def test_old_burn_never_appears_later(rule: str) -> None:
    """Eight minutes of overload soon after a start, then only fast requests: at 27 minutes the pair of 6 h is evaluated."""
    several = each(60, lambda n: minute(n, rps=10.0, slow=600.0) if 4 <= n < 12 else minute(n, rps=1.0))
    results = [answered(rule, several[: n + 1]) for n in range(5, 60)]
    firing = [n for n, one in zip(range(5, 60), results, strict=True) if one_fires(one)]
    assert firing
    assert max(firing) <= 12 + 5
    assert firing == list(range(min(firing), max(firing) + 1))
    assert isinstance(results[-1], Verdict)
    assert "recovering, budget spent from 08:04 to 08:12; 0" in results[-1].sentence


def one_fires(result: RuleResult) -> bool:
    return isinstance(result, Verdict) and result.status in FIRING


def test_pause_of_burn_is_no_recovery() -> None:
    """One minute in ten has two thirds of its requests slow, over hours: the ticket of a day lasts through the pauses."""
    several = each(60, lambda n: minute(n, slow=120.0 if n % 10 == 0 else 0.0))
    burnt = hours(dict.fromkeys(range(1, 24), 0.066))
    found = told(TTFT, several, burnt)
    assert found.status in FIRING


@pytest.mark.parametrize(("count", "certainty"), [(40, LIKELY), (60, LIKELY)])
def test_slow_pair_needs_a_seen_window(count: int, certainty: Certainty) -> None:
    """All slow for an hour spends what six hours may spend, but nothing is known of the other five."""
    own = tier(limits={TTFT: {"page_fast_burn": 200.0}})
    found = told(TTFT, each(count, lambda n: minute(n, slow=180)), seen_by=own)
    assert (found.status, found.certainty) == (Status.CRITICAL, certainty)
    past = hours(dict.fromkeys(range(1, 6), 0.5))
    assert told(TTFT, each(60, lambda n: minute(n, slow=90)), past, seen_by=own).certainty is CERTAIN


def test_silence_is_no_recovery() -> None:
    """The last hour burnt, and of its last five minutes there are thirty requests."""
    several = each(60, lambda n: minute(n, slow=54) if n < 55 else minute(n, rps=0.1))
    found = answered(TTFT, several, hours({}))
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "30 requests in the last 5 min, 50 are needed")


@pytest.mark.parametrize(("count", "certainty"), [(8, LIKELY), (9, CERTAIN)])
def test_fresh_start_uses_seen_budget(count: int, certainty: Certainty) -> None:
    """14.4 x 60 min is what the hour may spend; all slow burns 100 a minute, so 8.64 minutes spend that much."""
    found = told(TTFT, each(count, lambda n: minute(n, slow=180)))
    assert (found.status, found.certainty) == (Status.CRITICAL, certainty)
    assert f" requests in {count} min missed" in found.sentence
    assert f"{count} min of 1 h were seen" in found.details


def test_agent_restart_costs_no_page() -> None:
    """Twenty minutes at 20 x: too little by themselves, enough with the forty before them."""
    several = each(20, lambda n: minute(n, slow=36))
    assert told(TTFT, several).certainty is LIKELY
    before = [load_bins.bin_window(minute(n, slow=36), None, "a") for n in range(-40, 0)]
    kept = tier_minutes.TierMinutes(budget=error_budget.restore_budget(tier(), hours({})[:-1], before))
    for one in several:
        kept = add_minute(kept, one, "a", tier())
    (found,) = (a for a in tier_rules.evaluate_tier_rules(kept, tier(), START + 1200) if a.rule == TTFT)
    assert (found.status, found.certainty) == (Status.CRITICAL, CERTAIN)


def test_nothing_before_the_short_window() -> None:
    found = unknown(TTFT, tier(), each(4, lambda n: minute(n, slow=180)))
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "240 s seen, 270 s are needed")
    assert verdict(TTFT, tier(), each(5, lambda n: minute(n, slow=180))).status is Status.CRITICAL


@pytest.mark.parametrize(("bursts", "certainty"), [(2, LIKELY), (3, CERTAIN)])
def test_one_burst_is_one_event(bursts: int, certainty: Certainty) -> None:
    several = each(60, lambda n: minute(n, rps=60.0, slow=3600) if n >= 60 - bursts else minute(n))
    assert told(TTFT, several, hours({})).certainty is certainty


def test_promise_inside_bucket_is_likely() -> None:
    within = context(slo={"ttft_p99_seconds": 0.3})
    found = told(TTFT, hour(0.5), hours({}), seen_by=within)
    assert (found.status, found.certainty) == (Status.CRITICAL, LIKELY)


@pytest.mark.parametrize(("lately", "certainty"), [(1.0, CERTAIN), (SLOW, LIKELY)])
def test_certain_burn_needs_present_burn(lately: float, certainty: Certainty) -> None:
    """Of the last 35 minutes' requests, those that took 0.4 s lie in the bucket of the promised 0.3 s."""
    inside = context(slo=dict.fromkeys(PROMISED, 0.3))

    def made(number: int) -> Window:
        latencies = seen({1.0 if number < 25 else lately: 90.0, FAST: 90.0})
        return replace(minute(number), histograms=dict.fromkeys(FAMILIES, latencies))

    found = told(TTFT, each(60, made), hours({}), seen_by=inside)
    assert (found.status, found.certainty) == (Status.CRITICAL, certainty)


def test_few_requests_are_chance() -> None:
    """Two slow ones of eleven a minute over the hour's end: more than allowed, and no proof."""
    several = each(60, lambda n: minute(n, rps=11 / 60, slow=2.0 if n > 35 else 1.0))
    found = told(TTFT, several)
    assert (found.status, found.certainty) == (Status.CRITICAL, LIKELY)


def test_certain_ticket_precedes_likely_page() -> None:
    """A day at 5 %, and two minutes with most of its last hour's requests, all slow: those may be one event."""
    several = each(60, lambda n: minute(n, rps=60.0, slow=3600) if n > 57 else minute(n, slow=9))
    found = told(TTFT, several, hours(dict.fromkeys(range(1, 24), 0.05)))
    assert (found.status, found.certainty) == (Status.WARNING, CERTAIN)
    assert told(TTFT, several, hours({})).certainty is LIKELY


def test_barely_above_limit_is_likely() -> None:
    """15 % of 10,800 is two standard deviations above 14.4 %; 9 of 60 is none."""
    found = told(TTFT, hour(0.15), hours({}))
    assert (found.status, found.certainty) == (Status.CRITICAL, LIKELY)
    alone = tier(limits={TTFT: {"page_slow_burn": 90.0, "ticket_fast_burn": 90.0, "ticket_slow_burn": 90.0}})
    few = each(60, lambda n: minute(n, rps=1 / 60, slow=1.0 if n % 20 > 16 else 0.0))
    own = tier(limits={TTFT: {**alone.limits[TTFT], "minimum_requests": 5.0}})
    assert told(TTFT, few, seen_by=own).status is Status.OK


def test_a_tier_can_have_its_own_ladder() -> None:
    strict = tier(limits={TTFT: {"page_fast_burn": 8.0}})
    assert told(TTFT, hour(0.10), hours({}), seen_by=strict).status is Status.CRITICAL


def test_why_nothing_can_be_said() -> None:
    def reason(several: list[Window], by: TierContext | None = None) -> tuple[Gap, str]:
        found = answered(TTFT, several, seen_by=by)
        return found.reason, found.text

    bare = [replace(one, histograms={}) for one in each(10, minute)]
    assert reason(bare) == (Gap.NOT_EXPOSED, "ttft_seconds was not measured")
    idle = each(10, lambda n: minute(n, rps=0.0))
    assert reason(idle) == (Gap.NO_TRAFFIC, "no requests in the last 1 h")
    few = each(10, lambda n: minute(n, rps=0.05))
    assert reason(few) == (Gap.TOO_FEW_REQUESTS, "30 requests in the last 1 h, 50 are needed")
    planless = answered(TTFT, each(10, minute), seen_by=load_bins.build_tier_context("t", None))
    assert planless.reason is Gap.NOT_IN_PLAN
    missing = answered(TPOT, each(10, minute), seen_by=context())
    assert missing.text == "the plan has no slo.tpot_p99_seconds"


def test_a_healthy_tier_is_ok() -> None:
    found = told(TTFT, hour(0.005), hours({}))
    assert found.sentence == ("0.5% of 10,800 requests in 1 h missed the 260 ms TTFT objective")


@EVERY
def test_the_ladder_spends_what_the_workbook_says(rule: str) -> None:
    """2, 5, 10 and 10 % of 30 days' budget in the long window, and a short one of its twelfth part."""
    values = {name: threshold.value for name, threshold in BY_NAME[rule].thresholds.items()}
    spent = []
    for name, _ in RUNGS:
        long, short = values[f"{name}_long_seconds"], values[f"{name}_short_seconds"]
        assert short == long / 12
        spent.append(round(values[f"{name}_burn"] * long / PERIOD_SECONDS, 6))
    assert spent == [0.02, 0.05, 0.1, 0.1]
    assert max(values[f"{name}_long_seconds"] for name, _ in RUNGS) == error_budget.KEPT_SECONDS


def test_an_empty_budget_belongs_to_no_tier() -> None:
    assert Budget().objectives == (None,) * 4


def gaps(number: int, requests: float, each: float, slow: float) -> Window:
    """A minute of requests with so many gaps each; `slow` is the share of long ones."""
    n = requests * each
    made = minute_of_two(number, rps=requests / 60)
    return replace(made, histograms={**made.histograms, "itl_seconds": seen({SLOW: n * slow, FAST: n * (1 - slow)})})


def test_sentence_counts_output_events() -> None:
    found = told(ITL, each(60, lambda n: gaps(n, 180, 100, 0.18)), hours({}))
    assert found.sentence.startswith("18.0% of output events in 1 h missed the 260 ms ITL objective; ")
    assert found.details[1] == "18.0% of output events in the last 5 min"
    assert "output events of 10,800 requests" in found.details
    assert len(found.sentence.partition(". ")[0].split()) <= 25
    over = told(ITL, each(60, lambda n: gaps(n, 180, 100, 0.2 if n < 55 else 0.0)))
    assert over.sentence.endswith("08:55; 0.0% of output events since missed the 260 ms ITL objective")


def test_events_of_few_requests_prove_nothing() -> None:
    """A thousand gaps a request are no thousand requests: 30 of them are too few, 60 leave 15 % to chance."""
    few = answered(ITL, each(60, lambda n: gaps(n, 0.5, 1000, 0.5)))
    assert (few.reason, few.text) == (Gap.TOO_FEW_REQUESTS, "30 requests in the last 1 h, 50 are needed")
    alone = dict.fromkeys(("page_slow_burn", "ticket_fast_burn", "ticket_slow_burn"), 90.0)
    own = tier(limits={ITL: {**alone, "minimum_requests": 5.0}})
    assert told(ITL, each(60, lambda n: gaps(n, 1, 1000, 0.16)), seen_by=own).status is Status.OK
    assert told(ITL, each(60, lambda n: gaps(n, 180, 1000, 0.16)), seen_by=own).certainty is CERTAIN


def test_timed_tokens_have_no_event_burn() -> None:
    other = replace(tier(), itl_comparable=False)
    found = answered(ITL, hour(0.5), hours({}), seen_by=other)
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "plan and engine do not mean the same by ITL")


@pytest.mark.parametrize(("seconds", "text"), [(300, "5 min"), (5400, "1.5 h"), (259_200, "3 d"), (40, "40 s")])
def test_windows_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert format_span(seconds) == text
