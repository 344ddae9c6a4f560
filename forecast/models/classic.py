"""Textbook methods fitted by statsmodels, as benchmarks: Holt-Winters, ARIMA, and STL with a smoothed level.

They are fitted once a day; recursions carry their state between the fits. A new method is a class with the interface of
`forecast.models.naive.Method` and a row of `forecast.backtest.walk.METHODS`. statsmodels is imported where it is used:
only a backtest compares with these methods, and a plain installation lacks it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from forecast.series.binned import Array
from forecast.series.observed import ObservedBins


@contextmanager
def _counted(troubles: Counter[str]) -> Iterator[None]:
    """Count warnings of statsmodels in place of printing them; the backtest reports them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    troubles.update({f"{one.category.__name__}: {str(one.message).splitlines()[0]}" for one in caught})


class HoltWinters:
    """Holt-Winters with an additive daily season and no trend, fitted on two weeks (heuristic initial states)."""

    needs_days = 2.0
    HISTORY_DAYS = 14
    MOST_STEPS = 30

    def __init__(self) -> None:
        self.troubles: Counter[str] = Counter()
        self._at, self._level, self._alpha, self._gamma = 0, 0.0, 0.0, 0.0
        self._season = np.empty(0)

    def fit(self, past: ObservedBins) -> None:
        from statsmodels.tsa.holtwinters import ExponentialSmoothing

        day, now = past.per_day, len(past)
        with _counted(self.troubles):
            fitted = ExponentialSmoothing(
                past.values[-self.HISTORY_DAYS * day :],
                trend=None,
                seasonal="add",
                seasonal_periods=day,
                initialization_method="heuristic",
            ).fit(optimized=True, use_brute=False, minimize_kwargs={"options": {"maxiter": self.MOST_STEPS}})
        self._alpha = float(fitted.params["smoothing_level"])
        self._gamma = float(fitted.params["smoothing_seasonal"])
        self._level, self._at = float(fitted.level[-1]), now
        self._season = np.empty(day)
        self._season[np.arange(now - day, now) % day] = np.asarray(fitted.season)[-day:]

    def advance(self, past: ObservedBins) -> None:
        for value in past.values[self._at :]:
            place = self._at % len(self._season)
            before = self._level
            self._level = self._alpha * (value - self._season[place]) + (1 - self._alpha) * before
            self._season[place] = self._gamma * (value - before) + (1 - self._gamma) * self._season[place]
            self._at += 1

    def path(self, past: ObservedBins, bins: int) -> Array:
        ahead: Array = self._level + self._season[np.arange(self._at, self._at + bins) % len(self._season)]
        return ahead


class Arima:
    """ARIMA(p, d, q) on the last week. The order of least AIC among a few candidates is selected once.

    Between fits the recursion of the model continues (Box and Jenkins, chapter 5) from the innovations of its Kalman
    filter. After a week the filter gain is constant.
    """

    needs_days = 1.0
    HISTORY_DAYS = 7
    ORDERS = ((1, 0, 0), (2, 0, 1), (3, 0, 2), (0, 1, 1), (1, 1, 1), (2, 1, 2))

    def __init__(self) -> None:
        self.troubles: Counter[str] = Counter()
        self._order: tuple[int, int, int] | None = None
        self._mean = 0.0
        self._ar, self._ma = np.empty(0), np.empty(0)
        self._steps, self._shocks = np.empty(0), np.empty(0)
        self._at = 0

    def fit(self, past: ObservedBins) -> None:
        history = past.values[-self.HISTORY_DAYS * past.per_day :]
        if self._order is None:
            self._order = min(self.ORDERS, key=lambda order: self._estimate(history, order))
        if np.isinf(self._estimate(history, self._order)):
            self.advance(past)
        self._at = len(past)

    def _estimate(self, history: Array, order: tuple[int, int, int]) -> float:
        """Set the parameters and the state. Return the AIC per observation, because differencing removes an
        observation.

        If the estimation fails, keep the previous state and return infinity.
        """
        from statsmodels.tsa.arima.model import ARIMA

        p, d, q = order
        steps = np.diff(history, n=d)
        mean = 0.0 if d else float(steps.mean())
        scale = float(np.std(steps))
        if scale < 1e-9 * max(1.0, float(np.abs(history).max())):
            # A constant series gives the same forecast with every order.
            self._set(mean, np.zeros(p), np.zeros(q), steps, np.zeros(q))
            return 0.0
        try:
            with _counted(self.troubles):
                model = ARIMA((steps - mean) / scale, order=(p, 0, q), trend="n")
                fitted = model.fit(method="innovations_mle", cov_type="none")
        except (ValueError, ZeroDivisionError, np.linalg.LinAlgError) as error:
            self.troubles[
                f"{type(error).__name__}, the parameters stay as they were: {str(error).splitlines()[0]}"
            ] += 1
            return np.inf
        self._set(
            mean, np.asarray(fitted.arparams), np.asarray(fitted.maparams), steps, np.asarray(fitted.resid) * scale
        )
        return (float(fitted.aic) + 2 * len(steps) * float(np.log(scale))) / len(steps)

    def _set(self, mean: float, ar: Array, ma: Array, steps: Array, shocks: Array) -> None:
        """Set the state. The newest steps and shocks come first."""
        self._mean, self._ar, self._ma = mean, ar, ma
        self._steps, self._shocks = steps[::-1][: len(ar)], shocks[::-1][: len(ma)]

    def _next(self, steps: Array, shocks: Array) -> float:
        """Return the expected step after these steps and shocks (newest first)."""
        return self._mean + float(self._ar @ (steps - self._mean)) + float(self._ma @ shocks)

    def _take(self, step: float) -> None:
        shock = step - self._next(self._steps, self._shocks)
        self._steps = np.concatenate([[step], self._steps])[: len(self._ar)]
        self._shocks = np.concatenate([[shock], self._shocks])[: len(self._ma)]

    def advance(self, past: ObservedBins) -> None:
        assert self._order is not None
        d = self._order[1]
        for step in np.diff(past.values[self._at - d :], n=d):
            self._take(float(step))
        self._at = len(past)

    def path(self, past: ObservedBins, bins: int) -> Array:
        assert self._order is not None
        steps, shocks = self._steps, self._shocks
        ahead = np.empty(bins)
        for lead in range(bins):
            ahead[lead] = self._next(steps, shocks)
            steps = np.concatenate([ahead[lead : lead + 1], steps])[: len(self._ar)]
            shocks = np.concatenate([[0.0], shocks])[: len(self._ma)]
        return ahead if self._order[1] == 0 else past.values[-1] + np.cumsum(ahead)


