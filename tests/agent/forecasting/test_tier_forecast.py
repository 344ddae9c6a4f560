"""The forecast of one tier: what it answers, what it does not, and that following is the same as beginning anew."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forecast_samples import DAY_MINUTES, NOW, SETTLED, TIER, amounts, keep, question, rate, series
from forecast_traffic import series as hourly

from agent.config.forecast import EventConfig
from agent.forecasting.history_input import HistoryForecasts
from agent.forecasting.input_series import InputSeries
from agent.forecasting.messages import ForecastResponse
from agent.forecasting.responses import NOTHING
from agent.forecasting.results import forecast_now
from agent.forecasting.tier_forecast import HIGHEST_CERTAINTY, TierForecast
from forecast.capacity.prewarm import DecisionBasis, certainty
from forecast.series.binned import Series


def answered(minutes: int = 3 * DAY_MINUTES, **changes: Any) -> ForecastResponse:
    asked = question(**changes)
    return TierForecast(asked, series(minutes)).respond(asked)


def follow(tier: TierForecast, *minutes: float) -> None:
    """Add minutes; the newest known one stays as it was booked."""
    tier.follow(question(), np.array([np.nan, *minutes]))


@pytest.fixture(scope="module")
def wave() -> ForecastResponse:
    return answered(4 * DAY_MINUTES, replica_hour=10.0, currency="USD")


def test_daily_wave_is_forecast_and_warmed(wave: ForecastResponse) -> None:
    projection = wave.forecast.projection
    assert (projection.tier, projection.made_at, projection.horizon_seconds) == ("h100", NOW, 140.0)
    assert [point.t for point in projection.points] == [SETTLED + 300.0 * bin for bin in range(288)]
    assert max(abs(point.q50 / rate(point.t + 150.0) - 1.0) for point in projection.points) < 0.15
    assert projection.points[0].q95 > projection.points[0].q50
    assert wave.now_rps == pytest.approx(amounts(1)[-1][1] / 60.0)
    recommended = wave.prewarm.recommendation
    assert recommended.decided_by in (DecisionBasis.FORECAST, DecisionBasis.NOW, DecisionBasis.HOLD)
    assert rate(NOW + 140.0) / 2.0 <= recommended.replicas <= rate(NOW + 140.0) / 2.0 + 3
    # Three minutes: the start, and the half minute until a minute is known.
    assert recommended.certainty == certainty(3)
    assert (wave.minimum_warm, wave.gap) == (3, "")
    assert "regression" in {name for name, _ in wave.forecast.weights}
    # Of the last week's forecasts, made again without knowing what came.
    assert 600 <= projection.forecasts <= 4 * 288
    assert projection.covered / projection.forecasts > 0.85
    assert projection.error_ratio < 1.2
    steps, until = wave.prewarm.schedule, wave.prewarm.until
    assert (steps[0].start, until) == (SETTLED, SETTLED + 86_400)
    for step, end in zip(steps, [*(one.start for one in steps[1:]), until], strict=True):
        wanted = max(rate(t) for t in np.arange(step.start, end, 60.0)) / 2.0
        assert wanted - 0.5 <= step.replicas <= wanted + 2.0 or step.replicas == 3


def test_worth_lies_between_reacting_and_foresight(wave: ForecastResponse) -> None:
    found = wave.prewarm.worth
    # Two days are learnt from, and some hours give the first errors.
    minutes = (found.end - found.start) / 60.0
    assert found.end == SETTLED
    assert 1440 <= minutes <= 2 * 1440
    outcomes = {one.name: one for one in found.strategies}
    ours, foresight = outcomes["pre-warming"], outcomes["perfect foresight"]
    assert foresight.violation_minutes == 0
    assert ours.violation_minutes <= 0.01 * minutes
    assert foresight.replica_hours < ours.replica_hours < outcomes["static peak"].replica_hours
    assert ours.money == pytest.approx(10.0 * ours.replica_hours)
    assert {found.recommended, found.reacting} <= set(outcomes)
    assert found.covered_ratio > 0.98
    assert found.with_margin == ""


def test_surge_lifts_schedule_and_sentence() -> None:
    """Four times the demand in the last two minutes: the day's forecast does not follow as far as the count."""
    surging = series(4 * DAY_MINUTES)
    surging.values[-2:] *= 4
    found = TierForecast(question(), surging).respond(question()).prewarm
    one = found.recommendation
    assert one.needed_now >= 4 * rate(NOW) / 2.0 * 0.8
    ends = [*(step.start for step in found.schedule[1:]), found.until]
    (at,) = [step for step, end in zip(found.schedule, ends, strict=True) if step.start <= one.target_time < end]
    assert at.replicas >= one.replicas
    assert at.demand_rps >= one.now_rps
    assert one.next_step.start in {step.start for step in found.schedule}
    ready = replace(one, ready=one.replicas - 1)
    assert ready.action == "start 1 now"
    assert f"is ready: {ready.action}; " in ready.sentence or f"are ready: {ready.action}; " in ready.sentence
    assert ready.sentence.endswith("by the schedule, of 99% certainty")


