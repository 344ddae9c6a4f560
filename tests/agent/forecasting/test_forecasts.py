"""The forecasting process as the daemon has it: a real one on a real history, and what becomes of one that misbehaves."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import forecast_answers
import numpy as np
import pytest
from forecast_samples import DAY_MINUTES, NOW, SETTLED, TIER, keep, question, series
from waiting import CEILING_SECONDS, wait_for

from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.prewarm_value import Stretch, compare_strategies, split_last_week
from agent.forecasting.service import FIRST_PAUSE_SECONDS, FORECAST_MEMORY_BYTES, MEMORY_BYTES_A_TIER, ForecastService
from agent.forecasting.tier_forecast import TierForecast
from agent.forecasting.worker import answer_request
from agent.reporting.generate import prewarming_from_response
from agent.worker.process import SPAWN, WorkerFailure
from exporters.documents.forecast import PrewarmValue
from exporters.status.records import ForecastStatus
from forecast.capacity.minimum_warm import excess, minimum_warm
from forecast.capacity.simulation import SimulatedDemand, cheapest_reacting, simulate_requests
from forecast.lead.online import run_past
from forecast.series.binned import Array
from rules.catalogue.registry import margin_of
from rules.evaluator.timeline import TimelineKind
from rules.plan.replica_count import NO_MARGIN

SHORT = 600
"""Minutes of history in tests that need a forecast, not a good one."""


@contextmanager
def forecasting(
    answer: Callable[[ForecastRequest], ForecastResponse] = answer_request, **options: Any
) -> Iterator[ForecastService]:
    made = ForecastService(answer, **{"question_seconds": CEILING_SECONDS, **options})
    try:
        yield made
    finally:
        made.close()


def shown(forecasts: ForecastService, minutes_later: int = 0) -> ForecastStatus:
    return forecasts.status(TIER, None, 3, NOW + 60.0 * minutes_later)


def count_recommended(forecasts: ForecastService, minutes: int = 0) -> int:
    decision = shown(forecasts, minutes).decision
    assert decision is not None
    return decision.replicas


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return keep(tmp_path / "history.db", SHORT)


def test_worker_forecasts_a_real_history(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = keep(tmp_path / "history.db", 3 * DAY_MINUTES)
    with forecasting(forecast_answers.prints) as forecasts:
        assert forecasts.run([question(path)]) == ()
        first = forecasts.pid
        found = shown(forecasts)
        assert found.forecast.projection.method == "sizewatch"
        assert found.decision is not None
        assert (found.at_lead.t, found.minimum_warm) == (SETTLED, 3)
        health = forecasts.health()
        assert (health.runs, dict(health.failures), health.troubles) == (1, {}, ())
        assert 30e6 < health.memory_bytes < 300e6
        # The next minutes of the history: the process is the same one, and takes up what is new.
        keep(path, 5, SETTLED + 300.0)
        forecasts.run([question(path, minutes_later=5)])
        assert forecasts.pid == first
        assert shown(forecasts, 5).forecast.projection.points[0].t == SETTLED + 300.0
        forecasts.run([question(path, tier="unseen"), question(tmp_path / "none.db", tier="nowhere")])
        assert forecasts.status("unseen", None, 1, NOW).gap == "no demand of this tier has been kept yet"
        assert "none.db" in forecasts.status("nowhere", None, 1, NOW).gap
        assert forecasts.health().failures == {}
    assert capfd.readouterr() == ("", "[library] chatter\nmore\n" * 4), "what a library prints is logged"


def test_a_killed_process_costs_one_forecast(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        before, first = shown(forecasts), forecasts.pid
        assert before.decision is not None
        os.kill(first, signal.SIGKILL)
        keep(history, 1, SETTLED + 60.0)
        (died,) = forecasts.run([question(history, minutes_later=1)])
        trouble = "the forecasting process died: killed by SIGKILL"
        assert (died.kind, died.tier) == (TimelineKind.FORECAST, TIER)
        assert died.text == f"{trouble}; the forecast before it stays until it is outlived"
        kept = shown(forecasts, 1)
        assert (kept.decision, kept.forecast, kept.trouble) == (before.decision, before.forecast, trouble)
        assert forecasts.health().failures == {"died": 1}
        keep(history, 1, SETTLED + 120.0)
        (again,) = forecasts.run([question(history, minutes_later=2)])
        assert again.text == "forecasting works again; failures before: 1"
        assert forecasts.pid not in (None, first)
        fresh = shown(forecasts, 2)
        assert (fresh.trouble, fresh.prewarm.recommendation.made_at) == ("", NOW + 120.0)


@pytest.mark.parametrize(
    ("answer", "fault", "words"),
    [
        (forecast_answers.exits, WorkerFailure.DIED, "exit code 7"),
        (forecast_answers.crashes, WorkerFailure.DIED, "killed by SIGSEGV"),
        (forecast_answers.needs_memory, WorkerFailure.DIED, "it needed more than the 512 MiB that it may take"),
        (forecast_answers.hangs, WorkerFailure.TIMEOUT, "took longer than 0.5 s and was ended"),
    ],
)
def test_misbehaving_worker_is_ended_and_counted(
    answer: Callable[[ForecastRequest], ForecastResponse], fault: WorkerFailure, words: str
) -> None:
    seconds = 0.5 if fault is WorkerFailure.TIMEOUT else CEILING_SECONDS
    with forecasting(answer, question_seconds=seconds) as forecasts:
        (event,) = forecasts.run([question()])
        assert words in event.text
        assert forecasts.health().failures == {fault.value: 1}
        assert forecasts.pid is None
        status = shown(forecasts)
        assert status.decision is None
        assert words in status.gap


def test_failing_worker_restarts_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    with forecasting(forecast_answers.exits, monotonic=lambda: now) as forecasts:
        tried = []
        for minute in range(16):
            before = forecasts.health().failures.get("died", 0)
            forecasts.run([question(minutes_later=minute)])
            if forecasts.health().failures["died"] > before:
                tried.append(minute)
            now += 60.0
        # At once, after two minutes, four, eight.
        assert FIRST_PAUSE_SECONDS == 120.0
        assert tried == [0, 1, 3, 7, 15]

    def refuse(process: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SPAWN.Process, "start", refuse)
    with forecasting() as forecasts:
        (event,) = forecasts.run([question()])
        assert event.text == "the forecasting process cannot be begun: Resource temporarily unavailable"
        assert forecasts.health().failures == {"start": 1}


def test_defect_costs_one_tier_its_forecast(history: Path, caplog: pytest.LogCaptureFixture) -> None:
    with forecasting(forecast_answers.fails_for_bad) as forecasts:
        (event,) = forecasts.run([question(history, tier="bad"), question(history)])
        assert event.text == "the forecast failed: ZeroDivisionError: division by zero"
        assert event.tier == "bad"
        assert shown(forecasts).decision is not None
        assert forecasts.health().failures == {"error": 1}
        limits = Path(f"/proc/{forecasts.pid}/limits").read_text()
        (line,) = [row for row in limits.splitlines() if row.startswith("Max data size")]
        assert line.split()[3] == str(FORECAST_MEMORY_BYTES + MEMORY_BYTES_A_TIER), "it grows with tiers"
    assert any("Traceback" in record.getMessage() for record in caplog.records)
    with forecasting(forecast_answers.fails_after_the_first) as forecasts:
        for minute in range(3):
            forecasts.run([question(history, minutes_later=minute)])
            begun = tuple(f"h100: the forecast failed: ValueError: begun {minute} times" for _ in range(min(minute, 1)))
            assert forecasts.health().troubles == begun, "after a defect the tier begins anew"


def test_stop_ends_question_without_failure() -> None:
    forecasts = ForecastService(forecast_answers.hangs, question_seconds=86_400.0)
    asking = threading.Thread(target=forecasts.run, args=([question()],))
    asking.start()
    assert wait_for(lambda: forecasts.pid is not None)
    forecasts.close()
    asking.join(CEILING_SECONDS)
    assert not asking.is_alive()
    assert forecasts.health().failures == {}
    assert forecasts.run([question(minutes_later=1)]) == ()


def test_requested_replicas_survive_new_settings(history: Path) -> None:
    asked = question()
    assert asked.settings == question(minutes_later=5, lead_source="21 starts", lead_seconds=179.0).settings
    for changes in ({"lead_seconds": 181.0}, {"zone": "Europe/Berlin"}, {"bin_seconds": 900.0}, {"capacity": None}):
        assert asked.settings != question(**changes).settings
    with forecasting() as forecasts:
        forecasts.run([question(history)])
        usual = count_recommended(forecasts)
        forecasts.run([question(history, minutes_later=1, minimum_warm=30)])
        assert count_recommended(forecasts, 1) == 30
        # Other settings, another forecaster: thirty were asked for a minute ago and may just be starting.
        forecasts.run([question(history, minutes_later=2)])
        assert count_recommended(forecasts, 2) == 30
        for minute in range(3, 7):
            forecasts.run([question(history, minutes_later=minute)])
        assert count_recommended(forecasts, 6) < usual + 3


def test_outlived_forecast_is_not_shown(history: Path) -> None:
    with forecasting() as forecasts:
        forecasts.run([question(history)])

        def status_at(t: float) -> ForecastStatus:
            return forecasts.status(TIER, None, 3, t)

        # For one lead later it was made, of 140 s, and one bin beyond that it says nothing.
        assert status_at(NOW + 140.0 + 300.0).decision is not None
        outlived = status_at(NOW + 140.0 + 301.0)
        assert (outlived.decision, outlived.minimum_warm, outlived.now_rps) == (None, None, None)
        (projection,) = forecasts.projections().values()
        # The bins that begin within the lead and three more: two forecasts may be missing.
        last = projection.points[-1].t
        assert NOW + 140.0 + 600.0 < last <= NOW + 140.0 + 900.0
        assert status_at(last).forecast is not None
        gone = status_at(last + 1.0)
        assert (gone.forecast, gone.at_lead) == (None, None)
        assert gone.gap == f"the forecast of {(last + 1.0 - NOW) / 60:.0f} min ago is outlived"
        assert projection.points_until(last + 1.0) == ()
        # The schedule is of demand up to half a minute before it was made.
        kept, old = (status_at(NOW - 30.0 + age).prewarm for age in (3600.0, 3601.0))
        assert kept.schedule
        assert old.schedule == ()
        assert old.reason == "the newest demand of the tier is 1 h old; no schedule is made of it"


def test_forecasts_since_lead_are_kept(history: Path) -> None:
    """Of forecasts a minute apart with a lead of 140 s: the last one that is so old, and those made since."""
    with forecasting() as forecasts:
        for minute in range(6):
            if minute:
                keep(history, 1, SETTLED + 60.0 * minute)
            forecasts.run([question(history, minutes_later=minute)])
            if minute == 0:
                assert shown(forecasts).for_now is None
                first = shown(forecasts).at_lead
            if minute == 3:
                assert shown(forecasts, 3).for_now == first
        for kept in zip(*forecasts._tiers[TIER].projections, strict=True):
            assert [one.made_at for one in kept] == [NOW + 60.0 * minute for minute in (2, 3, 4, 5)]
        forecasts.run([])
        assert forecasts.projections() == {}
        assert shown(forecasts).gap == "no forecast is made yet"


# ---- what pre-warming was worth, on its way into the report ----


DAY = 1440


def split(rates: Array, certainty: float = 0.99) -> tuple[Stretch, Stretch]:
    """The judged week and the time before."""
    week = split_last_week(rates, np.ones(len(rates)), run_past(rates, 5, 3), certainty, usable_rps=2.0, hold=None)
    assert week is not None
    return week


def compare(judged: Stretch, before: Stretch, at_least: int = 1, **changes: Any) -> PrewarmValue:
    requests = judged.world.demand
    given = {"certainty": 0.99, "at_least": at_least, "ratio": None, "requests": requests, "end": 60.0 * len(requests)}
    given |= {name: changes.pop(name) for name in ("certainty", "ratio") if name in changes}
    return compare_strategies(question(currency="USD", **changes), judged, before, **given)


def days(surges: float, count: int, seed: int) -> Array:
    """A daily wave, with a surge of ten minutes every two hours to so many times of it."""
    place = np.arange(count * DAY)
    wave = 10.0 + 6.0 * np.sin(2 * np.pi * place / DAY)
    shape = np.where(place % 120 < 10, surges, 1.0)
    return wave * shape * np.random.default_rng(seed).lognormal(0.0, 0.02, len(place))


def test_reacting_is_chosen_before_judged_week() -> None:
    """It was calm and surges began with the judged week: nobody could have chosen to be careful then."""
    calm, wild = days(1.0, 10, 1), days(3.0, 7, 2)
    for before, after in ((calm, wild), (days(3.0, 10, 1), days(1.0, 7, 2))):
        week = split(np.concatenate([before, after]))
        assert [len(stretch.world.demand) for stretch in week] == [7 * DAY, 10 * DAY - 1]
        price = 4 / 0.01
        judged = SimulatedDemand(demand=after, before=float(before[-1]), capacity=2.0, lead=3)
        known = SimulatedDemand(demand=before[1:], before=float(before[0]), capacity=2.0, lead=3)
        chosen, hindsight = cheapest_reacting(known, price), cheapest_reacting(judged, price)
        assert chosen != hindsight
        told = compare(*week)
        assert told.reacting == f"reacting at {chosen:.0%}"
        assert f"The {chosen:.0%} was the cheapest of the 9 d 23 h before." in told.reason
        assert told.recommended in (told.reacting, told.ours)


def test_minimum_warm_needs_enough_history() -> None:
    rates = days(1.0, 10, 4)
    judged, before = split(rates[: 3 * DAY + 600])
    assert 0.97 < judged.coverage_ratio <= 1.0
    assert np.isfinite(before.quantile).sum() < DAY
    assert before.minimum_warm(0.99, 2, NO_MARGIN) == 2


def test_margin_is_a_line_of_its_own() -> None:
    rates = days(1.5, 12, 5)
    judged, before = split(rates, 0.5)
    bare, told = (
        compare(judged, before, certainty=0.5, margin=margin, replica_hour=2.0) for margin in (NO_MARGIN, margin_of())
    )
    assert bare.with_margin == ""
    assert told.with_margin == "pre-warming with the margin"
    roomy = next(one for one in told.strategies if one.name == told.with_margin)
    ours = next(one for one in told.strategies if one.name == told.ours)
    assert tuple(one for one in told.strategies if one is not roomy) == bare.strategies
    assert (told.recommended, told.reason, told.reacting) == (bare.recommended, bare.reason, bare.reacting)
    counted = simulate_requests(judged.world, judged.quantile, margin=margin_of()).billed
    assert roomy.replica_hours == pytest.approx(counted.sum() / 60)
    assert roomy.replica_hours > ours.replica_hours / 0.9
    assert roomy.violation_minutes < ours.violation_minutes


def test_margin_lowers_the_warm_minimum() -> None:
    """Surges of a half: the margin carries a part of each. In the quiet half of the day the minimum is what is warm."""
    rates = days(1.5, 12, 6)
    rates[np.arange(len(rates)) % DAY < DAY // 2] *= 0.02
    judged, before = split(rates, 0.5)
    margin, ratio = margin_of(), 0.99
    bare, roomy = (before.minimum_warm(ratio, 0, each) for each in (NO_MARGIN, margin))
    assert 0 <= roomy < bare
    world = before.world
    known = np.where(np.isfinite(before.quantile), world.demand, np.nan)
    ready = simulate_requests(world, before.quantile, minimum=0, margin=margin).ready
    assert roomy == minimum_warm(excess(known, ready, world.capacity, world.lead), ratio)

    # Each strategy keeps the minimum that fits its own counts.
    told = compare(judged, before, 0, ratio=ratio, certainty=0.5, margin=margin)
    hours = {strategy.name: strategy.replica_hours for strategy in told.strategies}
    for name, minimum, each in ((told.ours, bare, NO_MARGIN), (told.with_margin, roomy, margin)):
        fleet = simulate_requests(judged.world, judged.quantile, minimum=minimum, margin=each)
        assert hours[name] == pytest.approx(fleet.billed.sum() / 60)


@pytest.fixture(scope="module")
def found() -> ForecastResponse:
    asked = question()
    return TierForecast(asked, series(4 * 1440)).respond(asked)


def test_forecast_reaches_the_report_unchanged(found: ForecastResponse) -> None:
    told = prewarming_from_response(found)
    projection = found.forecast.projection
    assert told.worth == found.prewarm.worth
    assert told.worth.reacting in {one.name for one in told.worth.strategies}
    assert told.covered_ratio == pytest.approx(projection.covered / projection.forecasts)
    assert (told.method, told.naive) == (projection.method, projection.naive)
    assert told.error_ratio == projection.error_ratio
    worthless = replace(found.prewarm, worth=None)
    assert prewarming_from_response(replace(found, prewarm=worthless)) is not None
    assert prewarming_from_response(replace(found, forecast=None, prewarm=worthless)) is None
