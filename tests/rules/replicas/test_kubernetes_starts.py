"""Cold starts by the pod's own status: whose clock counts, what is only a bound, and what is said."""

from __future__ import annotations

from dataclasses import replace

from rules.replicas.starts import (
    SERVE_SECONDS,
    ReplicaStart,
    add_start,
    describe_start,
    detect_start,
    from_text,
    to_text,
    update_start,
)
from rules.replicas.track import ScrapeTrack
from rules.telemetry.snapshots import PodTimes, Snapshot

ASKED = 1000.0
STARTING = PodTimes(asked_at=ASKED, scheduled_at=1004.0, container_at=1060.0)
READY = replace(STARTING, ready_at=1312.0)


def page(t: float, pod: PodTimes | None, ready_at: float | None = 1290.0, **counters: float) -> Snapshot:
    return Snapshot(
        t=t,
        engine="vllm",
        generation="v1",
        started_at=1061.0 if ready_at else None,
        ready_at=ready_at,
        counters=counters,
        histograms={},
        gauges={},
        facts={},
        pod=pod,
    )


def test_a_start_is_from_asking_for_the_pod_until_it_is_ready_and_not_when_its_engine_is() -> None:
    first = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    assert first is not None
    assert not first.is_final, "it answers, and no traffic comes yet"
    assert add_start((), first) == ()
    last = update_start(first, page(1315.0, READY))
    assert last is not None
    assert last.is_final
    assert (last.source, last.seconds.value, last.lead_seconds) == ("pod", 312.0, 312.0)
    assert describe_start(last) == (
        "its pod was asked for: on a node after 4 s, container started after 60 s, engine ready after 290 s, "
        "pod Ready after 312 s"
    )
    assert update_start(last, page(1330.0, READY)) is last
    assert from_text(to_text(last)) == last
    assert add_start((), last) == (last,)


def test_a_pod_that_is_ready_at_its_first_page_is_known_at_once() -> None:
    start = detect_start(ScrapeTrack(), page(1313.0, READY), "r")
    assert start is not None
    assert start.is_final
    assert start.seconds.value == 312.0


def test_readiness_that_never_comes_leaves_bounds() -> None:
    start = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    later = update_start(start, page(1300.0 + SERVE_SECONDS + 1, STARTING))
    assert later is not None
    assert later.is_final
    assert later.source == "pod_unready", "it is no whole start"
    assert (later.seconds.value, later.seconds.low, later.seconds.high) == (None, 300.0, None)
    assert describe_start(later).endswith("; Ready was not seen")


def test_a_page_that_tells_no_times_is_timed_by_its_pod() -> None:
    start = detect_start(ScrapeTrack(), page(1300.0, READY, ready_at=None), "r")
    assert start is not None
    assert start.seconds.value == 312.0
    assert "engine ready after 300 s" in describe_start(start)


def test_requests_that_waited_are_followed_beside_readiness() -> None:
    first = detect_start(
        ScrapeTrack(seen=1200.0, misses=3, silent_since=1100.0), page(1300.0, STARTING, requests_finished=0.0), "r"
    )
    assert first is not None
    waits = replace(first, waited=True)
    served = update_start(waits, page(1310.0, STARTING, requests_finished=3.0))
    assert served is not None
    assert (served.served_at, served.is_final) == (1310.0, False)
    ready = update_start(served, page(1320.0, READY, requests_finished=9.0))
    assert ready is not None
    assert (ready.served_at, ready.pod_ready_at, ready.is_final) == (1310.0, 1312.0, True)


def test_a_container_that_was_started_again_is_timed_as_before() -> None:
    again = PodTimes(container_at=1060.0)
    start = detect_start(ScrapeTrack(), page(1300.0, again), "r")
    plain = detect_start(ScrapeTrack(), page(1300.0, None), "r")
    assert start is not None
    assert plain is not None
    assert start.source == plain.source == "process"
    assert start.seconds == plain.seconds
    assert isinstance(plain, ReplicaStart)
