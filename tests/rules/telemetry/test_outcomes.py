"""What became of requests, by hand: two counts of one failure, refusals among the answers 5xx, counts that contradict."""

import making
import pytest
from judging_samples import gauge, minute

from rules.telemetry import arrivals
from rules.telemetry.outcomes import Outcomes, count_gone, outcomes
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing
from rules.telemetry.windows import Window


def ended(**counters: float) -> Outcomes:
    found = outcomes(window(**counters))
    assert isinstance(found, Outcomes)
    return found


def window(running: float = 3.0, **counters: float) -> Window:
    """A minute with 180 served requests beside these."""
    return minute(0, counters=counters, gauges={"requests_running": gauge(running), "requests_waiting": gauge(0.0)})


def test_answered_errors_and_full_queue() -> None:
    found = ended(requests_failed=5.0, http_requests_failed=8.0)
    assert (found.served, found.failed, found.most_failed, found.doubt) == (180.0, 8.0, 13.0, "")
    found = ended(http_requests_failed=40.0, admission_rejections=37.0, http_requests_refused=4.0)
    assert (found.failed, found.no_room, found.bad) == (3.0, 37.0, 4.0)
    assert (found.accepted_requests, found.all_requests) == (183.0, 224.0)


def test_failures_need_evidence() -> None:
    assert ended(http_requests_failed=1.0, admission_rejections=3.0).failed == 0.0
    assert ended(requests_failed=0.0, requests_aborted=90.0).failed == 0.0
    assert outcomes(window()) == Missing(gap=Gap.NOT_EXPOSED)


@pytest.mark.parametrize(
    ("counters", "doubted"),
    [
        ({"http_requests_ok": 180.0, "http_requests_failed": 20.0, "requests_failed": 10.0}, False),
        ({"http_requests_ok": 0.0, "http_requests_failed": 20.0, "requests_failed": 500.0}, True),
        ({"requests_arrived": 20.0, "requests_failed": 23.0}, False),
        ({"requests_arrived": 20.0, "requests_failed": 30.0}, True),
    ],
)
def test_more_failures_than_requests_prove_nothing(counters: dict[str, float], doubted: bool) -> None:
    """Three requests were in the system before, and may fail now."""
    assert bool(ended(**counters).doubt) is doubted


def test_counts_of_unequal_times_prove_nothing() -> None:
    whole = window(http_requests_failed=20.0)
    began_anew = minute(0, counters={"http_requests_failed": 20.0}, short_seconds={"requests_finished": 15.0})
    found = outcomes(began_anew)
    assert isinstance(found, Outcomes)
    assert "different times" in found.doubt
    assert ended(**whole.counters).doubt == ""


# --- demand


def test_failed_requests_arrived_unserved() -> None:
    counters = {"http_requests_failed": 50.0, "requests_failed": 20.0, "admission_rejections": 10.0}
    seen = window(**counters, in_system_change=5.0)
    assert arrivals.count_arrivals(seen.counters) == 180 + 5 + 40 + 10
    rate = read(BY_NAME["arrival_rps"], seen)
    assert rate.value == pytest.approx((180 + 5 + 40 + 10) / 60)
    served = read(BY_NAME["completed_rps"], seen)
    assert served.value == pytest.approx(3.0)
    booked = arrivals.minute_from_window(seen)
    assert (booked.requests, booked.completed) == (235.0, 180.0)


def test_counted_arrivals_include_failed() -> None:
    assert (
        arrivals.count_arrivals({"requests_arrived": 100.0, "requests_finished": 20.0, "requests_failed": 80.0})
        == 100.0
    )


def test_a_tier_that_only_fails_has_demand() -> None:
    found = read(BY_NAME["arrival_rps"], minute(0, rps=0.0, counters={"http_requests_failed": 120.0}))
    assert found.value == pytest.approx(2.0)


# --- readings


def test_shares_use_taken_and_ended() -> None:
    seen = window(http_requests_failed=40.0, admission_rejections=20.0, http_requests_refused=20.0)
    failed, refused = (read(BY_NAME[name], seen) for name in ("failed_share", "refused_share"))
    assert (failed.value, failed.n) == (20 / 200, 200)
    assert (refused.value, refused.n) == (40 / 240, 240)


@pytest.mark.parametrize(
    ("counters", "first_tokens", "gone"),
    [
        ({"requests_finished": 0.0, "http_requests_ok": 120.0}, 120, 120.0),
        ({"requests_finished": 0.0}, 120, 120.0),
        ({"requests_finished": 0.0, "in_system_change": 30.0}, 120, 90.0),
        ({"requests_finished": 300.0, "requests_failed": 20.0, "http_requests_ok": 420.0}, 500, 100.0),
        ({"requests_finished": 300.0, "http_requests_ok": 320.0}, 500, 0.0),  # within the order of counting
        ({"requests_finished": 300.0, "http_requests_ok": 100.0}, 300, 0.0),  # several prompts in one request
        ({"requests_finished": 300.0, "http_requests_ok": 300.0}, 1200, 0.0),  # four answers to one prompt
        ({"requests_finished": 0.0, "requests_arrived": 40.0, "http_requests_ok": 120.0}, 120, 0.0),
        ({"http_requests_ok": 120.0}, 120, 0.0),
    ],
)
def test_client_aborts_told_two_ways(counters: dict[str, float], first_tokens: int, gone: float) -> None:
    seen = making.window(counters=counters, histograms={"ttft_seconds": (making.histogram([0.2] * first_tokens),)})
    assert count_gone(seen) == gone
