import pytest
from making import reading

from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.wording import format_count, number, quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.05, "ratio", "5.0%"),
        (1.0, "ratio", "100.0%"),
        (0.0, "seconds", "0 s"),
        (0.0123456, "seconds", "12.3 ms"),
        (0.9994, "seconds", "999 ms"),
        (0.9997, "seconds", "1 s"),
        (1.0, "seconds", "1 s"),
        (61.25, "seconds", "61.2 s"),
        (999.6, "seconds", "1,000 s"),
        (1234.5, "per_second", "1,234 rps"),
        (7.413, "per_second", "7.41 rps"),
        (1234.5, "tokens_per_second", "1,234 tokens/s"),
        (0.05, "events_per_second", "0.05 a second"),
        (7200.0, "tokens", "7,200 tokens"),
        (3.0, "requests", "3"),
    ],
)
def test_number_has_three_digits_and_unit(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_count_has_its_noun_and_thousands() -> None:
    texts = [format_count(count, "replica") for count in (0, 1, 1.0, 2.5, 12_000)]
    assert texts == ["0 replicas", "1 replica", "1 replica", "2.5 replicas", "12,000 replicas"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (reading(0.9, 0.75, 0.98), "750 to 980 ms"),
        (reading(0.9, 0.75, 1.0), "750 ms to 1 s"),
        (reading(9, 7.5, 10.0), "7.5 to 10 s"),
        (reading(None, 80.0, None), "above 80 s"),
        (reading(None, None, None), "above 0 s"),
        (reading(0.3, None, None), "about 300 ms"),
        (reading(2.0, 2.0, 2.0), "2 s"),
        (reading(None, 2.0, 2.0), "2 s"),
        (reading(0.3, 0.0, 0.5), "up to 500 ms"),
        (Missing(gap=Gap.TOO_FEW_REQUESTS), "too few requests"),
    ],
)
def test_a_reading_says_where_it_lies(value: Reading | Missing, text: str) -> None:
    assert quantity(value, "seconds") == text
    assert quantity(reading(0.1, 0.05, 0.2), "ratio") == "5.0% to 20.0%"
