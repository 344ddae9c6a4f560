"""Cold starts by the pod's own status: whose clock counts, what is only a bound, and what is said."""

from dataclasses import replace

from making import bare_page

from rules.evaluator.timeline import parse_start_event, start_event
from rules.replicas.starts import (
    READY_SECONDS,
    Timing,
    add_start,
    describe_start,
    update_start,
)
from rules.replicas.state import ScrapeTrack, detect_start
from rules.telemetry.snapshots import PodTimes, Snapshot

ASKED = 1000.0
STARTING = PodTimes(asked_at=ASKED, container_at=1060.0)
READY = replace(STARTING, ready_at=1312.0)


def page(t: float, pod: PodTimes | None, ready_at: float | None = 1290.0, **counters: float) -> Snapshot:
    return bare_page(t, started_at=1061.0 if ready_at else None, ready_at=ready_at, counters=counters, pod=pod)


def test_start_spans_request_to_ready() -> None:
    first = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    assert first.unready, "it answers, and no traffic comes yet"
    assert add_start((), first) == ()
    last = update_start(first, page(1315.0, READY))
    assert (last.unready, last.timing, last.lead_seconds) == (False, Timing.POD, 312.0)
    assert describe_start(last) == "pod Ready 312 s after it was asked for"
    assert update_start(last, page(1330.0, READY)) is last
    assert parse_start_event(start_event("t", last)) == last
    assert add_start((), last) == (last,)


def test_pod_readiness_known_or_never() -> None:
    start = detect_start(ScrapeTrack(), page(1313.0, READY), "r")
    assert (start.unready, start.lead_seconds) == (False, 312.0)
    start = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    later = update_start(start, page(1300.0 + READY_SECONDS + 1, STARTING))
    assert (later.unready, later.timing, later.lead_seconds) == (False, Timing.PROCESS, 229.0), "it is no whole start"


def test_silent_page_uses_its_pod() -> None:
    start = detect_start(ScrapeTrack(), page(1300.0, READY, ready_at=None), "r")
    assert start.lead_seconds == 312.0
    assert describe_start(start) == "pod Ready 312 s after it was asked for"


def test_restarted_container_times_as_before() -> None:
    again = PodTimes(container_at=1060.0)
    start = detect_start(ScrapeTrack(), page(1300.0, again), "r")
    plain = detect_start(ScrapeTrack(), page(1300.0, None), "r")
    assert start.timing is plain.timing is Timing.PROCESS
    assert start.seconds == plain.seconds
