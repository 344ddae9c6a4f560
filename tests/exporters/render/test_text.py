"""Tables, words of gaps, and text of others in a page, a label or a line."""

from collections.abc import Callable

import pytest
from making import reading

from exporters.render.safe_text import one_line, quote_external_text, replace_undecodable, strip_control_characters
from exporters.render.text import describe_gap, format_reading, table, tier_anchor
from rules.telemetry.signals import Gap, Missing, SignalValue


@pytest.mark.parametrize(
    ("gap", "words", "written"),
    [
        (Gap.TOO_FEW_REQUESTS, ("300 s seen, 600 s are needed",), "300 s seen, 600 s are needed"),
        (Gap.TOO_FEW_REQUESTS, ("",), "too few requests"),
        (Gap.NOT_IN_PLAN, ("the plan has no slo",), "not in plan: the plan has no slo"),
        (Gap.NOT_IN_PLAN, ("no slo", "{gap} ({text})"), "not in plan (no slo)"),
        (Gap.STALE, ("",), "stale"),
    ],
)
def test_gap_has_its_words(gap: Gap, words: tuple[str, ...], written: str) -> None:
    assert describe_gap(gap, *words) == written


@pytest.mark.parametrize(
    ("write", "text", "written"),
    [
        (one_line, "a\u202eb\n", "a\ufffdb\ufffd"),
        (strip_control_characters, "a\x1b[2J\n", "a\ufffd[2J\n"),
        (lambda text: quote_external_text(text, 4), "a\nbcdef", "a b…"),
        (replace_undecodable, "a\udcff", "a?"),
        (tier_anchor, "a/b", "tier-a%2Fb"),
        (lambda text: table(("name",), [(text,)]).splitlines()[-1], "a|b", "| a\\|b |"),
    ],
)
def test_text_of_others_stays_in_its_place(write: Callable[[str], str], text: str, written: str) -> None:
    assert write(text) == written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (reading(0.503, 0.389, 0.628), "503 ms (389 to 628 ms)"),
        (reading(2.0, 2.0, 2.0), "2 s"),
        (reading(2.0, None, None), "2 s"),
        (reading(2.0, 1.5, None), "2 s (at least 1.5 s)"),
        (reading(2.0, 0.0, 3.0), "2 s (at most 3 s)"),
        (reading(None, 1.5, None), "at least 1.5 s"),
        (reading(None, 1.5, 3.0), "1.5 to 3 s"),
        (Missing(gap=Gap.NOT_IN_PLAN, text="no benchmark"), "not_in_plan"),
    ],
)
def test_reading_has_bounds_or_gap(value: SignalValue, text: str) -> None:
    assert format_reading(value, "seconds") == text
