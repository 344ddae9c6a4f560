"""Columns of a table for a terminal."""

import pytest

from exporters.render.text import describe_gap, text_table
from rules.telemetry.signals import Gap


def test_words_stand_left_and_numbers_right_and_nothing_trails() -> None:
    assert text_table(("name", "n"), [("a", "1"), ("longer", "100")]) == ["name      n", "a         1", "longer  100"]
    assert text_table(("a", "b", "c"), [("xx", "y", "")], words=2) == ["a   b  c", "xx  y"]


def test_a_head_alone_is_a_table() -> None:
    assert text_table(("a", "b"), []) == ["a  b"]


@pytest.mark.parametrize(
    ("gap", "text", "said"),
    [
        (Gap.TOO_FEW_REQUESTS, "300 s seen, 600 s are needed", "300 s seen, 600 s are needed"),
        (Gap.TOO_FEW_REQUESTS, "", "too few requests"),
        (Gap.NOT_IN_PLAN, "the plan has no slo", "not in plan: the plan has no slo"),
        (Gap.STALE, "", "stale"),
    ],
)
def test_a_lack_of_time_is_not_called_a_lack_of_requests(gap: Gap, text: str, said: str) -> None:
    assert describe_gap(gap, text) == said


def test_a_gap_is_written_as_its_reader_needs_it() -> None:
    assert describe_gap(Gap.NOT_IN_PLAN, "no slo", "{gap} ({text})") == "not in plan (no slo)"
