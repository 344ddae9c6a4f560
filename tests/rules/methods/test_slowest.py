import math

import pytest
from judging_samples import seen

from rules.methods.tiers import SlowShare, slow_shares

EDGES = (0.1, 0.2, 0.4, 0.8, math.inf)


def test_all_of_the_slowest_are_where_nobody_else_is_above_an_edge() -> None:
    found = slow_shares({"fast": seen({0.05: 900}, EDGES), "slow": seen({0.3: 90, 0.6: 10}, EDGES)})
    assert found == {"fast": SlowShare(low=0.0, high=0.0, n=1000), "slow": SlowShare(low=1.0, high=1.0, n=1000)}


def test_within_the_bucket_of_the_quantile_nobody_knows_who_was_slowest() -> None:
    found = slow_shares({"a": seen({0.05: 890, 0.3: 10, 0.6: 4}, EDGES), "b": seen({0.05: 90, 0.3: 6}, EDGES)})
    # Ten are wanted: four of a are surely among them, six come from the sixteen between 0.2 and 0.4 s.
    ends = [found["a"].low, found["a"].high, found["b"].low, found["b"].high]
    assert ends == pytest.approx([0.4, 1.0, 0.0, 0.6])


def test_what_the_others_cannot_fill_is_surely_here() -> None:
    found = slow_shares({"a": seen({0.05: 890, 0.3: 8}, EDGES), "b": seen({0.05: 98, 0.3: 4}, EDGES)})
    ends = [found["a"].low, found["a"].high, found["b"].low, found["b"].high]
    assert ends == pytest.approx([0.6, 0.8, 0.2, 0.4])
    found = slow_shares({"a": seen({0.05: 886, 0.6: 6}, EDGES), "b": seen({0.05: 100, 0.3: 8}, EDGES)})
    assert (found["a"].low, found["b"].high) == (0.6, 0.4)


def test_the_open_last_bucket_bounds_nothing_above_and_the_first_nothing_below() -> None:
    found = slow_shares({"a": seen({9.0: 30}, EDGES), "b": seen({9.0: 970}, EDGES)})
    assert (found["a"].low, found["a"].high) == (0.0, 1.0)
    found = slow_shares({"a": seen({0.05: 500}, EDGES), "b": seen({0.05: 500}, EDGES)})
    assert (found["a"].low, found["a"].high) == (0.0, 1.0)


def test_different_buckets_are_never_recut() -> None:
    coarse = seen({0.3: 50}, (0.5, math.inf))
    found = slow_shares({"fine": seen({0.05: 950}, EDGES), "coarse": coarse})
    assert (found["coarse"].low, found["fine"].high) == (0.0, 1.0)


def test_without_requests_there_is_no_slowest() -> None:
    assert slow_shares({"a": ()}) == {}


def test_of_few_requests_the_slowest_one_counts() -> None:
    found = slow_shares({"a": seen({0.05: 9}, EDGES), "b": seen({0.6: 1}, EDGES)})
    assert found["b"].low == 1.0
