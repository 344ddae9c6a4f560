"""Bernstein online aggregation: by hand for two, the better one wins, the past fades."""

import math

import numpy as np
import pytest

from forecast.models.smoothing import Weights


def by_hand(losses: list[float], variances: list[float], boldest: float) -> list[float]:
    """Weights of two after one update: rate * exp(rate * regret), regret being minus the loss."""
    rates = [min(math.sqrt(math.log(2) / variance), boldest) for variance in variances]
    raw = [rate * math.exp(-rate * loss) for rate, loss in zip(rates, losses, strict=True)]
    return [one / sum(raw) for one in raw]


def test_they_begin_even() -> None:
    assert Weights(4, memory=10).now.tolist() == [0.25] * 4


@pytest.mark.parametrize(("actual", "slope"), [(3.0, -0.5), (0.0, 0.5), (2.0, -0.5)])
def test_one_update_by_hand(actual: float, slope: float) -> None:
    one = Weights(2, memory=10, boldest=2.0)
    one.update(np.array([[1.0, 3.0]]), np.array([0.5, 0.5]), np.array([actual]), 10.0)
    losses = [slope * (1 - 2) / 10, slope * (3 - 2) / 10]
    assert one.now == pytest.approx(by_hand(losses, [0.5**0.1 * 1e-8 + loss**2 for loss in losses], 2.0))


def test_the_rate_is_bounded_by_what_was_lost_so_far() -> None:
    one = Weights(2, memory=10, boldest=1e9)
    one.update(np.array([[1.0, 4.0]]), np.array([0.25, 0.75]), np.array([0.0]), 1.0)
    losses = [0.5 * (1 - 3.25), 0.5 * (4 - 3.25)]
    assert one.now == pytest.approx(by_hand(losses, [0.5**0.1 * 1e-8 + loss**2 for loss in losses], 1e9))


def test_regrets_fade_with_the_memory() -> None:
    one = Weights(2, memory=1, boldest=1.0)
    even = np.array([0.5, 0.5])
    one.update(np.array([[1.0, 3.0]]), even, np.array([9.0]), 1.0)
    one.update(np.array([[1.0, 3.0]]), even, np.array([9.0]), 1.0)
    loss = 0.5
    variance = 0.25 * 1e-8 + 0.5 * loss**2 + loss**2
    rate = min(math.sqrt(math.log(2) / variance), 1.0)
    assert one.now[0] / one.now[1] == pytest.approx(math.exp(-2 * rate * 1.5 * loss))


def test_the_better_one_wins_and_they_always_sum_to_one() -> None:
    draw = np.random.default_rng(1)
    one = Weights(3, memory=500)
    for _ in range(400):
        actual = 100 + draw.normal(0, 5)
        one.update(np.array([[100.0, 130.0, 60.0]]), one.now, np.array([actual]), 100.0)
        assert one.now.sum() == pytest.approx(1.0)
        assert (one.now >= 0).all()
    assert one.now[0] > 0.9


def test_none_is_lost_for_good() -> None:
    one = Weights(2, memory=50)
    for truth in (1.0, 3.0):
        for _ in range(300):
            one.update(np.array([[1.0, 3.0]]), one.now, np.array([truth]), 1.0)
        assert one.now[0 if truth == 1.0 else 1] > 0.9


def test_an_upper_quantile_prefers_the_one_that_is_rarely_exceeded() -> None:
    draw = np.random.default_rng(2)
    median, upper = (Weights(2, memory=500, level=level) for level in (0.5, 0.95))
    for actual in draw.normal(100, 10, 600):
        for one in (median, upper):
            one.update(np.array([[100.0, 116.4]]), one.now, np.array([actual]), 100.0)
    assert median.now[0] > 0.8
    assert upper.now[1] > 0.8


def test_several_targets_count_as_their_mean() -> None:
    one, two = Weights(2, memory=10), Weights(2, memory=10)
    even, said = np.array([0.5, 0.5]), np.array([[1.0, 3.0]])
    one.update(np.repeat(said, 4, axis=0), even, np.full(4, 9.0), 2.0)
    two.update(said, even, np.array([9.0]), 2.0)
    assert one.now == pytest.approx(two.now)
