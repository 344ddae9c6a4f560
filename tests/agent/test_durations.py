import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.durations import UNITS_SECONDS, Backoff, duration_text, parse_duration, retry_delay


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("15s", 15.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("7d", 604800.0),
        ("13w", 7_862_400.0),
        ("1.5h", 5400.0),
        ("0s", 0.0),
    ],
)
def test_number_with_unit_is_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "s", "-15s", "15 s", "15S", "1h30m", "1e3s", "٣s", "15s\n", "99999999999d"])
def test_anything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^must be a number with its unit, such as 500ms, 15s, 5m, 1h, 7d or 13w, not '"
    ):
        parse_duration(text)


@given(number=st.integers(0, 999_999), unit=st.sampled_from(sorted(UNITS_SECONDS)))
def test_written_duration_reads_the_same(number: int, unit: str) -> None:
    seconds = parse_duration(f"{number}{unit}")
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "500ms"), (15, "15s"), (90, "90s"), (300, "5m"), (86400 * 7, "7d"), (0, "0ms")]
)
def test_largest_unit_without_fraction_is_written(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


# ---- delays after failures ----


def test_dead_target_is_asked_every_second_cycle() -> None:
    backoff = Backoff()
    asked = []
    for cycle in range(20):
        if backoff.is_due(cycle):
            asked.append(cycle)
            backoff = backoff.record_failure(cycle)
    assert asked == [0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert backoff.failures == len(asked)
    assert backoff.record_success() == Backoff()
    assert Backoff().record_failure(0.2).record_failure(1.05).is_due(2.0), "a cycle that is early is not skipped"


def test_a_delay_doubles_up_to_its_limit() -> None:
    backoff = Backoff(first=10.0, longest=30.0)
    for delay in (10.0, 20.0, 30.0, 30.0):
        backoff = backoff.record_failure(1000.0)
        assert backoff.skip_until == 1000.0 + delay
    assert retry_delay(1000, 0.8, 30.0) == 30.0
