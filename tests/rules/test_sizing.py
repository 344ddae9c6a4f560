import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules import sizing


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