def test_following_equals_starting_over() -> None:
    minutes = amounts(3 * DAY_MINUTES + 60, SETTLED + 3600.0)
    values = np.array([amount for _, amount in minutes])
    begun = Series(start=minutes[0][0], bin_seconds=60.0, values=values[: 3 * DAY_MINUTES])
    followed, later = TierForecast(question(), begun), question(minutes_later=60)
    for amount in values[3 * DAY_MINUTES :]:
        follow(followed, amount)
    one, other = followed.respond(later), TierForecast(later, replace(begun, values=values)).respond(later)
    assert followed.end == later.settled_until
    points = list(zip(one.forecast.projection.points, other.forecast.projection.points, strict=True))
    assert [a.t for a, _ in points[:1]] == [b.t for _, b in points[:1]] == [SETTLED + 3600.0]
    assert one.now_rps == other.now_rps
    near = [a.q50 / b.q50 for a, b in points]
    assert 0.85 < min(near) <= max(near) < 1.15
    assert abs(one.prewarm.recommendation.replicas - other.prewarm.recommendation.replicas) <= 1


def test_tier_restarts_after_a_day(tmp_path: Path) -> None:
    path = keep(tmp_path / "history.db", 4 * DAY_MINUTES, SETTLED + 86_400.0)
    forecasts = HistoryForecasts()
    worths, forecasters = [], []
    for minutes_later in (0, DAY_MINUTES - 1, DAY_MINUTES):
        found = forecasts.respond(question(path, minutes_later))
        worths.append(found.prewarm.worth)
        forecasters.append(forecasts._tiers[TIER])
    assert forecasters[0] is forecasters[1]
    assert forecasters[2] is not forecasters[1]
    assert worths[0] == worths[1]
    assert worths[2] is not None
    assert worths[2].end == SETTLED + 86_400.0
    assert found.forecast.projection.points[0].t == SETTLED + 86_400


def test_little_history_has_its_own_words() -> None:
    found = answered(5 * 60)
    assert found.forecast.projection.method == "same as now"
    assert found.forecast.notes == ("needs 2 days of history, has 5 hours: the same as now, with its own error",)
    assert found.prewarm.worth is None
    assert found.prewarm.reason == "it takes two days to learn from and one to try it on"
    recommended = found.prewarm.recommendation
    assert recommended.quantile_rps is None
    assert recommended.replicas >= recommended.needed_now
    few = answered(4)
    assert (few.forecast, few.gap) == (None, "too few bins have passed to know how far a forecast is off")
    assert few.prewarm.recommendation.replicas == few.prewarm.recommendation.needed_now


@pytest.mark.parametrize(
    ("changes", "reason", "horizon"),
    [
        ({"lead_seconds": None}, "the plan has no cold_start_seconds", 900.0),
        ({"capacity": None, "no_replicas": "the plan has no curve"}, "the plan has no curve", 140.0),
    ],
)
def test_nothing_is_recommended_without(changes: dict[str, Any], reason: str, horizon: float) -> None:
    found = answered(600, **changes)
    assert (found.prewarm.recommendation, found.prewarm.schedule, found.minimum_warm) == (None, (), None)
    assert reason in found.prewarm.reason
    assert found.forecast.projection.horizon_seconds == horizon


def test_old_demand_recommends_nothing() -> None:
    tier = TierForecast(question(), series(4 * DAY_MINUTES))
    # Each question comes half a minute after its last settled minute.
    follow(tier, *[np.nan] * 9)
    held = tier.respond(question(minutes_later=9))
    assert held.prewarm.recommendation is not None
    assert held.now_rps == pytest.approx(amounts(1)[-1][1] / 60.0)
    follow(tier, np.nan)
    silent = tier.respond(question(minutes_later=10))
    assert (silent.now_rps, silent.prewarm.recommendation) == (None, None)
    assert silent.prewarm.reason == "the newest demand of the tier is 10 min old; after 10 min nothing is recommended"
    assert silent.prewarm.seen_until == SETTLED
    follow(tier, *[np.nan] * 49)
    assert tier.respond(question(minutes_later=59)).prewarm.schedule
    follow(tier, np.nan)
    old = tier.respond(question(minutes_later=60)).prewarm
    assert (old.schedule, old.until, old.schedule_certainty) == ((), None, None)
    assert old.reason == "the newest demand of the tier is 1 h old; no schedule is made of it"


def test_recommendation_names_its_parts() -> None:
    events = (sale(120.0, 1.5, 600.0), sale(6 * 3600.0, 3.0))
    usual, found = answered(4 * DAY_MINUTES).prewarm, answered(4 * DAY_MINUTES, events=events).prewarm
    one, plain = found.recommendation, usual.recommendation
    assert (plain.event_factor, one.event_factor) == (1.0, 1.5)
    assert plain.expected_rps == pytest.approx(rate(SETTLED + 180.0), rel=0.1)
    assert plain.quantile_rps > plain.expected_rps
    assert one.for_forecast >= one.quantile_rps / 2.0
    assert max(one.for_forecast, one.needed_now, one.minimum_warm, one.held) == one.replicas
    assert one.expected_rps == pytest.approx(1.5 * plain.expected_rps)
    most = max(found.schedule, key=lambda step: step.demand_rps)
    assert most.event_factor == 3.0
    assert SETTLED + 6 * 3600 <= most.peak < SETTLED + 7 * 3600
    assert most.expected_rps == pytest.approx(3.0 * rate(most.peak + 150.0), rel=0.15)
    assert most.demand_rps > most.expected_rps
    assert found.schedule_certainty == 0.99