class Mstl:
    """MSTL (Bandara, Hyndman, Bergmeir 2021): daily and weekly season by repeated STL, and a smoothed level.

    A season needs two periods. Windows 11 and 15 and flat seasons follow mstl in R. The loess is evaluated at some bins
    and joined by lines, as in stl of R. Without that, four weeks of 5-minute bins would take a minute.
    """

    needs_days = 2.0
    HISTORY_DAYS = 28
    PASSES = 2

    def __init__(self) -> None:
        self.troubles: Counter[str] = Counter()
        self._seasons: tuple[Array, ...] = ()
        self._fitted, self._at, self._level, self._alpha = 0, 0, 0.0, 0.0

    def fit(self, past: ObservedBins) -> None:
        from statsmodels.tsa.holtwinters import SimpleExpSmoothing

        history = past.values[-self.HISTORY_DAYS * past.per_day :]
        periods = [period for period in (past.per_day, past.per_week) if period > 1 and len(history) >= 2 * period]
        with _counted(self.troubles):
            seasons = _seasons(history, periods, self.PASSES)
            rest = history - sum(seasons, np.zeros(len(history)))
            level = SimpleExpSmoothing(rest, initialization_method="heuristic").fit()
        self._alpha = float(level.params["smoothing_level"])
        self._level = float(np.asarray(level.level)[-1])
        self._seasons = tuple(season[-period:] for season, period in zip(seasons, periods, strict=True))
        self._fitted = self._at = len(past)

    def _season(self, first: int, bins: int) -> Array:
        places = np.arange(first, first + bins) - self._fitted
        return sum((season[places % len(season)] for season in self._seasons), np.zeros(bins))

    def advance(self, past: ObservedBins) -> None:
        values = past.values[self._at :]
        for rest in values - self._season(self._at, len(values)):
            self._level += self._alpha * (float(rest) - self._level)
        self._at = len(past)

    def path(self, past: ObservedBins, bins: int) -> Array:
        return self._level + self._season(self._at, bins)


def _seasons(history: Array, periods: list[int], passes: int) -> list[Array]:
    """Return each season, fitted to the rest after the other seasons, the shortest first."""
    from statsmodels.tsa.seasonal import STL

    seasons = [np.zeros(len(history)) for _ in periods]
    for _ in range(passes if len(periods) > 1 else 1):
        for place, period in enumerate(periods):
            others = sum((one for at, one in enumerate(seasons) if at != place), np.zeros(len(history)))
            seasonal = 11 + 4 * place
            trend = int(np.ceil(1.5 * period / (1 - 1.5 / seasonal))) | 1
            seasons[place] = np.asarray(
                STL(
                    history - others,
                    period=period,
                    seasonal=seasonal,
                    seasonal_deg=0,
                    trend=trend,
                    low_pass=period + 1 + period % 2,
                    seasonal_jump=2,
                    trend_jump=max(1, trend // 10),
                    low_pass_jump=max(1, period // 10),
                )
                .fit()
                .seasonal
            )
    return seasons
