from rules.verdicts.context import ForecastPoint, Projection


def at(t: float, q95: float = 2.0) -> ForecastPoint:
    return ForecastPoint(t=t, q50=1.0, q95=q95, q99=max(3.0, q95))


def projection(*points: ForecastPoint) -> Projection:
    return Projection(tier="t", made_at=1000.0, horizon_seconds=200.0, points=points, method="m")


def test_warmable_ends_behind_lead() -> None:
    made = projection(*(at(1000.0 + 60.0 * n) for n in range(20)))
    assert [point.t for point in made.points_until(1030.0)] == [1060.0, 1120.0, 1180.0, 1240.0]
    exactly = projection(at(1100.0), at(1200.0), at(1300.0))
    assert [point.t for point in exactly.points_until(1000.0)] == [1100.0, 1200.0]
    assert [point.t for point in exactly.points_until(1100.0)] == [1100.0, 1200.0, 1300.0]


def test_long_bins_tell_the_next() -> None:
    assert [point.t for point in projection(at(1600.0), at(2200.0)).points_until(1000.0)] == [1600.0]


def test_a_forecast_that_was_outlived_says_nothing() -> None:
    assert projection(at(1100.0), at(1200.0)).points_until(1201.0) == ()
    assert projection().points_until(1000.0) == ()
