"""Spans of time: their union, and what lies in them."""

from __future__ import annotations

from rules.replicas import track


def test_spans_that_touch_are_one_and_stand_in_order() -> None:
    assert track.add_spans((), [(30.0, 40.0), (0.0, 10.0), (10.0, 20.0), (5.0, 8.0)]) == ((0.0, 20.0), (30.0, 40.0))
    assert track.add_spans(((0.0, 20.0), (30.0, 40.0)), [(15.0, 35.0)]) == ((0.0, 40.0),)


def test_a_span_without_length_adds_nothing() -> None:
    assert track.add_spans(((0.0, 1.0),), [(5.0, 5.0), (float("inf"), 3.0)]) == ((0.0, 1.0),)


def test_what_an_edge_cuts_belongs_where_most_of_it_is() -> None:
    told = ((0.0, 100.0), (200.0, 300.0))
    assert track.is_mostly_covered(told, 60.0, 120.0)
    assert not track.is_mostly_covered(told, 80.0, 140.0)
    assert track.is_mostly_covered(told, 40.0, 260.0)
    assert track.is_mostly_covered(told, 70.0, 130.0)
    assert not track.is_mostly_covered((), 0.0, 60.0)
