"""DemandExceedsCapacity and ForecastDegraded: a replica may take 4 rps by a benchmark that has an end, 3 are planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, each, minute, minutes, tier
from prose import explain

from rules.confidence import Certainty
from rules.evaluator import tier_rules
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.context import ForecastPoint, Projection
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

RULE, DEGRADED = "DemandExceedsCapacity", "ForecastDegraded"
FLEET = {"instances": 3, "safety_factor": 1.0, "minimum_warm": 1}
PLAN = tier(slo={"ttft_p99_seconds": 0.2}, fleet=FLEET)
NO_END = tier(fleet=FLEET)
"""Its benchmark meets the objective at every load: 6 rps a replica are what was tried, no end."""

NO_FLEET = tier(slo={"ttft_p99_seconds": 0.2})

Rate = Callable[[int], float] | float


def arriving(rate: Rate, finished: float | None = None) -> Callable[[int], Window]:
    """Minutes of one replica at which so many requests a second arrive, and so many finish."""

    def made(number: int) -> Window:
        rps = rate(number) if callable(rate) else rate
        done = rps if finished is None else finished
        return minute(number, rps=done, change=60 * (rps - done))

    return made


def judged(
    rate: Rate,
    replicas: int = 2,
    count: int = 8,
    plan: Any = PLAN,
    rule: str = RULE,
    projection: Projection | None = None,
    finished: float | None = None,
    pools: dict[str, str] | None = None,
    **limits: float,
) -> RuleResult:
    """What a rule says when so many requests a second arrive at each of the replicas."""
    seen = view_of("t", plan, limits={rule: limits}, pools=pools)
    names = [f"r{n}" for n in range(replicas)]
    booked = minutes(seen, {name: each(count, arriving(rate, finished)) for name in names})
    results = tier_rules.evaluate_tier_rules(booked, seen, START + 60.0 * count, projection=projection)
    return next(result for result in results if result.rule == rule)


def told(*args: Any, **more: Any) -> Verdict:
    found = judged(*args, **more)
    assert isinstance(found, Verdict), found
    return found


def silent(*args: Any, **more: Any) -> Unknown:
    found = judged(*args, **more)
    assert isinstance(found, Unknown), found
    return found


# --- what arrives, against the replicas that are there and those that are planned


def test_excess_demand_names_missing_replicas() -> None:
    found = told(5.0)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert (
        found.sentence
        == "10 rps arrive, 2 ready replicas take 8 rps; at least 1 more is needed; the 3 planned would be enough"
    )
    assert isinstance(found.observed, Reading)
    assert found.observed.value == pytest.approx(10.0)


def test_saturated_fleet_is_seen_by_arrivals() -> None:
    assert told(5.0, finished=4.0).status is Status.WARNING
    assert told(4.0, finished=4.0).status is Status.OK


def test_one_ready_replica_takes_what_several_take() -> None:
    assert told(5.0, replicas=1).sentence.startswith(
        "5 rps arrive, 1 ready replica takes 4 rps; at least 1 more is needed"
    )


def test_refused_requests_arrived_too() -> None:
    def refusing(number: int) -> Window:
        return minute(number, rps=3.0, counters={"admission_rejections": 120.0})

    booked = minutes(view_of("t", PLAN), {"r0": each(8, refusing), "r1": each(8, refusing)})
    results = tier_rules.evaluate_tier_rules(booked, view_of("t", PLAN), START + 480.0)
    found = next(result for result in results if result.rule == RULE)
    assert isinstance(found, Verdict)
    assert found.status is Status.WARNING
    assert (
        found.sentence
        == "10 rps arrive, 2 ready replicas take 8 rps; at least 1 more is needed; the 3 planned would be enough"
    )
    assert isinstance(found.observed, Reading)
    assert found.observed.low == pytest.approx(10.0)
    assert found.observed.n == 4800.0


@pytest.mark.parametrize(("longer", "status"), [(1.0, Status.OK), (0.5, Status.OK), (2.0, Status.WARNING)])
def test_longer_tokens_exceed_capacity(longer: float, status: Status) -> None:
    """3 rps a replica of the planned lengths are within 4. Of twice the tokens they are the work of 6."""
    lengths = {"prompt_tokens": {"mean": 1000}, "generation_tokens": {"mean": 100}}
    known = view_of("t", tier(slo={"ttft_p99_seconds": 0.2}, fleet=FLEET, workload=lengths))
    tokens = {"prompt_tokens": 180_000.0 * longer, "generation_tokens": 18_000.0 * longer}
    booked = minutes(known, {name: each(8, lambda n: minute(n, rps=3.0, counters=tokens)) for name in ("r0", "r1")})
    results = tier_rules.evaluate_tier_rules(booked, known, START + 480.0)
    found = next(result for result in results if result.rule == RULE)
    assert isinstance(found, Verdict)
    assert found.status is status
    assert isinstance(found.observed, Reading)
    assert found.observed.value == pytest.approx(6.0 * longer)
    if longer != 1.0:
        assert found.sentence.startswith(f"{6 * longer:g} rps of work arrive")
        assert f"6 rps arrive (by their tokens the work of {6 * longer:g} rps)" in found.details


def test_just_what_they_may_take_is_fine() -> None:
    found = told(3.99)
    assert found.status is Status.OK
    assert found.sentence == "7.98 rps arrive, 2 ready replicas take 8 rps"


def test_within_chance_it_is_only_likely() -> None:
    """8.2 a second over 480 s are 3936 where 3840 may come: 1.5 standard deviations."""
    assert told(4.1).certainty is Certainty.LIKELY
    assert told(4.3).certainty is Certainty.CERTAIN


def test_a_benchmark_without_an_end_proves_nothing() -> None:
    found = told(7.0, plan=NO_END)
    assert (
        found.sentence
        == "14 rps arrive, 2 ready replicas take 12 rps; at least 1 more is needed; the 3 planned would be enough"
    )
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert told(9.5, plan=NO_END).status is Status.CRITICAL


def test_demand_beyond_plan_is_critical() -> None:
    found = told(7.0)
    assert (found.status, found.certainty) == (Status.CRITICAL, Certainty.CERTAIN)
    assert found.sentence.endswith("at least 3 more are needed; the 3 planned would not be enough")


def test_outgrown_plan_is_told() -> None:
    found = told(3.5, replicas=4)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert (
        found.sentence == "14 rps arrive, 4 ready replicas take 16 rps; the 3 planned ones 12 rps, the plan is outgrown"
    )
    assert told(3.5, replicas=4, plan=NO_FLEET).status is Status.OK


def test_likely_plan_excess_weakens_nothing() -> None:
    found = told(6.1)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.endswith("the 3 planned would not be enough")


def test_before_its_minimum_it_says_nothing() -> None:
    assert silent(6.0, count=2).reason is Gap.TOO_FEW_REQUESTS
    assert told(6.0, count=3).status is Status.WARNING


def test_burst_or_past_demand_passes() -> None:
    assert told(lambda n: 30.0 if n == 7 else 2.0).status is Status.OK
    assert told(lambda n: 9.0 if n < 6 else 1.0).status is Status.OK
    assert told(lambda n: 9.0 if n >= 4 else 1.0).status is Status.WARNING
    assert told(lambda n: 5.0 if n >= 9 else 1.0, count=12).status is Status.OK


def test_a_share_below_one_keeps_headroom() -> None:
    assert told(3.6, share=0.8).status is Status.WARNING


def test_what_cannot_be_known_says_why() -> None:
    assert silent(5.0, plan=None).reason is Gap.NOT_IN_PLAN
    assert silent(0.05, count=8).reason is Gap.TOO_FEW_REQUESTS
    apart = silent(5.0, pools={"r0": "prefill", "r1": "decode"})
    assert (apart.reason, apart.text[-24:]) == (Gap.NOT_IN_PLAN, "tokens a second of each pool"[-24:])
    assert told(5.0, pools={"r0": "mixed", "r1": "mixed"}).status is Status.WARNING


def answer_of(windows: list[Window]) -> RuleResult:
    seen = view_of("t", PLAN)
    now = max(window.end for window in windows)
    return next(a for a in tier_rules.evaluate_tier_rules(minutes(seen, {"a": windows}), seen, now) if a.rule == RULE)


def test_unseen_tier_has_unknown_demand() -> None:
    failed = [gap_window(START + 60.0 * n, START + 60.0 * n + 60.0, Gap.SCRAPE_FAILED) for n in range(8)]
    found = answer_of(failed)
    assert isinstance(found, Unknown)
    assert found.reason is Gap.SCRAPE_FAILED
    ended = answer_of([*each(6, arriving(9.0)), *failed[6:]])
    assert isinstance(ended, Unknown)
    assert ended.reason is Gap.SCRAPE_FAILED


# --- what is forecast


NOW = START + 480.0


def forecast(q95: float = 13.0, lead: float = 240.0, **changes: Any) -> Projection:
    """Made a minute ago; demand is low until the third minute from now, then 10 rps at the median."""
    points = [ForecastPoint(t=NOW + 60.0 * n, q50=2.0, q95=3.0, q99=4.0) for n in range(3)]
    points += [ForecastPoint(t=NOW + 60.0 * n, q50=10.0, q95=q95, q99=20.0) for n in range(3, 7)]
    made = Projection(
        tier="t",
        made_at=NOW - 60.0,
        horizon_seconds=lead,
        points=tuple(points),
        method="combined",
        covered=190,
        forecasts=200,
        error_ratio=0.7,
        naive="same as now",
        compared=200,
    )
    return replace(made, **changes)


def test_near_forecast_is_likely_and_dated() -> None:
    found = told(1.0, projection=forecast())
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "Up to 13 rps expected at 08:11, 3 planned replicas take 12 rps; 2 more are needed; "
        "95% quantile, median 10 rps; "
        "by combined"
    )


def test_fitting_forecast_is_no_matter() -> None:
    assert told(1.0, projection=forecast(q95=12.0)).status is Status.OK
    assert told(1.0, projection=forecast(lead=110.0)).status is Status.OK
    assert told(1.0, projection=forecast(lead=130.0)).status is Status.WARNING
    assert told(1.0, projection=forecast(), plan=NO_FLEET).status is Status.OK


def test_what_arrives_comes_before_what_is_forecast() -> None:
    found = told(5.0, projection=forecast())
    assert "arrive" in found.sentence
    assert not found.is_forecast
    assert told(1.0, projection=forecast()).is_forecast


def test_quiet_tier_heeds_its_forecast() -> None:
    assert told(0.05, projection=forecast()).status is Status.WARNING


def test_a_degraded_forecast_is_not_believed() -> None:
    assert told(1.0, projection=forecast(error_ratio=1.2)).status is Status.OK
    assert told(1.0, projection=forecast(covered=150)).status is Status.OK


def test_outlived_forecast_is_ignored() -> None:
    assert told(1.0, projection=forecast(points=forecast().points[:0])).status is Status.OK


# --- whether the forecast can be believed


def test_missing_forecast_is_unknown() -> None:
    found = silent(1.0, rule=DEGRADED)
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "no forecast is made yet")


def test_good_quantile_is_fine() -> None:
    found = told(1.0, rule=DEGRADED, projection=forecast())
    assert (found.status, found.certainty) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "190 of 200 targets were within the 95% quantile; the error is 0.70 times that of same as now; "
        "by combined; "
        "200 targets were compared with the naive method"
    )


@pytest.mark.parametrize(
    ("covered", "status", "certainty"),
    [
        (180, Status.OK, Certainty.CERTAIN),  # 90 % exactly
        (173, Status.OK, Certainty.CERTAIN),  # at 95 %, surely 9.7 % missed
        (172, Status.WARNING, Certainty.LIKELY),  # surely 10.1 %
        (166, Status.WARNING, Certainty.LIKELY),  # at 99.9 %, surely 9.8 %
        (165, Status.WARNING, Certainty.CERTAIN),  # surely 10.1 %
    ],
)
def test_missed_quantile_is_told(covered: int, status: Status, certainty: Certainty) -> None:
    found = told(1.0, rule=DEGRADED, projection=forecast(covered=covered))
    assert (found.status, found.certainty) == (status, certainty)
    assert found.sentence.startswith("Only ") == (status is Status.WARNING)


def test_useless_forecast_is_told() -> None:
    found = told(1.0, rule=DEGRADED, projection=forecast(error_ratio=1.0))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "The error is 1.00 times that of same as now; by combined; 200 targets were compared with the naive method"
    )
    assert told(1.0, rule=DEGRADED, projection=forecast(error_ratio=0.999)).status is Status.OK


def test_of_few_forecasts_nothing_is_said() -> None:
    few = forecast(covered=0, forecasts=59, compared=59, error_ratio=3.0)
    found = silent(1.0, rule=DEGRADED, projection=few)
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "59 forecasts have met their time, 60 are needed")
    compared = replace(few, compared=60, error_ratio=0.7)
    assert told(1.0, rule=DEGRADED, projection=compared).status is Status.OK
    enough = replace(few, forecasts=60, compared=0, error_ratio=None)
    assert told(1.0, rule=DEGRADED, projection=enough).certainty is Certainty.CERTAIN


def test_short_forecast_is_stale() -> None:
    found = silent(1.0, rule=DEGRADED, projection=forecast(made_at=NOW - 3600.0, points=()))
    assert (found.reason, found.text) == (Gap.STALE, "the forecast was made 60 min ago and does not reach until now")


def test_a_tier_may_have_other_limits() -> None:
    assert told(1.0, rule=DEGRADED, projection=forecast(), error_ratio=0.6).status is Status.WARNING
    assert told(1.0, rule=DEGRADED, projection=forecast(covered=160), coverage=0.7).status is Status.OK
