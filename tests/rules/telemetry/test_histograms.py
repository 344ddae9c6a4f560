"""Histograms: what is certain from buckets is true of the observations, whatever they were."""

import math
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from making import EDGES, cumulative, histogram

from rules.telemetry.histograms import (
    EMPTY,
    NO_GRID,
    BrokenHistogramError,
    Cumulative,
    Histogram,
    check_cumulative,
    increase,
    mean,
    quantile,
    share_above,
    share_counts,
    sum_histograms,
)

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf)

# Multiples of 1/8 meet bucket edges exactly now and then, and their sums are exact.
values = st.integers(0, 80).map(lambda n: n / 8)
grids = st.lists(st.integers(0, 72), min_size=0, max_size=6, unique=True).map(
    lambda edges: (*(edge / 8 for edge in sorted(edges)), math.inf)
)
observed = st.lists(st.tuples(grids, st.lists(values, max_size=30)), min_size=1, max_size=4)
percents = st.integers(1, 100)


def nearest_rank(everything: list[float], percent: int) -> float:
    """The definition, in whole numbers: the value of rank ceil(q n)."""
    return sorted(everything)[max(1, -(-percent * len(everything) // 100)) - 1]


@given(observed, percents)
def test_quantile_bounds_hold_on_any_grids(scene: list[tuple[tuple[float, ...], list[float]]], percent: int) -> None:
    """The guess is never an edge, as that is no measurement; of a bucket that holds only 0 there is no other guess."""
    everything = [value for _, several in scene for value in several]
    found = quantile(sum_histograms(histogram(several, grid) for grid, several in scene), percent / 100)
    if not everything:
        assert found is None
        return
    truth = nearest_rank(everything, percent)
    assert found.n == len(everything)
    assert truth > found.low or found.low == 0
    assert found.high is None or truth <= found.high
    if found.value is not None:
        assert found.low < found.value < found.high or found.low == found.value == found.high


@given(grids, st.lists(values, min_size=1, max_size=60), percents)
def test_bounds_are_one_buckets_edges(grid: tuple[float, ...], several: list[float], percent: int) -> None:
    found = quantile((histogram(several, grid),), percent / 100)
    edges = (0.0, *grid)
    place = next(place for place, edge in enumerate(grid) if nearest_rank(several, percent) <= edge)
    assert (found.low, found.high) == (edges[place], None if grid[place] == math.inf else grid[place])


@given(observed, st.integers(1, 80).map(lambda n: n / 8))
def test_share_bounds_hold_on_any_grids(scene: list[tuple[tuple[float, ...], list[float]]], threshold: float) -> None:
    everything = [value for _, several in scene for value in several]
    found = share_above(sum_histograms(histogram(several, grid) for grid, several in scene), threshold)
    truth = sum(value > threshold for value in everything)
    assert found.n == len(everything)
    assert found.low <= truth <= found.high
    assert found.low - 1e-9 <= found.best <= found.high + 1e-9


@given(grids, st.lists(values, max_size=40))
def test_on_an_edge_the_share_is_exact(grid: tuple[float, ...], several: list[float]) -> None:
    for edge in grid[:-1]:
        if edge > 0:
            found = share_above((histogram(several, grid),), edge)
            assert found.low == found.high == sum(value > edge for value in several)


@given(observed, st.randoms(use_true_random=False))
@example([((0.0, math.inf), []), ((0.0, math.inf), []), ((0.125, math.inf), [])], Random(1))
def test_addition_knows_neither_order_nor_grouping(
    scene: list[tuple[tuple[float, ...], list[float]]], random: Random
) -> None:
    parts = [histogram(several, grid) for grid, several in scene]
    mixed = list(parts)
    random.shuffle(mixed)
    half = len(mixed) // 2
    assert sum_histograms(parts) == sum_histograms((*sum_histograms(mixed[:half]), *sum_histograms(mixed[half:])))


@given(observed)
def test_parts_add_on_common_edges(scene: list[tuple[tuple[float, ...], list[float]]]) -> None:
    (whole,) = sum_histograms(histogram(several, grid) for grid, several in scene)
    everything = [value for _, several in scene for value in several]
    if everything:
        common = set.intersection(*[set(grid) for grid, several in scene if several])
        assert whole.edges == tuple(sorted(common))
    else:
        assert whole.edges == tuple(sorted(set().union(*[grid for grid, _ in scene])))
    assert whole == histogram(everything, whole.edges)


@given(grids, st.lists(values, max_size=30), st.lists(values, max_size=30))
def test_increase_is_observed_between_pages(grid: tuple[float, ...], before: list[float], since: list[float]) -> None:
    grown = increase(cumulative(before, grid), cumulative([*before, *since], grid))
    assert grown == histogram(since, grid)


@given(st.integers(1, 60), st.lists(st.integers(0, 3000), min_size=5, max_size=5), percents)
def test_higher_quantile_is_never_less(step: int, counts: list[int], percent: int) -> None:
    part = Histogram(edges=(0.1, 0.5, 1.0, 5.0, math.inf), counts=tuple(map(float, counts)), total=None)
    q = percent / 100
    low, high = quantile((part,), q), quantile((part,), max(q, min(0.999, (percent + step) / 100)))
    if low is not None and high is not None and high.value is not None:
        assert low.value <= high.value * (1 + 1e-9)


@given(grids, st.lists(values, min_size=1, max_size=60), st.integers(90, 99))
def test_tail_guess_leaves_its_share(grid: tuple[float, ...], several: list[float], percent: int) -> None:
    parts = (histogram(several * 20, grid),)
    found = quantile(parts, percent / 100)
    if found.value is None or not found.value > 0 or found.high is None:
        return
    left = (1 - percent / 100) * found.n
    at_low = share_above(parts, found.low).low if found.low > 0 else found.n
    if max(0.5, share_above(parts, found.high).high) < left < at_low:
        assert share_above(parts, found.value).best == pytest.approx(left)


@given(st.lists(st.lists(st.integers(0, 40), min_size=4, max_size=4), min_size=2, max_size=5), st.integers(90, 99))
def test_pool_bounds_stay_within_parts(each: list[list[int]], percent: int) -> None:
    grid = (1.0, 2.0, 5.0, math.inf)
    parts = [Histogram(edges=grid, counts=tuple(map(float, counts)), total=None) for counts in each]
    found = [one for part in parts if (one := quantile((part,), percent / 100)) is not None]
    pool = quantile(sum_histograms(parts), percent / 100)
    if pool is None:
        return
    assert min(one.low for one in found) <= pool.low
    highs = [one.high for one in found]
    assert None in highs or (pool.high is not None and pool.high <= max(high for high in highs if high is not None))


LARGE = Histogram(edges=(1.0, 2.0, math.inf), counts=(99e6, 1e6, 0.0), total=None)


@pytest.mark.parametrize(
    ("part", "q", "expected"),
    [
        # The first bucket begins at zero, the last one is open.
        (histogram([0.2] * 50 + [70.0] * 50), 0.99, (5.0, None, None)),
        (histogram([0.0, 0.05]), 0.5, (0.0, 0.05, 0.1)),
        (histogram([0.0] * 9 + [0.3], (0.0, 0.1, 1.0, math.inf)), 0.5, (0.0, 0.0, 0.0)),
        (histogram([0.05] * 10 + [0.3] * 6 + [0.7] * 4), 0.75, (0.1, 0.1 + 0.4 * 4.5 / 6, 0.5)),
        # A rank survives products of floats, and large counts.
        *(
            (histogram([0.2] * rank + [0.7] * (n - rank)), q, (0.1, ..., 0.5))
            for q, n, rank in ((0.07, 100, 7), (0.99, 100, 99), (0.99, 101, 100), (0.5, 1, 1))
        ),
        (LARGE, 0.99, (0.0, ..., 1.0)),
        # A page may claim 2.5 requests: the rank is then above the sum of all buckets.
        (Histogram(edges=(1.0, 2.0, math.inf), counts=(0.0, 2.5, 0.0), total=None), 0.99, (2.0, ..., None)),
    ],
)
def test_quantile_by_hand(part: Histogram, q: float, expected: tuple[Any, ...]) -> None:
    found = quantile((part,), q)
    assert (found.low, found.high) == (expected[0], expected[2])
    assert expected[1] is ... or found.value == pytest.approx(expected[1])


@pytest.mark.parametrize(
    ("part", "threshold", "expected"),
    [
        # A tail falls by a constant factor, and ends at half an observation; the open bucket counts nothing.
        (histogram([0.2] * 60 + [0.7] * 30 + [3.0] * 10), 0.75, (10, math.sqrt(40 * 10), 40)),
        (histogram([0.05] * 50 + [0.3]), 0.4, (0, 0.5**0.75, 1)),
        (histogram([0.05] * 50 + [0.3] * 10), 0.4, (0, 10 * 0.05**0.75, 10)),
        (histogram([0.2] * 90 + [70.0] * 10), 6.0, (0, 0, 10)),
    ],
)
def test_share_above_by_hand(part: Histogram, threshold: float, expected: tuple[float, float, float]) -> None:
    found = share_above((part,), threshold)
    assert (found.low, found.best, found.high) == pytest.approx(expected)


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan])
def test_threshold_must_be_above_zero(threshold: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        share_above((histogram([0.2]),), threshold)


ONE_TWO_THREE = Cumulative(EDGES, (1.0, 2.0, 3.0, 3.0, 3.0), 1.0)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (cumulative([0.3], EDGES), cumulative([0.3, 0.3], TTFT), "edges changed"),
        *(
            (ONE_TWO_THREE, Cumulative(EDGES, counts, 2.0), "fall")
            for counts in ((0.0, 1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0, 2.0), (1.0, 2.0, 3.0, 3.0, 2.0))
        ),
    ],
)
def test_changed_edges_and_fallen_buckets_are_refused(before: Cumulative, after: Cumulative, words: str) -> None:
    with pytest.raises(BrokenHistogramError, match=words):
        increase(before, after)


