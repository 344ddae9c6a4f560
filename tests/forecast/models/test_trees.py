"""Boosted trees: they learn a step, the same trees each time, and are left out in words where they cannot be."""

import numpy as np
import pytest

from forecast.models import learners
from forecast.models.learners import DAY, LEAST_ROWS, SHORT, fit_trees, missing_library
from forecast.series.binned import Array


def rows(count: int) -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(3)
    signals = draw.normal(size=(count, 3))
    signals[::7, 2] = np.nan
    return signals, np.where(signals[:, 0] > 0, 5.0, -5.0), np.ones(count)


@pytest.mark.parametrize("settings", [SHORT, DAY])
def test_they_learn_what_depends_on_a_threshold(settings: learners.TreeSettings) -> None:
    grown = fit_trees(*rows(1000), settings)
    assert grown is not None
    said = grown.predict(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, np.nan]]))
    assert said == pytest.approx([5.0, -5.0], abs=1.5)


def test_the_same_rows_grow_the_same_trees() -> None:
    one, two = (fit_trees(*rows(600), SHORT) for _ in range(2))
    assert one is not None
    assert two is not None
    asked = rows(50)[0]
    assert np.array_equal(one.predict(asked), two.predict(asked))


def test_rows_count_by_their_weight() -> None:
    signals = np.zeros((1000, 1))
    signals[:, 0] = np.arange(1000)
    aim = np.where(np.arange(1000) % 5 < 2, 10.0, 0.0)
    even = fit_trees(signals, aim, np.ones(1000), SHORT)
    heavy = fit_trees(signals, aim, np.where(aim > 0, 100.0, 1.0), SHORT)
    assert even is not None
    assert heavy is not None
    assert even.predict(signals).mean() < 1.0
    assert heavy.predict(signals).mean() > 9.0


def test_of_too_few_rows_none_grow() -> None:
    assert fit_trees(*rows(LEAST_ROWS - 1), SHORT) is None
    assert fit_trees(*rows(LEAST_ROWS), SHORT) is not None


def test_without_lightgbm_none_grow_and_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_library() is None
    monkeypatch.setattr(learners, "_lightgbm", lambda: "libgomp.so.1: cannot open shared object file")
    assert fit_trees(*rows(1000), SHORT) is None
    assert missing_library() == (
        "boosted trees are left out, LightGBM cannot be loaded (libgomp.so.1: cannot open shared object file); "
        "install libgomp1"
    )
