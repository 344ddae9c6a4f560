"""Forecast of one tier, kept between requests: bins for the day ahead, minutes for the lead, replicas from both.

`TierForecast` starts from minutes, takes further minutes, refits daily, and answers a request. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date

import numpy as np

from agent.errors import ConfigError
from agent.forecasting import prewarm_value
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.responses import TOO_YOUNG, build_forecast, build_recommendation, build_schedule
from exporters.documents.prewarm import Prewarm, Recommendation, without_old_schedule
from exporters.documents.prewarm_value import Highest, PrewarmValue
from exporters.render.svg_charts import Seen
from exporters.render.text import format_duration
from forecast.capacity.minimum_warm import CapacityPrices
from forecast.capacity.prewarm import Prewarmer, ScalingDecision, certainty, hold_minutes, lead_minutes
from forecast.lead.online import KEPT_DAYS, LiveLeadForecast
from forecast.models.bin_forecaster import Forecaster
from forecast.series.binned import (
    DAY_MINUTES,
    MINUTE_SECONDS,
    Array,
    Series,
    last_bins,
    per_minute,
    rates,
    resample,
    select_bins,
)
from forecast.series.calendar import event_factors, local_days, public_holidays, remove_event_effects
from rules.verdicts.projection import Projection

AHEAD_SECONDS = 86_400.0
KEPT_SECONDS = KEPT_DAYS * 86_400.0

SEEN_SECONDS = 86_400.0
KNOWN_SHARE = 0.5
"""Minimum known share of a bin in the displayed history."""

HIGHEST_CERTAINTY = 0.999
"""Maximum certainty. A higher quantile would rest on less than fifteen minutes in ten days."""

SILENT_MINUTES = 10
"""Maximum age in minutes of the demand that counts as present. After that there is no recommendation."""

NO_START = "how long a start takes is not known: the plan has no cold_start_seconds, and none was seen yet"

HIGH, HIGHER = 0.95, 0.99
"""Certainties of a schedule: a day ahead there are no other quantiles."""


def sundays(country: str | None, series: Series, n: int) -> Mapping[date, str]:
    """Return the public holidays of a country on the grid of a series of `n` bins. Raise ConfigError."""
    if country is None:
        return {}
    try:
        return public_holidays(country, local_days(series.start, series.bin_seconds, n, series.zone))
    except ValueError as error:
        raise ConfigError((f"forecast.country: {error}",)) from None


class TierForecast:
    """Forecast of one tier with the settings of a request.

    `minutes` are amounts per minute (or longer bins, of a trace), NaN if unknown, at least one known. Raises ValueError
    for unusable bins, ConfigError for a country without known holidays.
    """

    def __init__(self, asked: ForecastRequest, minutes: Series) -> None:
        self.settings = asked.settings
        self._capacity = asked.capacity
        self._bin_minutes = round(asked.bin_seconds / MINUTE_SECONDS)
        begun = _from_whole_bin(_by_minute(last_bins(minutes, KEPT_SECONDS)), asked.bin_seconds)
        self._start, self._rates = begun.start, (begun.values / MINUTE_SECONDS).tolist()
        self._bins_taken = len(self._rates) // self._bin_minutes
        self._forecaster = self._first_forecaster()
        self._lead = lead_minutes(asked.lead_seconds + asked.settling_seconds) if asked.lead_seconds else None
        self._certainty = self._level(asked)
        self._live = LiveLeadForecast(self._usual(), self._bin_minutes, self._lead) if self._lead else None
        self._hold = self._hold_minutes(asked)
        self._refitted = self.end
        self._minimum = max(1, asked.minimum_warm)
        self._worth: PrewarmValue | None = None
        self._decision: ScalingDecision | None = None
        self._warmer: Prewarmer | None = None
        self._look_back()
        self._begin_warming(asked.held)

    @property
    def end(self) -> float:
        """Return the end of the minutes, unix seconds."""
        return self._start + len(self._rates) * MINUTE_SECONDS

    def use(self, asked: ForecastRequest) -> None:
        """Count replicas with the capacity of this request from now on. Its settings must be the same."""
        self._capacity = asked.capacity

    def add(self, amounts: Iterable[float]) -> None:
        """Add the following minutes; NaN if unknown."""
        for amount in amounts:
            self._take(float(amount) / MINUTE_SECONDS)
        if self.end - self._refitted >= AHEAD_SECONDS:
            self._refitted = self.end
            if self._forecaster is not None:
                self._forecaster.refit()
            if self._live is not None:
                self._live.refit()
            self._look_back()
            self._begin_warming(self._decision.replicas if self._decision is not None else 0)
            self._forget()

    def respond(self, asked: ForecastRequest) -> ForecastResponse:
        """Return the forecast at the request's `now`. Its settings must be the same."""
        forecaster, forecast, factors = self._forecaster, None, np.ones(0)
        path = forecaster.path(round(AHEAD_SECONDS / asked.bin_seconds)) if forecaster is not None else None
        if forecaster is not None and path is not None:
            factors = self._factors(path.start, path.bin_seconds, path.quantiles.shape[1])
            forecast = build_forecast(
                asked.tier,
                path,
                factors,
                forecaster.quality(),
                made_at=asked.now,
                horizon_seconds=asked.horizon_seconds,
                zone=asked.zone,
                bin_seconds=asked.bin_seconds,
                seen=self._seen(asked),
            )
        return ForecastResponse(
            tier=asked.tier,
            made_at=asked.now,
            bin_seconds=asked.bin_seconds,
            forecast=forecast,
            prewarm=self._prewarm(asked, forecast.projection if forecast is not None else None, factors),
            now_rps=self._now_rps(),
            minimum_warm=self._minimum if self._warmer is not None else None,
            gap="" if forecast is not None else TOO_YOUNG,
        )

    def _prewarm(self, asked: ForecastRequest, projection: Projection | None, factors: Array) -> Prewarm:
        known = np.flatnonzero(np.isfinite(self._rates))
        seen_until = self._start + (int(known[-1]) + 1) * MINUTE_SECONDS if len(known) else None
        prewarm = Prewarm(
            tier=asked.tier,
            zone=asked.zone,
            recommendation=self._recommendation(asked, projection),
            seen_until=seen_until,
            highest=self._highest_minute(),
            worth=self._worth,
            reason=self._reason(asked, seen_until),
        )
        if self._warmer is not None and asked.capacity and asked.lead_seconds and projection and projection.points:
            high = self._certainty > HIGH
            steps = build_schedule(asked, projection, factors, asked.capacity, minimum=self._minimum, high=high)
            until = projection.points[0].t + len(projection.points) * asked.bin_seconds
            prewarm = replace(prewarm, schedule=steps, schedule_certainty=HIGHER if high else HIGH, until=until)
        return without_old_schedule(prewarm, asked.now)

    def _recommendation(self, asked: ForecastRequest, projection: Projection | None) -> Recommendation | None:
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
        )

    def _reason(self, asked: ForecastRequest, seen_until: float | None) -> str:
        """Return why a part is missing, or "" if nothing is."""
        if asked.no_replicas:
            return asked.no_replicas
        if asked.lead_seconds is None:
            return NO_START
        if self._now_rps() is None:
            age = "is not known" if seen_until is None else f"is {format_duration(asked.now - seen_until)} old"
            return f"the newest demand of the tier {age}; after {SILENT_MINUTES} min nothing is recommended"
        return "" if self._worth is not None else prewarm_value.TOO_SHORT

    def _highest_minute(self) -> Highest | None:
        """Return the highest minute of the last week."""
        week = np.array(self._rates[-prewarm_value.WEEK_MINUTES :])
        if not np.isfinite(week).any():
            return None
        place = int(np.nanargmax(week))
        return Highest(rps=float(week[place]), at=self.end - (len(week) - place) * MINUTE_SECONDS)

    def _take(self, rate: float) -> None:
        self._rates.append(rate)
        factor = float(self._factors(self.end - MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])
        if self._live is not None:
            self._live.step(float(remove_event_effects(np.array([rate]), np.array([factor]))[0]))
        if len(self._rates) // self._bin_minutes > self._bins_taken:
            self._bins_taken += 1
            if self._forecaster is None:
                self._forecaster = self._first_forecaster()
            else:
                self._forecaster.step(float(self._bins(first=self._bins_taken - 1).values[0]))
        self._warm()

    def _first_forecaster(self) -> Forecaster | None:
        """Return a forecaster of all whole bins, or None if no bin is known."""
        bins, asked = self._bins(), self.settings
        if not np.isfinite(bins.values).any():
            return None
        # Public holidays of a year ahead: no process runs longer without a reload or an update.
        count = len(bins) + round(366 * AHEAD_SECONDS / asked.bin_seconds)
        return follow_last_day(bins, asked.horizon_seconds, tuple(sundays(asked.country, bins, count)))

    def _bins(self, first: int = 0) -> Series:
        """Return the whole bins from `first` on, without known events."""
        count = len(self._rates) // self._bin_minutes
        seconds = self._bin_minutes * MINUTE_SECONDS
        amounts = np.array(self._rates[first * self._bin_minutes : count * self._bin_minutes]) * MINUTE_SECONDS
        series = Series(
            start=self._start + first * seconds, bin_seconds=MINUTE_SECONDS, values=amounts, zone=self.settings.zone
        )
        coarse = resample(series, seconds)
        factors = self._factors(coarse.start, seconds, len(coarse))
        return replace(coarse, values=remove_event_effects(coarse.values, factors))

    def _usual(self) -> Array:
        factors = self._factors(self._start, MINUTE_SECONDS, len(self._rates))
        return remove_event_effects(np.array(self._rates), factors)

    def _factors(self, start: float, seconds: float, count: int) -> Array:
        return event_factors(self.settings.events, start, seconds, count, self.settings.zone)

    def _factor_at_lead(self) -> float:
        return float(self._factors(self.end + (self._lead or 0) * MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])

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

    def _look_back(self) -> None:
        """Update the worth of pre-warming in the last week, and the minimum that follows from prices."""
        asked = self.settings
        if asked.lead_seconds is None or self._capacity is None or self._lead is None:
            return
        past = prewarm_value.ValueInputs(
            rates=np.array(self._rates),
            factors=self._factors(self._start, MINUTE_SECONDS, len(self._rates)),
            end=self.end,
            zone=asked.zone,
            bin_minutes=self._bin_minutes,
            lead=self._lead,
            certainty=self._certainty,
            usable_rps=self._capacity.rps,
            hold=self._hold,
            margin=asked.margin,
            replica_hour=asked.replica_hour,
            currency=asked.currency,
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
        for rate in self._rates[-hold:-1]:
            if np.isfinite(rate):
                self._warmer.step(None, rate, self._capacity)
        self._warmer.remember(held)
        self._warm()

    def _warm(self) -> None:
        rate = self._now_rps()
        if self._warmer is None or self._live is None or self._lead is None or rate is None:
            self._decision = None
            return
        quantile = self._live.quantile(self._certainty)
        if quantile is not None:
            quantile *= self._factor_at_lead()
        assert self._capacity is not None
        self._decision = self._warmer.step(quantile, rate, self._capacity)

    def _now_rps(self) -> float | None:
        """Return the demand of the last known minute, or None if it is too old."""
        return next((rate for rate in reversed(self._rates[-SILENT_MINUTES:]) if np.isfinite(rate)), None)

    def _seen(self, asked: ForecastRequest) -> tuple[Seen, ...]:
        """Return the bins of the last day in requests per second; None with less than half of a bin known."""
        count = len(self._rates) // self._bin_minutes
        first = max(0, count - round(SEEN_SECONDS / asked.bin_seconds))
        parts = np.array(self._rates[first * self._bin_minutes : count * self._bin_minutes])
        bins = parts.reshape(-1, self._bin_minutes)
        start = self._start + first * asked.bin_seconds
        return tuple(
            (
                start + place * asked.bin_seconds,
                float(np.nanmean(one)) if np.isfinite(one).mean() >= KNOWN_SHARE else None,
            )
            for place, one in enumerate(bins)
        )

    def _forget(self) -> None:
        """Drop whole days before the kept time."""
        surplus = max(0, len(self._rates) - round(KEPT_SECONDS / MINUTE_SECONDS)) // DAY_MINUTES * DAY_MINUTES
        del self._rates[:surplus]
        self._start += surplus * MINUTE_SECONDS
        self._bins_taken -= surplus // self._bin_minutes


def _prices(asked: ForecastRequest) -> CapacityPrices | None:
    if asked.late_request is None or asked.replica_hour is None:
        return None
    return CapacityPrices(replica_hour=asked.replica_hour, late_request=asked.late_request)


def _by_minute(series: Series) -> Series:
    """Return the minutes of a series of longer bins, interpolated."""
    width = round(series.bin_seconds / MINUTE_SECONDS)
    if width <= 1:
        return series
    values = per_minute(rates(series), width) * MINUTE_SECONDS
    return Series(start=series.start, bin_seconds=MINUTE_SECONDS, values=values, zone=series.zone)


def _from_whole_bin(minutes: Series, bin_seconds: float) -> Series:
    """Return the minutes from the start of a whole bin on. Minutes before the series are unknown."""
    early = round((minutes.start % bin_seconds) / MINUTE_SECONDS)
    values = np.concatenate([np.full(early, np.nan), minutes.values])
    return replace(minutes, start=minutes.start - early * MINUTE_SECONDS, values=values)


def follow_last_day(bins: Series, ahead_seconds: float, days: Collection[date]) -> Forecaster:
    """Return a forecaster that has followed the last day bin by bin: its coverage and error are those of real forecasts.

    `days` are like Sundays. At least one bin is known.
    """
    known = int(np.flatnonzero(np.isfinite(bins.values))[0])
    first = max(len(bins) - round(AHEAD_SECONDS / bins.bin_seconds), known + 1)
    forecaster = Forecaster(select_bins(bins, end=first), ahead_seconds=ahead_seconds, sundays=days)
    for value in bins.values[first:]:
        forecaster.step(float(value))
    return forecaster