NOTHING, FORTY = (0.0,) * 5, (0.0, 40.0, 40.0, 40.0, 40.0)
TEN_MORE, ONE_ABOVE = (0.0, 40.0, 50.0, 50.0, 50.0), (0.0, 0.0, 9.0, 9.0, 10.0)
ELEVEN = (10.0, 11.0, 11.0, 11.0, 11.0)


@pytest.mark.parametrize(
    ("before", "sum_before", "after", "sum_after", "is_kept"),
    [
        # Ten observations between 0.5 and 1 s add up to 5 to 10 s; one more or less may be on its way.
        *(
            (FORTY, 12.0, TEN_MORE, 12.0 + grown, False)
            for grown in (-100.0, -0.1, 0.0, 3.9, 11.1, 400.0, math.nan, math.inf, -math.inf)
        ),
        *((FORTY, 12.0, TEN_MORE, 12.0 + grown, True) for grown in (4.1, 5.0, 10.0, 10.9)),
        # Nine observations between 0.5 and 1 s and one above 5 s: 9.5 s at least, less one that is on its way.
        *((NOTHING, 0.0, ONE_ABOVE, grown, kept) for grown, kept in ((8.4, False), (8.6, True), (1e6, True))),
        # A sum may lead by one observation.
        (NOTHING, 0.0, ELEVEN, 2.0, True),
        (ELEVEN, 1.5, ELEVEN, 2.0, True),
        *((NOTHING, earlier, FORTY, later, False) for earlier, later in ((None, 1.0), (1.0, None), (None, None))),
    ],
)
def test_sum_is_kept_where_buckets_allow(
    before: tuple[float, ...],
    sum_before: float | None,
    after: tuple[float, ...],
    sum_after: float | None,
    is_kept: bool,
) -> None:
    found = increase(Cumulative(EDGES, before, sum_before), Cumulative(EDGES, after, sum_after))
    assert found.total == (pytest.approx((sum_after or 0.0) - (sum_before or 0.0)) if is_kept else None)
    assert found.n == after[-1] - before[-1]


