import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.sizing import (
    acceptance_from_mean_accepted,
    cost_per_million_tokens,
    expected_tokens_per_round,
    littles_ceiling_rps,
    safe_queue_depth,
    speculation_speed_up,
)


def test_requests_of_two_seconds_bound_rps() -> None:
    assert littles_ceiling_rps(48, 2) == 24


def test_guides_queue_and_draft_examples() -> None:
    assert safe_queue_depth(2, 50) == 100
    with pytest.raises(ValueError, match="arrival_rps must be"):
        safe_queue_depth(2, 0)
    assert expected_tokens_per_round(0.8, 5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert expected_tokens_per_round(0.8, 5) == pytest.approx(3.69, abs=0.005)


def test_certain_and_impossible_acceptance_are_the_ends() -> None:
    assert expected_tokens_per_round(1, 5) == 6
    assert expected_tokens_per_round(0, 5) == 1
    assert acceptance_from_mean_accepted(5, 5) == 1
    assert acceptance_from_mean_accepted(0, 5) == 0


def test_accepted_over_drafted_is_not_the_acceptance() -> None:
    # 0.8 + 0.64 + 0.512 + 0.4096 + 0.32768 = 2.68928 accepted of 5 drafted: 54 %, though each token is taken at 80 %.
    assert acceptance_from_mean_accepted(2.68928, 5) == pytest.approx(0.8)


@given(acceptance=st.floats(0, 1), drafts=st.integers(1, 16))
def test_acceptance_is_recovered_from_what_it_causes(acceptance: float, drafts: int) -> None:
    mean = expected_tokens_per_round(acceptance, drafts) - 1
    assert acceptance_from_mean_accepted(min(max(mean, 0), drafts), drafts) == pytest.approx(acceptance, abs=1e-9)


def test_drafts_speed_up_as_reckoned() -> None:
    assert speculation_speed_up(3.69, 5, 0.001, 0.01) == pytest.approx(2.46)


def test_tokens_cost_their_gpu_hours() -> None:
    assert cost_per_million_tokens(52, 2.5, 65_000_000) == 2.0
    assert cost_per_million_tokens(0, 2.5, 1) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: littles_ceiling_rps(0, 2), "c_max must be a finite number above 0, not 0"),
        (lambda: littles_ceiling_rps(48, math.nan), "slo_seconds must be a finite number above 0, not nan"),
        (lambda: expected_tokens_per_round(1.2, 5), "acceptance must be a ratio, 0 to 1, not 1.2"),
        (lambda: acceptance_from_mean_accepted(6, 5), "6 accepted of 5 drafted tokens cannot be"),
        (lambda: acceptance_from_mean_accepted(1, 0), "drafts must be at least 1, not 0"),
        (lambda: cost_per_million_tokens(1, 2, 0), "tokens must be a finite number above 0, not 0"),
        (lambda: cost_per_million_tokens(-1, 2, 5), "-1 GPU-hours at 2 have no cost"),
    ],
)
def test_impossible_number_is_named(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=words):
        call()
