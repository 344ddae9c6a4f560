"""Columns of a table for a terminal."""

from exporters.render.text import text_table


def test_words_stand_left_and_numbers_right_and_nothing_trails() -> None:
    assert text_table(("name", "n"), [("a", "1"), ("longer", "100")]) == ["name      n", "a         1", "longer  100"]
    assert text_table(("a", "b", "c"), [("xx", "y", "")], words=2) == ["a   b  c", "xx  y"]


def test_a_head_alone_is_a_table() -> None:
    assert text_table(("a", "b"), []) == ["a  b"]
