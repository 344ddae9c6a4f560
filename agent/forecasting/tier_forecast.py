"""Forecast of one tier, kept between requests: bins for the day ahead, minutes for the lead, replicas from both.

`TierForecast` starts from minutes, takes further minutes and answers a request. No I/O and no clock.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agent.forecasting import prewarm_value
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.responses import SILENT_MINUTES, TOO_YOUNG, DemandBins
from exporters.documents.forecast import (
    ForecastResult,
    Prewarm,
    PrewarmValue,
    Recommendation,
    with_next_step,
    without_old_schedule,
)
from exporters.render.text import copy_fields
from forecast.capacity.minimum_warm import CapacityPrices
from forecast.capacity.prewarm import (
    Prewarmer,
    ScalingDecision,
    ScheduleStep,
    certainty,
    hold_minutes,
    lead_minutes,
    schedule,
)
from forecast.lead.online import LeadRun, LiveLeadForecast, run_past
from forecast.series.binned import MINUTE_SECONDS, Array, Series
from forecast.series.calendar import remove_event_effects
from rules.plan.replica_count import replica_count
from rules.telemetry.wording import format_duration
from rules.telemetry.work import UNTOLD, Capacity, describe_weighing
from rules.verdicts.context import Projection

HIGHEST_CERTAINTY = 0.999
"""Maximum certainty. A higher quantile would rest on less than fifteen minutes in ten days."""

NO_START = "how long a start takes is not known: the plan has no cold_start_seconds, and none was seen yet"

HIGH, HIGHER = 0.95, 0.99
"""Certainties of a schedule: a day ahead there are no other quantiles."""


class TierForecast:
    """Forecast of one tier with the settings of a request.

    `work` and `requests` are as those of DemandBins, which raises. Replicas are counted for the work. `requests` is None
    where no lengths are known, so that requests are the work.
    """

    def __init__(self, request: ForecastRequest, work: Series, requests: Series | None = None) -> None:
        self.settings = request.settings
        self._capacity = request.capacity
        self._kinds = [DemandBins(request, series) for series in (work, requests) if series is not None]
        self._work = self._kinds[0]
        self.started_at = self.end
        self._lead = lead_minutes(request.lead_seconds + request.settling_seconds) if request.lead_seconds else None
        self._certainty = self._level(request)
        # Long enough that a replica serves before it is released.
        self._hold: int | None = None
        if request.hold_seconds is not None and self._lead is not None:
            self._hold = max(hold_minutes(self._lead), round(request.hold_seconds / MINUTE_SECONDS))
        self._minimum = max(1, request.minimum_warm)
        self._live: LiveLeadForecast | None = None
        self._worth: PrewarmValue | None = None
        self._decision: ScalingDecision | None = None
        self._warmer: Prewarmer | None = None
        if self._lead:
            usual, width = self._work.usual(), self._work.bin_minutes
            run = run_past(usual, width, self._lead)
            self._live = LiveLeadForecast(usual, width, self._lead, run)
            if request.capacity is not None:
                self._look_back(request, request.capacity, run)
        self._begin_warming(request.held)

    @property
    def end(self) -> float:
        """Return the end of the minutes, unix seconds."""
        return self._work.end

    def follow(self, request: ForecastRequest, *kinds: Array) -> None:
        """Take the next minutes of the work and of the requests; NaN if unknown. The settings must be the same.

        The first is the newest known minute: its last seconds are booked with the minute after it. After a change of the
        capacity the minutes of the hold are counted anew, as by a command that begins with it.
        """
        for bins, amounts in zip(self._kinds, kinds, strict=True):
            if np.isfinite(amounts[0]):
                bins.rates[-1] = float(amounts[0]) / MINUTE_SECONDS
        before, self._capacity, rate = self._capacity, request.capacity, self._work.rates[-1]
        if before is not None and request.capacity is not None and before.rps != request.capacity.rps:
            self._begin_warming(0)
        elif self._warmer and self._decision is not None and request.capacity is not None and np.isfinite(rate):
            self._decision = self._warmer.revise(self._decision.quantile_rps, rate, request.capacity)
        for amount in kinds[0][1:].tolist():
            self._work.take(amount / MINUTE_SECONDS)
            if self._live is not None:
                factor = self._work.factors(self.end - MINUTE_SECONDS, MINUTE_SECONDS, 1)
                self._live.step(float(remove_event_effects(np.array(self._work.rates[-1:]), factor)[0]))
            self._warm()
        for bins, amounts in zip(self._kinds[1:], kinds[1:], strict=True):
            for amount in amounts[1:].tolist():
                bins.take(amount / MINUTE_SECONDS)

    def respond(self, request: ForecastRequest) -> ForecastResponse:
        """Return the forecast at the request's `now`. Its settings must be the same."""
        forecast, factors = self._work.forecast(request)
        requests = None
        for bins in self._kinds[1:]:
            requests, _ = bins.forecast(request)
        response = ForecastResponse(
            tier=request.tier,
            made_at=request.now,
            bin_seconds=request.bin_seconds,
            forecast=forecast,
            prewarm=self._prewarm(request, forecast, factors, requests),
            now_rps=self._work.now_rps(),
            requests=requests,
            now_requests=self._kinds[-1].now_rps(),
        )
        if forecast is None:
            response = replace(response, gap=TOO_YOUNG)
        if self._warmer is None:
            return response
        return replace(response, minimum_warm=self._minimum)

    def _prewarm(
        self, request: ForecastRequest, forecast: ForecastResult | None, factors: Array, requests: ForecastResult | None
    ) -> Prewarm:
        known = np.flatnonzero(np.isfinite(self._work.rates))
        seen_until = None
        if len(known):
            seen_until = self._work.start + (int(known[-1]) + 1) * MINUTE_SECONDS
        prewarm = Prewarm(
            tier=request.tier,
            zone=request.zone,
            recommendation=self._recommendation(request, requests),
            seen_until=seen_until,
            worth=self._worth,
            reason=self._reason(request, seen_until),
        )
        if self._warmer is not None and request.capacity and request.lead_seconds and forecast:
            prewarm = self._with_schedule(prewarm, request, forecast.projection, factors)
            prewarm = with_next_step(prewarm, request.bin_seconds)
        return without_old_schedule(prewarm, request.now)

    def _with_schedule(
        self, prewarm: Prewarm, request: ForecastRequest, projection: Projection, factors: Array
    ) -> Prewarm:
        """Return the report with the schedule of a day. At the time of the recommendation it has at least its count."""
        assert request.capacity is not None
        points, decided = projection.points, prewarm.recommendation
        is_high = self._certainty > HIGH
        first = None
        if decided is not None:
            first = ScheduleStep(
                start=decided.target_time, replicas=decided.replicas, demand_rps=decided.count.demand_rps
            )
        steps = schedule(
            [point.q99 if is_high else point.q95 for point in points],
            start=points[0].t,
            bin_seconds=request.bin_seconds,
            capacity_rps=request.capacity.rps,
            margin=request.margin,
            minimum=self._minimum,
            decided=first,
        )
        bins = {point.t: (point.q50, float(factor)) for point, factor in zip(points, factors, strict=True)}
        named = []
        for step in steps:
            if step.peak is not None:
                step = replace(step, expected_rps=bins[step.peak][0], event_factor=bins[step.peak][1])
            named.append(step)
        until = points[0].t + len(points) * request.bin_seconds
        return replace(prewarm, schedule=tuple(named), schedule_certainty=HIGHER if is_high else HIGH, until=until)

    def _recommendation(self, request: ForecastRequest, requests: ForecastResult | None) -> Recommendation | None:
        decision, lead_seconds = self._decision, request.lead_seconds
        if decision is None or lead_seconds is None:
            return None
        capacity, event_factor = decision.capacity, self._factor_at_lead()
        expected = None
        if self._live is not None and decision.quantile_rps is not None:
            expected = self._live.expected
        ahead = requests.projection.points if requests is not None else ()
        until = request.now + lead_seconds
        expected_requests = next((point.q50 for point in reversed(ahead) if point.t <= until), None)
        now_requests = self._kinds[-1].now_rps()
        lengths = capacity.lengths if len(self._kinds) > 1 else UNTOLD
        demand = max(decision.quantile_rps or 0.0, decision.now_rps)
        counted = replica_count(demand, capacity, request.margin, minimum=self._minimum)
        return Recommendation(
            made_at=request.now,
            zone=request.zone,
            lead_seconds=lead_seconds,
            lead_source=request.lead_source,
            certainty=self._certainty,
            expected_rps=None if expected is None else expected * event_factor,
            event_factor=event_factor,
            now_requests=now_requests,
            expected_requests=expected_requests,
            weighing=describe_weighing(decision.now_rps, now_requests, lengths, expected_requests),
            count=replace(counted, replicas=decision.replicas),
            **copy_fields(
                decision, "replicas", "decided_by", "quantile_rps", "for_forecast", "held", "now_rps", "needed_now"
            ),
            minimum_warm=self._minimum,
        )

    def _reason(self, request: ForecastRequest, seen_until: float | None) -> str:
        if request.no_replicas:
            return request.no_replicas
        if request.lead_seconds is None:
            return NO_START
        if self._work.now_rps() is None:
            age = "is not known" if seen_until is None else f"is {format_duration(request.now - seen_until)} old"
            return f"the newest demand of the tier {age}; after {SILENT_MINUTES} min nothing is recommended"
        if self._worth is not None:
            return ""
        return prewarm_value.TOO_SHORT

    def _factor_at_lead(self) -> float:
        return float(self._work.factors(self.end + (self._lead or 0) * MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])

    def _level(self, request: ForecastRequest) -> float:
        """Return the required certainty: by both prices, else as configured, else by the lead alone."""
        lead, prices = self._lead or lead_minutes(request.horizon_seconds), _prices(request)
        if prices is not None and self._capacity is not None:
            return min(certainty(lead, prices.late_to_warm(self._capacity.rps)), HIGHEST_CERTAINTY)
        if request.certainty is None:
            return certainty(lead)
        return request.certainty

    def _look_back(self, request: ForecastRequest, capacity: Capacity, run: LeadRun) -> None:
        past = self._work
        factors, rates = past.factors(past.start, MINUTE_SECONDS, len(past.rates)), np.array(past.rates)
        week = prewarm_value.split_last_week(rates, factors, run, self._certainty, capacity.rps, self._hold)
        if week is None:
            return
        prices, planned = _prices(request), self._minimum
        ratio = None if prices is None else prices.critical_ratio(capacity.rps)
        if ratio is not None:
            self._minimum = week[0].minimum_warm(ratio, planned, request.margin)
        self._worth = prewarm_value.compare_strategies(
            request,
            *week,
            certainty=self._certainty,
            at_least=planned,
            ratio=ratio,
            requests=np.array(self._kinds[-1].rates),
            end=self.end,
        )

    def _begin_warming(self, held: int) -> None:
        """Count replicas from now on. Hold the last recommended replicas (`held`) and the needs of the last minutes."""
        if self._capacity is None or self._lead is None:
            return
        hold = self._hold or hold_minutes(self._lead)
        self._warmer = Prewarmer(minimum=self._minimum, hold=hold, margin=self.settings.margin)
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


def _prices(request: ForecastRequest) -> CapacityPrices | None:
    if request.late_request is None or request.replica_hour is None:
        return None
    return CapacityPrices(replica_hour=request.replica_hour, late_request=request.late_request)
