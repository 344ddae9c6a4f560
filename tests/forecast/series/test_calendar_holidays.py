"""Public holidays by country and part of it, and that they behave like Sundays."""

from datetime import date, timedelta

import pytest

from forecast.series.calendar import public_holidays


def days(first: str, count: int) -> list[date]:
    return [date.fromisoformat(first) + timedelta(days=i) for i in range(count)]


def test_holidays_are_those_of_country() -> None:
    assert list(public_holidays("DE", days("2026-12-20", 14))) == [
        date(2026, 12, 25),
        date(2026, 12, 26),
        date(2027, 1, 1),
    ]
    assert public_holidays("DE", days("2026-12-20", 5)) == {}
    assert public_holidays("DE", []) == {}


def test_region_has_own_holidays() -> None:
    around = days("2026-01-05", 3)
    assert public_holidays("DE", around) == {}
    assert list(public_holidays("DE-BY", around)) == [date(2026, 1, 6)]


@pytest.mark.parametrize(
    ("country", "said"),
    [
        ("XQ", "'XQ' is no country with known holidays"),
        ("DE-BX", "DE has no part 'BX' with holidays of its own; known: BB, BE, BW, BY"),
        ("de", "'de' is no country"),
        ("", "'' is no country with known holidays; write the two letters"),
    ],
)
def test_unknown_country_is_refused(country: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        public_holidays(country, days("2026-01-01", 1))
