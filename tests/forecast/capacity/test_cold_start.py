"""A tier's cold start: kinds of timing are kept apart, and the lead is never shorter than the whole is known to be."""

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import START

from forecast.capacity.cold_start import ColdStart, LeadSource, cold_start
from rules.replicas.starts import ENOUGH, ReplicaStart, Timing


def timed(*seconds: float) -> tuple[ReplicaStart, ...]:
    """Starts whose pages tell that they took so long from process start to ready."""
    return tuple(
        ReplicaStart(replica=f"r{n}", seen_at=START + n * 60, started_at=START + n * 60 - s, ready_at=START + n * 60)
        for n, s in enumerate(seconds)
    )


def by_pod(*seconds: float, process: float | None = None) -> tuple[ReplicaStart, ...]:
    """Starts whose pods took so long from their making to Ready; `process` of it by the page, where it tells."""
    return tuple(
        ReplicaStart(
            replica=f"p{n}",
            seen_at=START + s,
            asked_at=START,
            pod_ready_at=START + s,
            started_at=None if process is None else START + s - process,
            ready_at=None if process is None else START + s,
        )
        for n, s in enumerate(seconds)
    )


def bounded(*seconds: float) -> tuple[ReplicaStart, ...]:
    """Starts whose pages tell when the process started, and that were ready at their first page at the latest."""
    return tuple(
        ReplicaStart(replica=f"q{n}", seen_at=START + s, alive_at=START - 1, silent_since=START, started_at=START)
        for n, s in enumerate(seconds)
    )


def of(starts: Iterable[ReplicaStart], planned: float | None = None) -> ColdStart:
    return cold_start(starts, planned)


def lead(starts: Iterable[ReplicaStart], planned: float | None = None) -> tuple[float, str]:
    found = of(starts, planned)
    return found.p95_seconds, found.source


Kind = Callable[..., tuple[ReplicaStart, ...]]
IN_PART: tuple[Kind, ...] = (timed, bounded)


@pytest.mark.parametrize("kind", IN_PART)
@pytest.mark.parametrize("count", [1, 19, 20, 40, 200])
def test_partial_starts_never_undercut_plan(kind: Kind, count: int) -> None:
    found = of(kind(*[90.0] * count), 207.0)
    assert (found.p95_seconds, found.source, found.leading) == (207.0, LeadSource.PLAN, None)
    assert found.count == count
    assert found.sentence.endswith(
        ". No start was timed from the request for its replica. The plan's 207 s are the lead; 117 s of it are not timed"
    )


@pytest.mark.parametrize("kind", IN_PART)
@pytest.mark.parametrize("count", [1, 20, 200])
def test_longer_starts_lengthen_the_lead(kind: Kind, count: int) -> None:
    assert lead(kind(*[250.0] * count), 207.0) == (250.0, LeadSource.PARTLY)
    assert lead(by_pod(*[250.0] * count), 207.0) == (250.0, LeadSource.MEASURED)


def test_sentence_names_what_is_not_timed() -> None:
    assert of(timed(*[250.0] * 20), 207.0).sentence == (
        "20 starts timed from process start to ready: P50 250 s, P95 250 s. "
        "The lead is at least 250 s: finding a node and pulling the image are not in it; the plan has 207 s"
    )


def test_twenty_whole_starts_replace_the_plan() -> None:
    twenty = by_pod(*(float(n) for n in range(91, 111)))
    for planned in (5.0, 600.0):
        assert lead(twenty, planned) == (109.0, LeadSource.MEASURED)
    assert of(twenty, 600.0).sentence == (
        "20 starts timed from the request for the pod to Ready: P50 100 s, P95 109 s. "
        "The P95 from the request to Ready is the lead; the plan has 600 s"
    )
    found = of(twenty[1:], 600.0)
    assert (found.p95_seconds, found.source) == (600.0, LeadSource.PLAN)
    assert found.sentence == (
        "19 starts timed from the request for the pod to Ready: P50 101 s, the slowest 110 s. "
        "The plan's 600 s are the lead until 20 starts are timed from the request to Ready"
    )
    assert lead(twenty[1:], 105.0) == (110.0, LeadSource.MEASURED)
    assert of(twenty[1:], 105.0).sentence.endswith(
        ". The slowest from the request to Ready is the lead; the plan has 105 s"
    )


def test_timings_are_never_mixed() -> None:
    """Of all together the P95 would be 90 s: one in forty took longer."""
    found = of((*timed(*[90.0] * 39), *by_pod(300.0)))
    assert [(one.timing, one.count, one.p50_seconds, one.p95_seconds) for one in found.known] == [
        (Timing.POD, 1, 300.0, 300.0),
        (Timing.PROCESS, 39, 90.0, 90.0),
    ]
    assert (found.p95_seconds, found.timing) == (300.0, Timing.POD)
    # Nor do starts timed in part help whole ones to be enough.
    assert lead((*timed(*[90.0] * 39), *by_pod(*[100.0] * 19)), 207.0) == (207.0, LeadSource.PLAN)


def test_partial_starts_count_by_their_proof() -> None:
    whole = by_pod(*[100.0] * 20, process=60.0)
    assert lead((*whole, *timed(*[70.0] * 40)), 207.0) == (100.0, LeadSource.MEASURED)
    assert lead((*whole, *bounded(900.0)), 207.0) == (100.0, LeadSource.MEASURED)
    assert lead((*whole, *timed(250.0)), 207.0) == (250.0, LeadSource.PARTLY)


def test_one_start_is_said_to_be_one() -> None:
    assert of(timed(50.6)).sentence == (
        "one start timed from process start to ready: 50.6 s. "
        "The lead is at least 50.6 s: finding a node and pulling the image are not in it; the plan has no cold_start_seconds"
    )


def test_plan_is_lead_without_starts() -> None:
    found = of((), 120.0)
    assert (found.p95_seconds, found.source, found.known) == (120.0, LeadSource.PLAN, ())
    assert found.sentence == "no start was timed yet: the plan's 120 s are the lead"
    assert cold_start((), None) is None


def test_upper_bounds_count_until_enough() -> None:
    found = of((*timed(30.0), *bounded(95.0, 80.0)))
    assert (found.p95_seconds, found.timing) == (95.0, Timing.PROCESS)
    assert "3 starts timed from process start to ready: P50 80 s, the slowest 95 s" in found.sentence


def test_a_start_that_nothing_times_counts_nowhere() -> None:
    untimed = ReplicaStart(replica="r", seen_at=START + 95, alive_at=START, silent_since=START + 15)
    assert lead((untimed,), 120.0) == (120.0, LeadSource.PLAN)
    assert cold_start((untimed,), None) is None


starts_of = st.lists(st.floats(1.0, 900.0), max_size=30)


@given(starts_of, starts_of, st.lists(st.floats(1.0, 900.0), max_size=ENOUGH - 1), st.floats(1.0, 900.0))
def test_lead_is_never_below_plan_or_p95(
    process: Sequence[float], silent: Sequence[float], pods: Sequence[float], planned: float
) -> None:
    found = of((*timed(*process), *bounded(*silent), *by_pod(*pods, process=1.0)), planned)
    assert found.p95_seconds >= max([planned, *(one.p95_seconds for one in found.known)])
    assert found.count == len(process) + len(silent) + len(pods)
