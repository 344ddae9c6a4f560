"""Bounds against sums by hand, published tables and simulation; the sizing guide's formulas."""

import math
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules import sizing
from rules.confidence import (
    CONFIDENCE,
    binomial_lower_bound,
    binomial_tail,
    check_uniformity,
    chi_square_below,
    poisson_lower_bound,
)


def tail_by_hand(k: int, n: int, p: float) -> float:
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def poisson_tail_by_hand(k: int, mean: float) -> float:
    return 1 - math.fsum(math.exp(-mean) * mean**i / math.factorial(i) for i in range(k))


def pairs(most: int) -> st.SearchStrategy[tuple[int, int]]:
    """So many of at most that number."""
    return st.integers(1, most).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))


@given(pairs(200), st.floats(0.001, 0.999))
def test_binomial_tail_sums_its_terms(pair: tuple[int, int], p: float) -> None:
    assert binomial_tail(*pair, p) == pytest.approx(tail_by_hand(*pair, p), rel=1e-9, abs=1e-12)


def test_bounds_end_at_nothing_and_all() -> None:
    assert (binomial_tail(1, 10, 0.0), binomial_tail(10, 10, 1.0)) == (0.0, 1.0)
    assert (binomial_lower_bound(0, 1000), poisson_lower_bound(0)) == (0.0, 0.0)
    # Fractions of observations are rounded down.
    assert binomial_lower_bound(3.9, 100) == binomial_lower_bound(3, 100)
    assert binomial_lower_bound(4 - 1e-12, 100) == binomial_lower_bound(4, 100)
    assert poisson_lower_bound(3.9) == poisson_lower_bound(3)


@given(pairs(150), st.sampled_from([0.9, 0.95, 0.99, CONFIDENCE]))
def test_binomial_bound_is_as_rare(pair: tuple[int, int], confidence: float) -> None:
    k, n = pair
    bound = binomial_lower_bound(k, n, confidence)
    assert bound < k / n
    assert tail_by_hand(k, n, bound) == pytest.approx(1 - confidence, rel=1e-6)


@given(st.integers(1, 60), st.sampled_from([0.95, CONFIDENCE]))
def test_poisson_bound_is_as_rare(k: int, confidence: float) -> None:
    assert poisson_tail_by_hand(k, poisson_lower_bound(k, confidence)) == pytest.approx(1 - confidence, rel=1e-6)


@pytest.mark.parametrize("n", [10**4, 10**6, 10**8])
def test_large_counts_match_normal_law(n: int) -> None:
    k = n // 100
    sigma = math.sqrt(0.01 * 0.99 / n)
    assert binomial_lower_bound(k, n) == pytest.approx(0.01 - 3.0902 * sigma, abs=4 / n + 0.02 * sigma)


def test_bound_holds_as_often_as_promised() -> None:
    chance, truth, n, trials = random.Random(9), 0.05, 60, 2000
    bounds = {k: binomial_lower_bound(k, n, 0.9) for k in range(n + 1)}
    wrong = sum(bounds[sum(chance.random() < truth for _ in range(n))] > truth for _ in range(trials))
    # At most 10 % plus three standard errors; discrete counts make it less, but never nothing.
    assert 0 < wrong / trials <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / trials)


TABLES = [(3.841459, 1, 0.95), (5.991465, 2, 0.95), (0.102587, 2, 0.05), (7.814728, 3, 0.95), (124.3421, 100, 0.95)]
"""Critical values of NIST/SEMATECH, e-Handbook of Statistical Methods, 1.3.6.7.4."""


@pytest.mark.parametrize(("x", "freedom", "below"), [*TABLES, (0.0, 3, 0.0), (1e6, 3, 1.0), (1500.0, 1200, 1.0)])
def test_the_distribution_is_that_of_the_tables(x: float, freedom: int, below: float) -> None:
    assert chi_square_below(x, freedom) == pytest.approx(below, abs=1e-6)


def test_rows_compare_with_equal_share() -> None:
    assert check_uniformity([(30, 40, 50), (40, 40, 40)]) == pytest.approx(chi_square_below(5.0, 4))
    assert check_uniformity([(0, 0), (5,), ()]) == 1.0, "single rows say nothing"


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (sizing.littles_ceiling_rps(48, 2), 24),
        (sizing.safe_queue_depth(2, 50), 100),
        (sizing.expected_tokens_per_round(0.8, 5), (1 - 0.8**6) / (1 - 0.8)),
        (round(sizing.expected_tokens_per_round(0.8, 5), 2), 3.69),
        (sizing.expected_tokens_per_round(1, 5), 6),
        (sizing.expected_tokens_per_round(0, 5), 1),
        (sizing.acceptance_from_mean_accepted(5, 5), 1),
        (sizing.acceptance_from_mean_accepted(0, 5), 0),
        # 0.8 + 0.64 + 0.512 + 0.4096 + 0.32768 = 2.68928 of 5 drafted: 54 %, though each token is taken at 80 %.
        (sizing.acceptance_from_mean_accepted(2.68928, 5), 0.8),
        (sizing.speculation_speed_up(3.69, 5, 0.001, 0.01), 2.46),
        (sizing.cost_per_million_tokens(52, 2.5, 65_000_000), 2.0),
        (sizing.cost_per_million_tokens(0, 2.5, 1), 0),
    ],
)
def test_examples_of_the_guide(result: float, wanted: float) -> None:
    assert pytest.approx(result) == wanted


@given(acceptance=st.floats(0, 1), drafts=st.integers(1, 16))
def test_acceptance_is_recovered_from_what_it_causes(acceptance: float, drafts: int) -> None:
    mean = sizing.expected_tokens_per_round(acceptance, drafts) - 1
    assert sizing.acceptance_from_mean_accepted(min(max(mean, 0), drafts), drafts) == pytest.approx(
        acceptance, abs=1e-9
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((partial(binomial_lower_bound, k, 10), "is no share") for k in (-1, 11)),
        *((partial(chi_square_below, *pair), "no chi-square") for pair in ((-1.0, 2), (1.0, 0))),
        (lambda: sizing.littles_ceiling_rps(0, 2), "c_max must be a finite number above 0, not 0"),
        (lambda: sizing.littles_ceiling_rps(48, math.nan), "slo_seconds must be a finite number above 0, not nan"),
        (lambda: sizing.safe_queue_depth(2, 0), "arrival_rps must be"),
        (lambda: sizing.expected_tokens_per_round(1.2, 5), "acceptance must be a ratio, 0 to 1, not 1.2"),
        (lambda: sizing.acceptance_from_mean_accepted(6, 5), "6 accepted of 5 drafted tokens cannot be"),
        (lambda: sizing.acceptance_from_mean_accepted(1, 0), "drafts must be at least 1, not 0"),
        (lambda: sizing.cost_per_million_tokens(1, 2, 0), "tokens must be a finite number above 0, not 0"),
        (lambda: sizing.cost_per_million_tokens(-1, 2, 5), "-1 GPU-hours at 2 have no cost"),
    ],
)
def test_impossible_number_is_named(call: Callable[[], float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
