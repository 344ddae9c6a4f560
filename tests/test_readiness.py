"""The guide's worked examples of cold starts come out, and a queue that waits for cold capacity behaves as a queue does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecast.readiness import ColdQueue, cold_queue, cold_start_cost, readiness, warm_buffer

PHASES = {"node provisioning": 95.0, "container pull": 22.0, "weight loading": 78.0, "runtime warmup": 12.0}
"""Guide, cold-start-readiness.py."""


@pytest.mark.parametrize(
    ("lead", "margin", "words"), [(120, -87, "surge sees cold queue"), (240, 33, "ready before surge")]
)
def test_the_guides_readiness_margins(lead: float, margin: float, words: str) -> None:
    found = readiness(PHASES, lead)
    assert (found.ready_seconds, found.margin_seconds, found.words) == (207, margin, words)


def test_ready_at_the_very_moment_is_in_time() -> None:
    assert readiness(PHASES, 207).in_time
    assert not readiness(PHASES, 206.999).in_time


@pytest.mark.parametrize(("warm", "start", "waiting"), [(1, 19, 95), (3, 17, 85), (20, 0, 0), (30, 0, 0)])
def test_the_guides_warm_buffer(warm: int, start: int, waiting: int) -> None:
    """Guide, capacity-warm-buffer.py: 100 concurrent requests, 5 a replica."""
    found = warm_buffer(100, 5, warm)
    assert (found.target_replicas, found.replicas_to_start, found.waiting_requests) == (20, start, waiting)


def test_a_rest_of_requests_needs_a_whole_replica() -> None:
    assert warm_buffer(101, 5, 0).target_replicas == 21
    assert warm_buffer(0, 5, 0).target_replicas == 0


def test_the_guides_surge_waits_for_cold_capacity() -> None:
    """A surge to 10 rps on 2 rps of warm capacity, 20 rps ready after 207 s: 8 a second queue up, then 10 a second go."""
    found = cold_queue([10.0] * 600, 1.0, warm_rps=2.0, ready_rps=20.0, ready_after_seconds=207.0)
    peak = 8 * 207
    assert found.peak_requests == pytest.approx(peak)
    assert found.peak_seconds == pytest.approx(207)
    assert found.drained_seconds == pytest.approx(207 + peak / 10)
    assert found.late_requests == pytest.approx(10 * (207 + peak / 10))
    assert found.waited_seconds == pytest.approx(peak / 2 * (207 + peak / 10))
    assert found.mean_wait_seconds == pytest.approx(peak / 2 / 10)
    assert found.left == 0


def test_warm_capacity_that_is_enough_keeps_nobody_waiting() -> None:
    found = cold_queue([3.0, 5.0, 4.0], 60.0, warm_rps=5.0, ready_rps=5.0, ready_after_seconds=100.0)
    nothing = {"peak_requests": 0.0, "peak_seconds": 0.0, "late_requests": 0.0, "waited_seconds": 0.0}
    assert found == ColdQueue(**nothing, drained_seconds=0.0, left=0.0)
    assert found.mean_wait_seconds == 0.0


def test_a_queue_that_outlasts_the_arrivals_that_are_known_is_not_called_drained() -> None:
    found = cold_queue([10.0] * 60, 1.0, warm_rps=2.0, ready_rps=10.0, ready_after_seconds=30.0)
    assert (found.drained_seconds, found.left) == (None, pytest.approx(240))
    assert found.late_requests == pytest.approx(600)


def test_a_spike_drains_in_the_quiet_after_it_also_without_any_new_capacity() -> None:
    found = cold_queue([10.0, 0.0], 10.0, warm_rps=5.0, ready_rps=5.0, ready_after_seconds=0.0)
    assert (found.peak_requests, found.drained_seconds) == (pytest.approx(50), pytest.approx(20))
    assert found.late_requests == pytest.approx(100)


def test_no_warm_replica_makes_all_wait_until_the_first_is_ready() -> None:
    found = cold_queue([1.0] * 100, 1.0, warm_rps=0.0, ready_rps=2.0, ready_after_seconds=40.0)
    assert found.peak_requests == pytest.approx(40)
    assert found.drained_seconds == pytest.approx(80)


@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=30),
    st.floats(0, 30),
    st.floats(0, 30),
    st.floats(0, 300),
)
def test_a_queue_neither_loses_nor_makes_requests(
    arrivals: list[float], warm: float, more: float, ready_after: float
) -> None:
    found = cold_queue(arrivals, 10.0, warm, warm + more, ready_after)
    assert 0 <= found.left <= found.peak_requests + 1e-6
    assert found.late_requests <= math.fsum(arrivals) * 10.0 + 1e-6
    assert (found.left > 0) <= (found.drained_seconds is None)
    # Stepping in hundredths of a second comes to the same peak, to within one such step.
    queue = peak = 0.0
    for n in range(len(arrivals) * 100):
        capacity = warm if n * 0.1 < ready_after else warm + more
        queue = max(0.0, queue + (arrivals[n // 100] - capacity) * 0.1)
        peak = max(peak, queue)
    assert found.peak_requests == pytest.approx(peak, abs=0.1 * 51 * 2)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20), st.floats(0, 100), st.floats(0, 100))
def test_capacity_that_comes_later_makes_nobody_wait_less(arrivals: list[float], sooner: float, after: float) -> None:
    early = cold_queue(arrivals, 10.0, 5.0, 20.0, sooner)
    late = cold_queue(arrivals, 10.0, 5.0, 20.0, sooner + after)
    assert late.peak_requests >= early.peak_requests - 1e-6
    assert late.waited_seconds >= early.waited_seconds - 1e-6


def test_a_start_costs_its_seconds_at_the_price_of_its_gpus() -> None:
    """Guide 9.2: 207 s of 8 GPUs at 2.50 an hour each."""
    assert cold_start_cost(207, 8, 2.5) == pytest.approx(1.15)
    assert cold_start_cost(3600, 1, 2.5) == 2.5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: readiness({"weights": -1.0}, 120), "weights must be a number from 0 on, not -1"),
        (lambda: readiness(PHASES, math.nan), "lead must be a number"),
        (lambda: warm_buffer(100, 0, 1), "requests_per_replica must be at least 1, not 0"),
        (lambda: warm_buffer(-1, 5, 1), "concurrent_requests must be"),
        (lambda: warm_buffer(1, 5, -1), "warm_replicas must be"),
        (
            lambda: cold_queue([1.0, math.nan], 60.0, 1.0, 2.0, 0.0),
            r"arrivals_rps\[1\] must be a number from 0 on, not nan",
        ),
        (lambda: cold_queue([1.0], 0.0, 1.0, 2.0, 0.0), "bin_seconds must be above 0"),
        (lambda: cold_queue([1.0], 60.0, -1.0, 2.0, 0.0), "warm_rps must be"),
        (lambda: cold_start_cost(207, -8, 2.5), "gpus must be"),
    ],
)
def test_what_can_be_no_amount_is_refused_by_name(call: object, said: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=said):
        call()