def test_mean_needs_trusted_sums() -> None:
    good, corrupt = histogram([0.2, 0.4]), Histogram(edges=EDGES, counts=(0.0, 2.0, 0.0, 0.0, 0.0), total=None)
    assert mean((good,)) == pytest.approx(0.3)
    assert mean(sum_histograms((good, corrupt))) is None
    assert mean((corrupt, histogram([3.0], TTFT))) is None
    assert mean((histogram([0.2]),)) == 0.2
    assert mean(sum_histograms((good, histogram([3.0], TTFT)))) == pytest.approx(1.2)
    assert mean((histogram([]),)) is None


@pytest.mark.parametrize(
    ("edges", "counts", "count", "text"),
    [
        ((0.1, 0.5), (1.0, 2.0), 2.0, "no +Inf bucket"),
        ((), (), 0.0, "no +Inf bucket"),
        ((0.5, 0.1, math.inf), (1.0, 2.0, 2.0), 2.0, "edges that do not rise"),
        ((0.5, 0.5, math.inf), (1.0, 2.0, 2.0), 2.0, "edges that do not rise"),
        ((0.1, math.nan, math.inf), (1.0, 2.0, 2.0), 2.0, "edges that do not rise"),
        ((0.1, math.inf), (math.nan, 2.0), 2.0, "not a number of observations"),
        ((0.1, math.inf), (-1.0, 2.0), 2.0, "not a number of observations"),
        ((0.1, math.inf), (1.0, 2.0), math.inf, "not a number of observations"),
        ((0.1, 0.5, math.inf), (3.0, 2.0, 4.0), 4.0, 'a bucket le="0.5" (2) below the one before it (3)'),
        ((0.1, math.inf), (1.0, 2.0), 3.0, "_count 3 where its +Inf bucket says 2"),
    ],
)
def test_what_no_exporter_prints_is_named(
    edges: tuple[float, ...], counts: tuple[float, ...], count: float, text: str
) -> None:
    found = check_cumulative(edges, counts, count)
    assert text in found


