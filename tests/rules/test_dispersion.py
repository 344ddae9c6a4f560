import pytest

from rules.confidence import ChiSquare, check_homogeneity, check_uniformity, chi_square_below


@pytest.mark.parametrize(
    ("x", "freedom", "below"),
    [(3.841459, 1, 0.95), (5.991465, 2, 0.95), (0.102587, 2, 0.05), (7.814728, 3, 0.95), (124.3421, 100, 0.95)],
)
def test_the_distribution_is_that_of_the_tables(x: float, freedom: int, below: float) -> None:
    """Critical values of NIST/SEMATECH, e-Handbook of Statistical Methods, 1.3.6.7.4."""
    assert chi_square_below(x, freedom) == pytest.approx(below, abs=1e-6)


def test_the_ends_of_the_distribution_are_nothing_and_all() -> None:
    assert chi_square_below(0.0, 3) == 0.0
    assert chi_square_below(1e6, 3) == 1.0
    assert chi_square_below(1500.0, 1200) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("x", "freedom"), [(-1.0, 2), (1.0, 0)])
def test_what_is_no_chi_square_is_refused(x: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no chi-square"):
        chi_square_below(x, freedom)


def test_rows_are_compared_with_an_equal_share_and_add_up() -> None:
    found = check_uniformity([(30, 40, 50), (40, 40, 40)])
    assert found == ChiSquare(statistic=5.0, freedom=4)
    assert found.probability_below == pytest.approx(1 - found.probability_above)


def test_rows_without_counts_or_of_one_place_say_nothing() -> None:
    nothing = check_uniformity([(0, 0), (5,), ()])
    assert nothing == ChiSquare()
    assert (nothing.probability_below, nothing.probability_above) == (1.0, 1.0)


def test_two_rows_are_compared_by_their_shares() -> None:
    assert check_homogeneity((30, 60), (10, 20)).statistic == pytest.approx(0.0)
    moved = check_homogeneity((90, 30), (60, 60))
    assert moved.statistic == pytest.approx(16.0)
    assert moved.freedom == 1
    assert check_homogeneity((0, 0), (5, 5)) == ChiSquare()
    assert check_homogeneity((5, 0), (5, 0)) == ChiSquare()
