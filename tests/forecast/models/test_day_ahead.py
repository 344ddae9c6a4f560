"""The day ahead: the parts together, hour by hour, learn from what came and from nothing later."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.day_ahead import DayAhead
from forecast.models.features import QUICK, STEADY, Profiles
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins


class Live:
    """What the forecaster does around the day ahead."""

    def __init__(self, values: Array, bin_seconds: float = 3600.0) -> None:
        self.past: ObservedBins = past_of(values, bin_seconds=bin_seconds)
        day = self.past.per_day
        first = len(self.past) - (len(self.past) - day) // day * day
        self.quick, self.steady = Profiles(self.past, QUICK, first), Profiles(self.past, STEADY, first)
        self.one = DayAhead(self.past, self.quick, self.steady)

    def step(self, value: float) -> None:
        self.past.append(value)
        self.one.step()

    def refit(self) -> None:
        self.quick.fit(len(self.past))
        self.steady.fit(len(self.past))


def told(live: Live) -> Array:
    """The path and its quantiles."""
    path, quantiles = live.one.path()
    assert quantiles is not None
    return np.vstack([path[None], quantiles])


def run(values: Array, first: int, refits: tuple[int, ...]) -> list[Array]:
    live = Live(values[:first])
    said = [told(live)]
    for at in range(first, len(values)):
        if at in refits:
            live.refit()
        live.step(float(values[at]))
        said.append(told(live))
    return said


def test_changing_the_future_changes_nothing_that_was_said_before() -> None:
    values = wave(16)
    other = values.copy()
    other[330:] = 1000.0
    one, two = (run(some, 300, (312, 340)) for some in (values, other))
    for at in range(31):
        assert np.array_equal(one[at], two[at])
    assert not np.array_equal(one[31], two[31])


def test_asking_for_a_path_or_not_changes_no_later_one() -> None:
    values = wave(14)
    asked, silent = Live(values[:300]), Live(values[:300])
    for value in values[300:]:
        for live in (asked, silent):
            live.step(float(value))
        asked.one.path()
    assert np.array_equal(told(asked), told(silent))


def test_it_beats_the_same_as_yesterday() -> None:
    values = wave(24, level=200.0)
    said = run(values[: 24 * 23], 24 * 18, tuple(24 * day for day in range(19, 23)))
    ours, theirs = [], []
    for at, (path, *_) in enumerate(said):
        came = values[24 * 18 + at :][:24]
        ours.append(np.abs(path - came).sum())
        theirs.append(np.abs(values[24 * 17 + at :][:24] - came).sum())
    assert sum(ours) < 0.85 * sum(theirs)


def test_bins_finer_than_an_hour_are_answered_at_every_bin() -> None:
    live = Live(wave(4, bin_seconds=1800.0), 1800.0)
    first = live.one.path()[0]
    live.step(100.0)
    second, quantiles = live.one.path()
    assert len(second) == 48
    assert quantiles is not None
    assert quantiles.shape == (4, 48)
    assert np.abs(second[:-1] - first[1:]).mean() < 0.7 * np.abs(second - first).mean()


def test_a_history_of_which_the_end_was_not_seen_grows_no_trees_and_goes_on() -> None:
    values = wave(8)
    values[27:] = np.nan
    live = Live(values)
    path, quantiles = live.one.path()
    assert np.isfinite(path).all()
    assert quantiles is None


def test_a_missing_day_is_not_learnt_from() -> None:
    values = wave(14)
    live = Live(values[:300])
    for _ in range(5):
        live.step(float("nan"))
    seen = Live(values[:300])
    for value in values[300:305]:
        seen.step(float(value) * 3)
    weights = [[part.now.tolist() for part in one._weights] for one in (live.one, seen.one)]
    assert weights[0] != weights[1]


def test_what_waits_for_its_bins_is_bounded() -> None:
    live = Live(wave(4))
    for day in range(5):
        for value in wave(1, seed=day):
            live.step(float(value))
    assert len(live.one._waiting) <= 24


@pytest.mark.parametrize("per_day", [4, 6, 24])
def test_every_lead_has_a_weight_that_is_learnt(per_day: int) -> None:
    bin_seconds = 86_400.0 / per_day
    live = Live(wave(30, bin_seconds=bin_seconds, level=1000.0), bin_seconds)
    assert all(not np.allclose(one.now, one.now[0]) for one in live.one._weights)
