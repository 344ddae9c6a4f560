"""The forecast of a series as a command has it: what its record says of traffic that is the same all the time."""

import numpy as np
import pytest
from forecast_traffic import series

from agent.forecasting.input_series import InputSeries
from agent.forecasting.results import forecast_now


@pytest.mark.parametrize("amount", [0.0, 7.0, 100.0, 1e12])
def test_constant_traffic_is_always_covered(amount: float) -> None:
    same = series(np.full(24 * 12, amount))
    given = InputSeries(name="same", series=same, time_text=str, sundays={}, factors=np.ones(24 * 12 + 288))
    found = forecast_now("same", given, 3600.0).projection
    assert found.forecasts == 7 * 24
    assert found.covered == found.forecasts
    assert [point.q50 for point in found.points] == pytest.approx([amount / 3600.0], rel=1e-5)