def test_event_multiplies_forecast_and_teaches_nothing() -> None:
    usual, with_event = answered(), answered(events=(sale(6 * 3600.0, 3.0),))
    points = (found.forecast.projection.points for found in (usual, with_event))
    for place, (one, other) in enumerate(zip(*points, strict=True)):
        assert other.q95 == pytest.approx(one.q95 * (3.0 if 72 <= place < 84 else 1.0))
    tripled = series(3 * DAY_MINUTES)
    tripled.values[-60:] *= 3.0
    asked = question(events=(sale(-3600.0, 3.0),))
    after = TierForecast(asked, tripled).respond(asked)
    assert after.forecast.projection.points[0].q50 == pytest.approx(usual.forecast.projection.points[0].q50, rel=0.02)
    assert after.now_rps == pytest.approx(3 * (usual.now_rps or 0.0))


def sale(begins: float, factor: float, seconds: float = 3600.0) -> EventConfig:
    """An event that begins so many seconds after the newest known minute."""
    start = datetime.fromtimestamp(SETTLED + begins, UTC).replace(tzinfo=None)
    return EventConfig(name=f"sale at {begins}", start=start, duration_seconds=seconds, factor=factor)


def test_event_replicas_start_one_lead_before() -> None:
    usual = answered().prewarm.recommendation
    for begins, factor in ((180.0, 3.0), (240.0, 1.0)):
        with_event = answered(events=(sale(begins, 3.0),)).prewarm.recommendation
        assert with_event.quantile_rps == pytest.approx(usual.quantile_rps * factor)
        assert with_event.needed_now == usual.needed_now


def test_prices_decide_certainty_and_minimum() -> None:
    cheap = answered(4 * DAY_MINUTES, replica_hour=10.0, late_request=0.05)
    dear = answered(4 * DAY_MINUTES, replica_hour=10.0, late_request=100.0)
    assert cheap.prewarm.recommendation.certainty == pytest.approx(certainty(3, 2.0 * 0.05 * 360))
    assert dear.prewarm.recommendation.certainty == HIGHEST_CERTAINTY
    assert dear.prewarm.recommendation.replicas > cheap.prewarm.recommendation.replicas
    assert (cheap.minimum_warm or 0) >= 3
    # Without both prices the configured certainty counts.
    assert answered(600, certainty=0.9, replica_hour=10.0).prewarm.recommendation.certainty == 0.9


@pytest.mark.parametrize(("hold", "held"), [(0.0, 4), (600.0, 10)])
def test_hold_is_at_least_the_lead(hold: float, held: int) -> None:
    """A peak of one minute is held until replicas that were asked for it have served: the lead of three, and one more."""
    tier = TierForecast(question(hold_seconds=hold), series(600))
    follow(tier, 60.0 * 40.0)
    kept = []
    for later in range(2, 15):
        follow(tier, 60.0 * 4.0)
        kept.append(tier.respond(question(minutes_later=later, hold_seconds=hold)).prewarm.recommendation.replicas)
    assert kept.count(20) == held - 1


def test_quarter_hour_bins_become_minutes() -> None:
    asked = question(bin_seconds=900.0)
    coarse = series(3 * DAY_MINUTES).values.reshape(-1, 15).sum(axis=1)
    start = SETTLED // 900 * 900 - len(coarse) * 900.0
    tier = TierForecast(asked, Series(start=start, bin_seconds=900.0, values=coarse))
    found = tier.respond(asked)
    assert len(found.forecast.projection.points) == 96
    assert found.prewarm.recommendation is not None


def test_traffic_that_ended_becomes_zero() -> None:
    asked = question()
    silent = series(9 * DAY_MINUTES)
    tier = TierForecast(asked, replace(silent, values=np.where(np.arange(len(silent)) < 60, silent.values, 0.0)))
    found = tier.respond(asked)
    said = [point.q50 for point in found.forecast.projection.points]
    assert max(said) < 0.001
    assert not [amount for amount in said if 0 < amount < NOTHING]
    assert 0.0 in said
    assert {step.replicas for step in found.prewarm.schedule} == {found.minimum_warm}


@pytest.mark.parametrize("amount", [0.0, 7.0, 100.0, 1e12])
def test_constant_traffic_is_always_covered(amount: float) -> None:
    same = hourly(np.full(24 * 12, amount))
    given = InputSeries(name="same", series=same, time_text=str, sundays={}, factors=np.ones(24 * 12 + 288))
    found = forecast_now("same", given, 3600.0).projection
    assert found.forecasts == found.covered == 7 * 24
    assert [point.q50 for point in found.points] == pytest.approx([amount / 3600.0], rel=1e-5)
