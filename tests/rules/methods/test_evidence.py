import pytest
from judging_samples import seen
from length_samples import TOKEN_EDGES

from rules.methods import evidence
from rules.methods.evidence import LimitSide
from rules.telemetry.histograms import Histogram

CERTAIN, LIKELY = 0.999, 0.95


def requests(short: float, long: float) -> tuple[Histogram, ...]:
    """So many of 150 tokens, which are in (100, 200], and so many of 400, in (200, 500]."""
    return seen({150.0: short, 400.0: long}, TOKEN_EDGES)


def test_longer_and_shorter_count_whole_buckets() -> None:
    assert evidence.exceeds_limit(requests(94, 6), 0.95, 200.0, LimitSide.LONGER)
    assert not evidence.exceeds_limit(requests(94, 6), 0.95, 201.0, LimitSide.LONGER)
    assert not evidence.exceeds_limit(requests(95, 5), 0.95, 200.0, LimitSide.LONGER)
    assert evidence.exceeds_limit(requests(96, 4), 0.95, 200.0, LimitSide.SHORTER)
    assert not evidence.exceeds_limit(requests(96, 4), 0.95, 199.0, LimitSide.SHORTER)
    assert not evidence.exceeds_limit(requests(95, 5), 0.95, 200.0, LimitSide.SHORTER)


def test_nothing_seen_is_beyond_nothing() -> None:
    for side in LimitSide:
        assert not evidence.exceeds_limit((), 0.95, 200.0, side)
        assert not evidence.is_significant_quantile((), 0.95, 200.0, side, LIKELY)


def test_longer_beyond_chance_is_the_binomial_tail() -> None:
    # Of 1000 requests 50 are expected above their P95, with a standard deviation of 6.9: 63 are 1.9 of them, 76 are 3.8.
    for long, likely, certain in ((61, False, False), (63, True, False), (76, True, True)):
        parts = requests(1000 - long, long)
        assert evidence.is_significant_quantile(parts, 0.95, 200.0, LimitSide.LONGER, LIKELY) is likely
        assert evidence.is_significant_quantile(parts, 0.95, 200.0, LimitSide.LONGER, CERTAIN) is certain


@pytest.mark.parametrize(("n", "confidence"), [(299, LIKELY), (688, CERTAIN)])
def test_clean_p99_needs_enough_requests(n: int, confidence: float) -> None:
    """0.99^n below 5 % from 299 requests on, below 0.1 % from 688 on."""
    assert evidence.is_significant_quantile(requests(n, 0), 0.99, 200.0, LimitSide.SHORTER, confidence)
    assert not evidence.is_significant_quantile(requests(n - 1, 0), 0.99, 200.0, LimitSide.SHORTER, confidence)
