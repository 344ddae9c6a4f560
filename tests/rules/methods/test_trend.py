"""Trends over 15 minutes, by thirds: queues that grow, and pegged GPUs with a rising or a stable TTFT."""

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, unknown, verdict

from rules.confidence import Certainty
from rules.plan import load_bins
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status

QUEUE, GPU = "QueueGrowing", "GpuSaturated"
PLANLESS = load_bins.build_tier_context("t", None)


def queued(number: int, per_minute: float = 6.0, **more: Any) -> Window:
    """A minute whose queue is `per_minute` longer than the one before it, from 1 on."""
    waiting = 1 + per_minute * number
    return minute(number, waiting=waiting, in_system=waiting + 3, change=per_minute, **more)


def test_growing_queue_needs_no_plan() -> None:
    found = verdict(QUEUE, PLANLESS, each(15, lambda n: queued(n, per_minute=20.0)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == (
        "The queue of a grows; 41.0, 141.0, then 241.0 were waiting; what replicas take is not known"
    )
    assert "2,700 finished in this time, 3,000 arrived" in found.details


def test_growth_that_chance_can_make_is_likely() -> None:
    """60 more of 1,800 finished: arrivals and completions come apart by 3.1 x 60 once in a thousand times."""
    found = verdict(QUEUE, PLANLESS, each(10, queued))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_few_minutes_make_it_likely() -> None:
    steep = verdict(QUEUE, PLANLESS, each(5, lambda n: queued(n, per_minute=100.0)))
    assert (steep.status, steep.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert verdict(QUEUE, PLANLESS, each(6, lambda n: queued(n, per_minute=100.0))).certainty is Certainty.CERTAIN


def test_queue_waits_for_its_minimum() -> None:
    assert unknown(QUEUE, PLANLESS, each(2, lambda n: queued(n, per_minute=100.0))).reason is Gap.TOO_FEW_REQUESTS
    assert verdict(QUEUE, PLANLESS, each(3, lambda n: queued(n, per_minute=100.0))).status is Status.WARNING


@pytest.mark.parametrize(
    "several",
    [
        each(15, lambda n: minute(n, waiting=40.0, in_system=43.0)),
        each(15, minute),
        each(15, lambda n: minute(n, waiting=5.0 * min(n, 15 - n), in_system=40.0, change=5.0 if n < 8 else -5.0)),
        each(15, lambda n: minute(n, waiting=0.02 * n, change=0.1)),
        each(15, lambda n: queued(n, per_minute=1.0)),
    ],
    ids=["long and steady", "none", "worked off", "hardly any", "within what a full batch does"],
)
def test_what_does_not_grow_is_ok(several: list[Window]) -> None:
    found = verdict(QUEUE, PLANLESS, several)
    assert (found.status, found.certainty) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence.startswith("No queue grows: at most ")


def test_one_replica_queue_grows() -> None:
    found = verdict(QUEUE, context(), {"a": each(15, minute), "b": each(15, lambda n: queued(n, per_minute=20.0))})
    assert found.sentence.startswith("The queue of b (1 of 2 replicas) grows; ")


def test_a_queue_is_explained_by_the_load() -> None:
    """Nearly the usable rate finishes, and 40 a minute more than that arrive."""
    usable = context().capacity.rps
    assert usable is not None
    loaded = each(15, lambda n: queued(n, per_minute=40.0, rps=usable * 0.95))
    found = verdict(QUEUE, context(), loaded)
    assert [cause.cause for cause in found.causes] == ["more load"]
    assert found.causes[0].evidence[0].startswith("more load than planned: ")


def test_queue_limits_can_be_set() -> None:
    high = context(limits={QUEUE: {"waiting": 500.0}})
    assert verdict(QUEUE, high, each(15, lambda n: queued(n, per_minute=20.0))).status is Status.OK
    share = context(limits={QUEUE: {"share": 0.5}})
    assert verdict(QUEUE, share, each(15, lambda n: queued(n, per_minute=20.0))).status is Status.OK


def test_unknown_queue_is_not_empty() -> None:
    bare = [replace(one, gauges={}) for one in each(15, minute)]
    assert unknown(QUEUE, PLANLESS, bare).reason is Gap.NOT_EXPOSED


def pegged(number: int, seconds: float, busy: float = 0.99, family: str = "gpu_busy_seconds", **more: Any) -> Window:
    """A minute with this GPU utilisation, whose first tokens took this long."""
    n = more.pop("requests", 60.0)
    made = minute(number, rps=n / 60, **more)
    gpu: dict[str, Any] = {
        "counters": {**made.counters, "gpu_busy_seconds": 60 * busy, "gpu_busy_covered_seconds": 60.0}
    }
    if family != "gpu_busy_seconds":
        gpu = {"gauges": {**made.gauges, family: gauge(busy)}, "sampled": frozenset({family})}
    return replace(made, histograms={"ttft_seconds": seen({seconds: n})}, **gpu)


def rising(number: int) -> float:
    return 0.08 if number < 7 else 0.4


def test_pegged_with_rising_ttft_is_saturated() -> None:
    found = verdict(GPU, PLANLESS, each(15, lambda n: pegged(n, rising(n))))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == ("GPUs of a are pegged at 99.0% while TTFT rises; P50 was 50 to 100 ms, is 260 to 520 ms")
    assert found.actions[0].startswith("Chunked prefill")


def test_stable_pegged_gpu_is_healthy() -> None:
    found = verdict(GPU, PLANLESS, each(15, lambda n: pegged(n, 0.4)))
    assert (found.status, found.sentence) == (
        Status.OK,
        "GPUs pegged at 99.0% with stable TTFT: prefill-bound and healthy",
    )


def test_a_falling_ttft_is_no_rise() -> None:
    assert verdict(GPU, PLANLESS, each(15, lambda n: pegged(n, rising(14 - n)))).status is Status.OK


def test_below_pegged_is_ok() -> None:
    found = verdict(GPU, PLANLESS, each(15, lambda n: pegged(n, rising(n), busy=0.94)))
    assert (found.status, found.sentence) == (
        Status.OK,
        "GPUs are busy 94.0% of the time on the busiest replica: not pegged",
    )
    assert verdict(GPU, PLANLESS, each(15, lambda n: pegged(n, rising(n), busy=0.95))).status is Status.WARNING


def test_pegging_must_last() -> None:
    ended = each(15, lambda n: pegged(n, rising(n), busy=1.0 if n < 12 else 0.9))
    assert verdict(GPU, context(limits={GPU: {"pegged": 0.96}}), ended).status is Status.OK
    low = context(limits={GPU: {"pegged": 0.5}})
    for count, status in ((2, Status.OK), (3, Status.WARNING)):
        late = each(15, lambda n, count=count: pegged(n, rising(n), busy=1.0 if n >= 15 - count else 0.49))
        assert verdict(GPU, low, late).status is status


def test_a_plain_poll_makes_it_likely() -> None:
    polled = each(15, lambda n: pegged(n, rising(n), family="gpu_utilization_sampled"))
    assert verdict(GPU, PLANLESS, polled).certainty is Certainty.LIKELY
    measured = each(15, lambda n: pegged(n, rising(n), family="gpu_gr_engine_active"))
    assert verdict(GPU, PLANLESS, measured).certainty is Certainty.CERTAIN


def test_a_rise_within_neighbouring_buckets_is_likely() -> None:
    """From (0.05, 0.1] to (0.1, 0.15]: 1.3 x the upper edge is 0.13, inside the later bucket."""
    found = verdict(GPU, PLANLESS, each(15, lambda n: pegged(n, 0.08 if n < 7 else 0.12)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_the_tail_may_rise_alone() -> None:
    def tail(number: int) -> Window:
        made = pegged(number, 0.08, requests=600.0)
        late = {0.08: 540.0, 0.9: 60.0} if number >= 10 else {0.08: 600.0}
        return replace(made, histograms={"ttft_seconds": seen(late)})

    found = verdict(GPU, PLANLESS, each(15, tail))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert "TTFT rises; P99 was" in found.sentence


def test_pegged_replica_shows_among_idle() -> None:
    several = {"a": each(15, lambda n: pegged(n, 0.08, busy=0.2)), "b": each(15, lambda n: pegged(n, rising(n)))}
    found = verdict(GPU, PLANLESS, several)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.startswith("GPUs of b are pegged")
    assert found.details == ("1 of 2 replicas",)


def test_why_saturation_cannot_be_known() -> None:
    assert unknown(GPU, PLANLESS, each(15, minute)).reason is Gap.NOT_EXPOSED
    few = unknown(GPU, PLANLESS, each(15, lambda n: pegged(n, rising(n), requests=5.0)))
    assert few.text == "25 requests in the first third at pegged GPUs, 30 are needed"
    assert unknown(GPU, PLANLESS, each(2, lambda n: pegged(n, rising(n)))).reason is Gap.TOO_FEW_REQUESTS


def test_last_queue_is_last_quarter() -> None:
    """Eight waited in the first ten minutes, none in the last five."""
    found = verdict(QUEUE, PLANLESS, each(15, lambda n: minute(n, waiting=8.0 if n < 10 else 0.0, in_system=9.0)))
    assert found.sentence == "No queue grows: at most 0.0 requests were waiting at a replica at the end of this time"
