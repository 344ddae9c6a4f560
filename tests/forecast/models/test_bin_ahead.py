"""One lead: the parts together, bin by bin, learn from what came and from nothing later."""

import numpy as np
import pytest
from forecast_traffic import parts_of, past_of, wave

from forecast.models.bin_ahead import LeadAhead
from forecast.models.features import Profiles
from forecast.models.smoothing import Smoothed
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins


class Live:
    """What the forecaster does around one lead."""

    def __init__(self, values: Array, lead: int = 2) -> None:
        self.past: ObservedBins = past_of(values)
        self.profiles: Profiles
        self.smoothed: Smoothed
        self.profiles, self.smoothed = parts_of(self.past, lead)
        self.one = LeadAhead(self.past, self.profiles, self.smoothed, lead)

    def step(self, value: float) -> None:
        self.past.append(value)
        self.smoothed.follow()
        self.one.step()

    def refit(self) -> None:
        self.profiles.fit(len(self.past))
        self.one.refit()


def run(values: Array, first: int, refits: tuple[int, ...] = ()) -> list[Array]:
    live, said = Live(values[:first]), []
    said.append(live.one.quantiles)
    for at in range(first, len(values)):
        if at in refits:
            live.refit()
        live.step(float(values[at]))
        said.append(live.one.quantiles)
    return [np.array(one or ()) for one in said]


def test_changing_the_future_changes_nothing_that_was_said_before() -> None:
    values = wave(14)
    other = values.copy()
    other[300:] = 1000.0
    one, two = (run(some, 240, (264, 288, 312)) for some in (values, other))
    for at in range(61):
        assert len(one[at]) == 4
        assert np.array_equal(one[at], two[at])
    assert not np.array_equal(one[61], two[61])


def test_the_same_bins_make_the_same_forecasts() -> None:
    values = wave(12)
    one, two = (run(values, 240, (250, 251, 264)) for _ in range(2))
    assert all(np.array_equal(left, right) for left, right in zip(one, two, strict=True))


def test_it_beats_the_same_as_now_where_the_day_repeats() -> None:
    values = wave(16, level=1000.0)
    said = run(values, 240, tuple(range(240, 384, 24)))
    ours = [abs(values[240 + at + 1] - one[1]) for at, one in enumerate(said[:-2]) if len(one)]
    now = [abs(values[240 + at + 1] - values[240 + at - 1]) for at in range(len(ours))]
    assert np.mean(ours) < 0.4 * np.mean(now)


def test_a_missing_bin_is_not_learnt_from() -> None:
    values = wave(12)
    live, gone = Live(values[:240]), Live(values[:240])
    live.step(float(values[240]))
    gone.step(float("nan"))
    before = Live(values[:240]).one.shares()
    assert gone.one.shares() == before
    assert live.one.shares() != before


def test_shares_sum_to_one() -> None:
    shares = Live(wave(14)).one.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == {
        "same as now",
        "smoothed level",
        "Holt-Winters",
        "profile x level",
        "regression",
    }


def test_the_method_that_fits_the_traffic_gains_weight() -> None:
    walk = np.maximum(1000 + np.cumsum(np.random.default_rng(3).normal(0, 40, 24 * 20)), 100)
    walking, repeating = Live(walk).one.shares(), Live(wave(20, level=1000.0)).one.shares()
    followers = ("same as now", "smoothed level")
    assert sum(walking[name] for name in followers) > 5 * sum(repeating[name] for name in followers)


def test_what_waits_for_its_bin_does_not_grow() -> None:
    live = Live(wave(10), lead=3)
    for value in wave(20, seed=2):
        live.step(float(value))
    assert len(live.one._issued) == 3
    assert len(live.one._spread._offered) <= 3
