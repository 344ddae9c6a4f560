"""The forecast of one tier, kept between questions: bins for the day ahead, minutes for the lead, replicas from both.

Owns how the parts of `forecast/` work together on what arrives at a tier, from a history or from a trace: no I/O and no clock.
How what is found becomes an answer is `agent.forecasting.responses`'s.
`TierForecast` is made from minutes, takes further ones, refits daily, and answers a question with plain records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from agent.forecasting import prewarm_value, responses
from agent.forecasting.calendar_events import list_calendar_events, sundays
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.prewarm_value import LiveLeadForecast
from agent.forecasting.responses import ReplicaForecast
from exporters.documents.prewarm_value import PrewarmValue
from exporters.documents.prewarm_wording import Highest
from forecast.capacity.minimum_warm import CapacityPrices
from forecast.capacity.prewarm import Prewarmer, ScalingDecision, certainty, hold_minutes, lead_minutes
from forecast.capacity.simulation_history import MINUTE_SECONDS, Interpolation, per_minute, rates
from forecast.lead.online import DAY_MINUTES
from forecast.models.bin_forecaster import Forecaster
from forecast.series.binned import Array, Series, last_bins, resample
from forecast.series.calendar import event_factors

AHEAD_SECONDS = 86_400.0
KEPT_SECONDS = 34 * 86_400.0
"""Four weeks to learn from, and a few days of their errors."""

SEEN_SECONDS = 86_400.0
KNOWN_SHARE = 0.5

HIGHEST_CERTAINTY = 0.999
"""A quantile above is a guess: it would rest on less than fifteen minutes in ten days."""


class TierForecast:
    """What is known of one tier under one question's settings. `minutes` are amounts a minute (or longer bins, of a trace),
    NaN where nothing is known, at least one known. Raises ValueError for bins that cannot be used, BadConfig for a country
    without known holidays."""

    def __init__(self, asked: ForecastRequest, minutes: Series) -> None:
        self.settings = asked.settings
        self._capacity = asked.capacity
        self._bin_minutes = round(asked.bin_seconds / MINUTE_SECONDS)
        self._events = list_calendar_events(asked)
        begun = _from_whole_bin(_by_minute(last_bins(minutes, KEPT_SECONDS)), asked.bin_seconds)
        self._start, self._rates = begun.start, (begun.values / MINUTE_SECONDS).tolist()
        self._bins_taken = len(self._rates) // self._bin_minutes
        self._forecaster = self._first_forecaster()
        self._lead = lead_minutes(asked.lead_seconds + asked.settling_seconds) if asked.lead_seconds else None
        self._certainty = self._level(asked)
        self._now = LiveLeadForecast(self._usual(), self._bin_minutes, self._lead) if self._lead else None
        self._hold = self._hold_minutes(asked)
        self._refitted = self.end
        self._minimum = max(1, asked.minimum_warm)
        self._worth: PrewarmValue | None = None
        self._why: ScalingDecision | None = None
        self._warmer: Prewarmer | None = None
        self._look_back()
        self._begin_warming(asked.held)

    @property
    def end(self) -> float:
        """Up to where minutes are known, unix seconds."""
        return self._start + len(self._rates) * MINUTE_SECONDS

    def use(self, asked: ForecastRequest) -> None:
        """From now on count replicas with the capacity of this question; its settings must be those that this was made with."""
        self._capacity = asked.capacity

    def add(self, amounts: Iterable[float]) -> None:
        """The minutes that follow: what arrived in each, NaN where it is not known."""
        for amount in amounts:
            self._take(float(amount) / MINUTE_SECONDS)
        if self.end - self._refitted >= AHEAD_SECONDS:
            self._refitted = self.end
            if self._forecaster is not None:
                self._forecaster.refit()
            if self._now is not None:
                self._now.refit()
            self._look_back()
            self._begin_warming(self._why.replicas if self._why is not None else 0)
            self._forget()

    def answer(self, asked: ForecastRequest) -> ForecastResponse:
        """What is found at the question's `now`. Its settings must be those that this was made with."""
        maker, ahead = self._forecaster, round(AHEAD_SECONDS / asked.bin_seconds)
        path = maker.path(ahead) if maker is not None else None
        told, factors = None, np.ones(0)
        if maker is not None and path is not None:
            factors = self._factors(path.start, path.bin_seconds, len(path.q50))
            told = responses.forecast(asked, path, factors, maker.quality(), self._seen(asked))
        found = ReplicaForecast(
            why=self._why,
            now_rps=self._now_rps(),
            minimum=self._minimum,
            certainty=self._certainty,
            warming=self._warmer is not None,
            worth=self._worth,
            demand=self._demand(factors),
        )
        return responses.build_response(asked, told, found)

    def _take(self, rate: float) -> None:
        self._rates.append(rate)
        factor = float(self._factors(self.end - MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])
        if self._now is not None:
            self._now.step(float(prewarm_value.remove_event_factors(np.array([rate]), np.array([factor]))[0]))
        if len(self._rates) // self._bin_minutes > self._bins_taken:
            self._bins_taken += 1
            if self._forecaster is None:
                self._forecaster = self._first_forecaster()
            else:
                self._forecaster.step(float(self._bins(first=self._bins_taken - 1).values[0]))
        self._warm()

    def _first_forecaster(self) -> Forecaster | None:
        """From all whole bins; None while nothing is known of any.

        The last day is followed bin by bin, so that coverage and error are known at once: those of forecasts that were made.
        """
        bins, asked = self._bins(), self.settings
        known = np.flatnonzero(np.isfinite(bins.values))
        if not len(known):
            return None
        # Public holidays of a year ahead: no process that is reloaded, updated or moved now and then lasts longer.
        count = len(bins) + round(366 * AHEAD_SECONDS / asked.bin_seconds)
        days = tuple(sundays(asked, bins.start, asked.bin_seconds, count))
        first = max(len(bins) - round(AHEAD_SECONDS / asked.bin_seconds), int(known[0]) + 1)
        before = replace(bins, values=bins.values[:first])
        made = Forecaster(before, ahead_seconds=asked.horizon_seconds, sundays=days)
        for value in bins.values[first:]:
            made.step(float(value))
        return made

    def _bins(self, first: int = 0) -> Series:
        """The whole bins from `first` on, without what known events added."""
        count = len(self._rates) // self._bin_minutes
        seconds = self._bin_minutes * MINUTE_SECONDS
        amounts = np.array(self._rates[first * self._bin_minutes : count * self._bin_minutes]) * MINUTE_SECONDS
        series = Series(
            start=self._start + first * seconds, bin_seconds=MINUTE_SECONDS, values=amounts, zone=self.settings.zone
        )
        coarse = resample(series, seconds)
        usual = prewarm_value.remove_event_factors(coarse.values, self._factors(coarse.start, seconds, len(coarse)))
        return Series(start=coarse.start, bin_seconds=seconds, values=usual, zone=self.settings.zone)

    def _usual(self) -> Array:
        factors = self._factors(self._start, MINUTE_SECONDS, len(self._rates))
        return prewarm_value.remove_event_factors(np.array(self._rates), factors)

    def _factors(self, start: float, seconds: float, count: int) -> Array:
        if not self._events:
            return np.ones(count)
        return event_factors(self._events, start, seconds, count, self.settings.zone)

    def _level(self, asked: ForecastRequest) -> float:
        """How sure the capacity must be: by the prices where both are known, else as configured, else by the lead alone."""
        lead, prices = self._lead or lead_minutes(asked.horizon_seconds), _prices(asked)
        if prices is not None and self._capacity is not None:
            return min(certainty(lead, prices.late_to_warm(self._capacity.rps)), HIGHEST_CERTAINTY)
        return certainty(lead) if asked.certainty is None else asked.certainty

    def _hold_minutes(self, asked: ForecastRequest) -> int | None:
        """The hold in minutes; never so short that a replica would be given up before it has served."""
        if asked.hold_seconds is None or self._lead is None:
            return None
        return max(hold_minutes(self._lead), round(asked.hold_seconds / MINUTE_SECONDS))

    def _look_back(self) -> None:
        """What pre-warming was worth lately, and the minimum that follows from prices."""
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
            self._minimum = prewarm_value.compute_minimum_warm(past, week.judged, ratio, planned, asked.margin).replicas
        self._worth = prewarm_value.worth_lately(past, week, planned, ratio)

    def _begin_warming(self, held: int) -> None:
        """Replicas are counted from now on; those that were recommended last (`held`), and what the last minutes needed, are
        held as if they had just been asked for."""
        asked = self.settings
        if asked.lead_seconds is None or self._capacity is None or self._lead is None:
            return
        hold = self._hold or hold_minutes(self._lead)
        self._warmer = Prewarmer(
            lead_seconds=asked.lead_seconds,
            minimum=self._minimum,
            certainty=self._certainty,
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
        if self._warmer is None or self._now is None or self._lead is None or rate is None:
            self._why = None
            return
        quantile = self._now.quantile(self._certainty)
        if quantile is not None:
            quantile *= float(self._factors(self.end + self._lead * MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])
        assert self._capacity is not None
        self._why = self._warmer.step(quantile, rate, self._capacity)

    def _demand(self, factors: Array) -> responses.FoundDemand:
        """What is said of demand beside its quantiles; `factors` are those of the path's bins."""
        event = float(self._factors(self.end + (self._lead or 0) * MINUTE_SECONDS, MINUTE_SECONDS, 1)[0])
        expected = self._now.expected if self._now is not None else None
        known = np.flatnonzero(np.isfinite(self._rates))
        week = np.array(self._rates[-prewarm_value.WEEK_MINUTES :])
        most = int(np.nanargmax(week)) if np.isfinite(week).any() else None
        return responses.FoundDemand(
            seen_until=self._start + (int(known[-1]) + 1) * MINUTE_SECONDS if len(known) else None,
            expected_rps=None if expected is None else expected * event,
            event_factor=event,
            path_factors=factors,
            highest=None
            if most is None
            else Highest(rps=float(week[most]), at=self.end - (len(week) - most) * MINUTE_SECONDS),
        )

    def _now_rps(self) -> float | None:
        """What arrives now: the last minute that is known, if that is not long ago."""
        return next((rate for rate in reversed(self._rates[-responses.SILENT_MINUTES :]) if np.isfinite(rate)), None)

    def _seen(self, asked: ForecastRequest) -> tuple[tuple[float, float | None], ...]:
        """The bins of the last day, requests per second; None where less than half of one is known."""
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
        """Whole days beyond what is kept."""
        surplus = max(0, len(self._rates) - round(KEPT_SECONDS / MINUTE_SECONDS)) // DAY_MINUTES * DAY_MINUTES
        del self._rates[:surplus]
        self._start += surplus * MINUTE_SECONDS
        self._bins_taken -= surplus // self._bin_minutes


def _prices(asked: ForecastRequest) -> CapacityPrices | None:
    if asked.late_request is None or asked.replica_hour is None:
        return None
    return CapacityPrices(replica_hour=asked.replica_hour, late_request=asked.late_request)


def _by_minute(series: Series) -> Series:
    """Minutes of a series of longer bins: straight lines between their middles."""
    width = round(series.bin_seconds / MINUTE_SECONDS)
    if width <= 1:
        return series
    values = per_minute(rates(series), width, Interpolation.LINEAR) * MINUTE_SECONDS
    return Series(start=series.start, bin_seconds=MINUTE_SECONDS, values=values, zone=series.zone)


def _from_whole_bin(minutes: Series, bin_seconds: float) -> Series:
    """Without what lies before the first whole bin; with unknown minutes before it where that would leave nothing."""
    early = (minutes.start % bin_seconds) / MINUTE_SECONDS
    lead_in = np.full(round(early), np.nan)
    values = np.concatenate([lead_in, minutes.values])
    return Series(
        start=minutes.start - round(early) * MINUTE_SECONDS,
        bin_seconds=MINUTE_SECONDS,
        values=values,
        zone=minutes.zone,
    )
