"""Forecast of one tier, kept between requests: bins for the day ahead, minutes for the lead, replicas from both.

`TierForecast` starts from minutes, takes further minutes, refits daily, and answers a request. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from agent.forecasting import prewarm_value
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.responses import (
    AHEAD_SECONDS,
    SILENT_MINUTES,
    TOO_YOUNG,
    DemandBins,
    build_recommendation,
    build_schedule,
)
from exporters.documents.forecast import ForecastResult
from exporters.documents.prewarm import Prewarm, Recommendation, with_next_step, without_old_schedule
from exporters.documents.prewarm_value import Highest, PrewarmValue
from exporters.render.text import format_duration
from forecast.capacity.minimum_warm import CapacityPrices
from forecast.capacity.prewarm import Prewarmer, ScalingDecision, certainty, hold_minutes, lead_minutes
from forecast.lead.online import LeadRun, LiveLeadForecast, run_past
from forecast.series.binned import (
    MINUTE_SECONDS,
    Array,
    Series,
)
from forecast.series.calendar import remove_event_effects
from rules.verdicts.projection import Projection

HIGHEST_CERTAINTY = 0.999
"""Maximum certainty. A higher quantile would rest on less than fifteen minutes in ten days."""

NO_START = "how long a start takes is not known: the plan has no cold_start_seconds, and none was seen yet"

HIGH, HIGHER = 0.95, 0.99
"""Certainties of a schedule: a day ahead there are no other quantiles."""


class TierForecast:
    """Forecast of one tier with the settings of a request.

    `work` and `requests` are amounts per minute (or longer bins, of a trace), NaN if unknown, at least one known.
    Replicas are counted for the work. `requests` is None where no lengths are known, so that requests are the work.
    Raises ValueError for unusable bins, ConfigError for a country without known holidays.
    """

    def __init__(self, asked: ForecastRequest, work: Series, requests: Series | None = None) -> None:
        self.settings = asked.settings
        self._capacity = asked.capacity
        self._work = DemandBins(asked, work)
        self._requests = DemandBins(asked, requests) if requests is not None else None
        self._lead = lead_minutes(asked.lead_seconds + asked.settling_seconds) if asked.lead_seconds else None
        self._certainty = self._level(asked)
        self._live, run = None, None
        if self._lead:
            usual, width = self._work.usual(), self._work.bin_minutes
            run = run_past(usual, width, self._lead)
            self._live = LiveLeadForecast(usual, width, self._lead, run)
        self._hold = self._hold_minutes(asked)
        self._refitted = self.end
        self._minimum = max(1, asked.minimum_warm)
        self._worth: PrewarmValue | None = None
        self._decision: ScalingDecision | None = None
        self._warmer: Prewarmer | None = None
        self._look_back(run)
        self._begin_warming(asked.held)

    @property
    def end(self) -> float:
        """Return the end of the minutes, unix seconds."""
        return self._work.end

    def use(self, asked: ForecastRequest) -> None:
        """Count replicas with the capacity of this request from now on. Its settings must be the same.

        The minutes of the hold are counted anew, as by a command that begins with this capacity: both give one count.
        """
        before, self._capacity = self._capacity, asked.capacity
        if before is not None and asked.capacity is not None and before.rps != asked.capacity.rps:
            self._begin_warming(0)

    def revise(self, work: float, requests: float | None = None) -> None:
        """Replace the newest minute: its last seconds are booked with the minute after it. NaN if unknown."""
        for bins, amount in zip(self._kinds, (work, requests), strict=False):
            if amount is not None and np.isfinite(amount):
                bins.rates[-1] = float(amount) / MINUTE_SECONDS
        rate = self._work.rates[-1]
        if self._warmer is not None and self._decision is not None and self._capacity is not None and np.isfinite(rate):
            self._decision = self._warmer.revise(self._decision.quantile_rps, rate, self._capacity)

    def add(self, work: Iterable[float], requests: Iterable[float] = ()) -> None:
        """Add the following minutes; NaN if unknown."""
        for amount in work:
            self._take(float(amount) / MINUTE_SECONDS)
        for amount in requests if self._requests is not None else ():
            self._kinds[-1].take(float(amount) / MINUTE_SECONDS)
        if self.end - self._refitted >= AHEAD_SECONDS:
            self._refitted = self.end
            for bins in self._kinds:
                bins.refit()
            if self._live is not None:
                self._live.refit()
            self._look_back()
            self._begin_warming(self._decision.replicas if self._decision is not None else 0)

    @property
    def _kinds(self) -> tuple[DemandBins, ...]:
        return (self._work,) if self._requests is None else (self._work, self._requests)

    def respond(self, asked: ForecastRequest) -> ForecastResponse:
        """Return the forecast at the request's `now`. Its settings must be the same."""
        forecast, factors = self._work.forecast(asked)
        requests = self._requests.forecast(asked)[0] if self._requests is not None else None
        return ForecastResponse(
            tier=asked.tier,
            made_at=asked.now,
            bin_seconds=asked.bin_seconds,
            forecast=forecast,
            prewarm=self._prewarm(asked, forecast.projection if forecast is not None else None, factors, requests),
            now_rps=self._work.now_rps(),
            requests=requests,
            now_requests=self._kinds[-1].now_rps(),
            minimum_warm=self._minimum if self._warmer is not None else None,
            gap="" if forecast is not None else TOO_YOUNG,
        )

    def _prewarm(
        self, asked: ForecastRequest, projection: Projection | None, factors: Array, requests: ForecastResult | None
    ) -> Prewarm:
        known = np.flatnonzero(np.isfinite(self._work.rates))
        seen_until = self._work.start + (int(known[-1]) + 1) * MINUTE_SECONDS if len(known) else None
        prewarm = Prewarm(
            tier=asked.tier,
            zone=asked.zone,
            recommendation=self._recommendation(asked, projection, requests),
            seen_until=seen_until,
            highest=self._highest_minute(),
            worth=self._worth,
            reason=self._reason(asked, seen_until),
        )
        if self._warmer is not None and asked.capacity and asked.lead_seconds and projection and projection.points:
            high = self._certainty > HIGH
            steps = build_schedule(
                asked,
                projection,
                factors,
                asked.capacity,
                decided=prewarm.recommendation,
                minimum=self._minimum,
                high=high,
            )
            until = projection.points[0].t + len(projection.points) * asked.bin_seconds
            prewarm = replace(prewarm, schedule=steps, schedule_certainty=HIGHER if high else HIGH, until=until)
            prewarm = with_next_step(prewarm, asked.bin_seconds)
        return without_old_schedule(prewarm, asked.now)

    def _recommendation(
        self, asked: ForecastRequest, projection: Projection | None, requests: ForecastResult | None
    ) -> Recommendation | None:
        if self._decision is None or asked.lead_seconds is None:
            return None
        event_factor = self._factor_at_lead()
        expected = self._live.expected if self._live is not None else None
        return build_recommendation(
            asked,
            asked.lead_seconds,
            projection,
            self._decision,
            minimum=self._minimum,
            certainty=self._certainty,
            expected_rps=None if expected is None else expected * event_factor,
            event_factor=event_factor,
            now_requests=self._kinds[-1].now_rps(),
            requests=requests,
            weighed=self._requests is not None,
        )

    def _reason(self, asked: ForecastRequest, seen_until: float | None) -> str:
        """Return why a part is missing, or "" if nothing is."""
        if asked.no_replicas:
            return asked.no_replicas
        if asked.lead_seconds is None:
            return NO_START
        if self._work.now_rps() is None:
            age = "is not known" if seen_until is None else f"is {format_duration(asked.now - seen_until)} old"
            return f"the newest demand of the tier {age}; after {SILENT_MINUTES} min nothing is recommended"
        return "" if self._worth is not None else prewarm_value.TOO_SHORT

    def _highest_minute(self) -> Highest | None:
        """Return the highest minute of the last week."""
        week = np.array(self._work.rates[-prewarm_value.WEEK_MINUTES :])
        if not np.isfinite(week).any():
            return None
        place = int(np.nanargmax(week))
        return Highest(rps=float(week[place]), at=self.end - (len(week) - place) * MINUTE_SECONDS)

    def _take(self, rate: float) -> None:
        self._work.take(rate)
        factor = float(self._work.factors(self.end - MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])
        if self._live is not None:
            self._live.step(float(remove_event_effects(np.array([rate]), np.array([factor]))[0]))
        self._warm()

    def _factor_at_lead(self) -> float:
        return float(self._work.factors(self.end + (self._lead or 0) * MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])

    def _level(self, asked: ForecastRequest) -> float:
        """Return the required certainty: by both prices, else as configured, else by the lead alone."""
        lead, prices = self._lead or lead_minutes(asked.horizon_seconds), _prices(asked)
        if prices is not None and self._capacity is not None:
            return min(certainty(lead, prices.late_to_warm(self._capacity.rps)), HIGHEST_CERTAINTY)
        return certainty(lead) if asked.certainty is None else asked.certainty

    def _hold_minutes(self, asked: ForecastRequest) -> int | None:
        """Return the hold in minutes: long enough that a replica serves before it is released."""
        if asked.hold_seconds is None or self._lead is None:
            return None
        return max(hold_minutes(self._lead), round(asked.hold_seconds / MINUTE_SECONDS))

    def _look_back(self, run: LeadRun | None = None) -> None:
        """Update the worth of pre-warming in the last week, and the minimum that follows from prices."""
        asked = self.settings
        if asked.lead_seconds is None or self._capacity is None or self._lead is None:
            return
        past = prewarm_value.ValueInputs(
            rates=np.array(self._work.rates),
            requests=None if self._requests is None else np.array(self._requests.rates),
            factors=self._work.factors(self._work.start, MINUTE_SECONDS, len(self._work.rates)),
            end=self.end,
            zone=asked.zone,
            bin_minutes=self._work.bin_minutes,
            lead=self._lead,
            certainty=self._certainty,
            usable_rps=self._capacity.rps,
            hold=self._hold,
            margin=asked.margin,
            replica_hour=asked.replica_hour,
            currency=asked.currency,
            run=run,
        )
        week = prewarm_value.simulate_last_week(past)
        if week is None:
            return
        prices, planned = _prices(asked), max(1, asked.minimum_warm)
        ratio = None if prices is None else prices.critical_ratio(self._capacity.rps)
        if ratio is not None:
            self._minimum = prewarm_value.compute_minimum_warm(past, week.judged, ratio, planned, asked.margin)
        self._worth = prewarm_value.worth_lately(past, week, planned, ratio)

    def _begin_warming(self, held: int) -> None:
        """Count replicas from now on. Hold the last recommended replicas (`held`) and the needs of the last minutes."""
        asked = self.settings
        if asked.lead_seconds is None or self._capacity is None or self._lead is None:
            return
        hold = self._hold or hold_minutes(self._lead)
        self._warmer = Prewarmer(
            minimum=self._minimum,
            hold=hold,
            margin=asked.margin,
        )
        for rate in self._work.rates[-hold:-1]:
            if np.isfinite(rate):
                self._warmer.step(None, rate, self._capacity)
        if held:
            self._warmer.remember(held)
        self._warm()

    def _warm(self) -> None:
        rate = self._work.now_rps()
        if self._warmer is None or self._live is None or self._lead is None or rate is None:
            self._decision = None
            return
        quantile = self._live.quantile(self._certainty)
        if quantile is not None:
            quantile *= self._factor_at_lead()
        assert self._capacity is not None
        self._decision = self._warmer.step(quantile, rate, self._capacity)


def _prices(asked: ForecastRequest) -> CapacityPrices | None:
    if asked.late_request is None or asked.replica_hour is None:
        return None
    return CapacityPrices(replica_hour=asked.replica_hour, late_request=asked.late_request)