@given(grids, st.lists(values, max_size=30))
def test_printed_histogram_reads_back(grid: tuple[float, ...], several: list[float]) -> None:
    printed = cumulative(several, grid)
    assert check_cumulative(printed.edges, printed.counts, float(len(several))) is None
    assert increase(EMPTY, printed) == histogram(several, grid)


def test_edgeless_histogram_counts_first_observations() -> None:
    nothing = Cumulative(NO_GRID, (0.0,), 0.0)
    later = Cumulative((1.0, math.inf), (3.0, 4.0), 6.0)
    first = increase(nothing, later)
    assert first == Histogram(edges=(1.0, math.inf), counts=(3.0, 1.0), total=6.0)
    still = increase(nothing, nothing)
    assert still.n == 0
    assert sum_histograms([still, first]) == (first,)
    assert sum_histograms([still, still]) == (still,)
    with pytest.raises(BrokenHistogramError):
        increase(later, nothing)


def test_equal_counts_share_objects() -> None:
    counts = (*map(float, range(200)), 0.5, 1e12)
    shared, again = share_counts(counts), share_counts(tuple(number + 0.0 for number in counts))
    assert shared == again == counts
    assert {type(number) for number in shared} == {float}
    assert all(one is other for one, other in zip(shared[:128], again[:128], strict=True))
    assert share_counts(tuple([0.0] * 5)) is share_counts(tuple([0.0] * 5))
    assert share_counts((0.0, 0.0)) == (0.0, 0.0)
