"""Requests without an answer: held by an engine or a data-parallel rank that does no work, or overdue in a queue.

Counters of processes and of HTTP answers move while an engine core is dead, so only counters of its work count.
Latency histograms observe a request at its first token, so a queue that stands still is in none of them. A request that
waits at t and waited at t - objective has missed it (DESIGN 3.19). The order of service does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from rules.telemetry.families import FAMILIES, FamilyKind
from rules.telemetry.gauges import IN_SYSTEM, STEP_FAMILY, TOKEN_FAMILY
from rules.telemetry.outcomes import ARRIVED, FINISHED, HTTP_FAILED, HTTP_OK, HTTP_REFUSED
from rules.telemetry.snapshots import RankPage, Snapshot

WORK = frozenset(family.name for family in FAMILIES if family.by_rank and family.kind is not FamilyKind.GAUGE)
"""Counters and histograms that move only if the engine works."""

RANK_GAUGES = frozenset(family.name for family in FAMILIES if family.by_rank and family.kind is FamilyKind.GAUGE)
"""Gauges that are read by rank."""

STALL_SECONDS = 60.0
"""Shortest time without work, in seconds, that is surely a stall."""

START_SECONDS = 300.0
"""Longest start of an engine in seconds, where the plan has none (guide 9.2: 2 to 5 minutes)."""

FEWEST_PAGES = 3
"""Fewest good pages that show a stall for certain."""

STEP_PARTS = 5.0
"""A stall is certain after so many of the longest steps seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStall:
    """Rank that holds requests and has done no work since `since` (unix seconds), on `pages` good pages.

    `left` is the number of HTTP answers beyond the finished requests then, None if unknown, and `left_before` that of
    the page before.
    """

    name: str
    since: float
    pages: int
    left: float | None
    left_before: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StallTrack:
    """Present stalls by rank, and the longest time in seconds after which a rank worked again.

    `left` is the number of HTTP answers beyond the finished requests on the page before the last one.
    """

    ranks: tuple[RankStall, ...] = ()
    longest_step: float = 0.0
    left: float | None = None


NO_STALLS = StallTrack()


def counts_each_step(engine: str, families: Container[str]) -> bool:
    """Return whether these families count each step, or each token of running requests as vLLM does."""
    return STEP_FAMILY in families or (engine == "vllm" and "generation_tokens" in families)


def list_ranks(page: Snapshot) -> tuple[RankPage, ...]:
    """Return the data-parallel ranks of a page, or the whole page as its only rank."""
    if page.ranks:
        return page.ranks
    values = [page.counters[family] for family in WORK if family in page.counters]
    events = [page.histograms[family].counts[-1] for family in WORK if family in page.histograms]
    whole = RankPage(
        name="",
        gauges=page.gauges,
        work=math.fsum((*values, *events)),
        # SGLang without a count of its passes keeps "1 running" after its last request, but no queue.
        counts_steps=counts_each_step(page.engine, page.counters)
        or (TOKEN_FAMILY in page.histograms and page.gauges.get("requests_waiting", 0.0) > 0),
    )
    return (whole,)


def has_answered_all(page: Snapshot) -> bool:
    """Return whether the page counts arrivals and answers, and as many of both: its gauges are old then."""
    counters = page.counters
    if ARRIVED not in counters or HTTP_OK not in counters:
        return False
    answers = (HTTP_OK, HTTP_REFUSED, HTTP_FAILED)
    return counters[ARRIVED] <= math.fsum(counters.get(family, 0.0) for family in answers)


def is_suspended(gauges: Mapping[str, float]) -> bool:
    """Return whether an engine is asleep or paused, and keeps its requests and gauges until it goes on."""
    return gauges.get("engine_awake", 1.0) < 1 or gauges.get("requests_paused", 0.0) > 0


def count_requests(gauges: Mapping[str, float]) -> float:
    """Return the requests that an engine holds and should serve: none while it is asleep or paused."""
    return 0.0 if is_suspended(gauges) else math.fsum(gauges.get(name, 0.0) for name in IN_SYSTEM)


def count_left(page: Snapshot) -> float | None:
    """Return the HTTP answers that no finished request explains: their clients left. None if HTTP is not counted."""
    counters = page.counters
    if HTTP_OK not in counters:
        return None
    return counters[HTTP_OK] + counters.get(HTTP_FAILED, 0.0) - counters.get(FINISHED, 0.0)


def step_stalls(track: StallTrack, before: Snapshot, page: Snapshot) -> StallTrack:
    """Return the stalls after another page of the same process."""
    if not (track.ranks or page.ranks) and page.counters.get(STEP_FAMILY) != before.counters.get(STEP_FAMILY):
        # Hot path: most pages are of an engine that works.
        return StallTrack(longest_step=track.longest_step, left=count_left(before))
    if has_answered_all(page):
        return StallTrack(longest_step=track.longest_step)
    earlier = {rank.name: rank for rank in list_ranks(before)}
    known = {stall.name: stall for stall in track.ranks}
    stalls: list[RankStall] = []
    longest = track.longest_step
    for rank in list_ranks(page):
        was, stall = earlier.get(rank.name), known.get(rank.name)
        if was is None or rank.work != was.work:
            seconds = page.t - stall.since if stall is not None else 0.0
            if seconds < max(STALL_SECONDS, STEP_PARTS * longest):
                longest = max(longest, seconds)
        elif count_requests(rank.gauges):
            if stall is None:
                first, pages = (before, 2) if count_requests(was.gauges) else (page, 1)
                left = count_left(first)
                earlier_left = left if track.left is None else track.left
                stall = RankStall(name=rank.name, since=first.t, pages=pages, left=left, left_before=earlier_left)
            else:
                stall = replace(stall, pages=stall.pages + 1)
            stalls.append(stall)
    return StallTrack(ranks=tuple(stalls), longest_step=longest, left=count_left(before))


def is_stopped(track: StallTrack, page: Snapshot) -> bool:
    """Return whether every rank of a page holds requests, and has done no work for STALL_SECONDS."""
    ranks = track.ranks
    # Hot path: most replicas have no stall, and the work of a page is a sum of all its counters.
    return bool(ranks) and len(ranks) == len(list_ranks(page)) and all(page.t - s.since >= STALL_SECONDS for s in ranks)


def may_have_left(stall: RankStall, rank: RankPage, page: Snapshot) -> bool:
    """Return whether all clients of a rank may have left: it is idle then, and keeps its gauges until its next step.

    More answers than requests are no such end: an engine that lives steps for new requests.
    """
    left, held = count_left(page), count_requests(rank.gauges)
    if left is None or stall.left is None or stall.left_before is None or not rank.gauges.get("requests_running"):
        return False
    return left - stall.left_before >= held and (left - stall.left <= held + 1 or bool(page.ranks))


def count_held(track: StallTrack, page: Snapshot) -> tuple[float, float]:
    """Return the requests that wait in ranks that surely do no work, and those that such ranks hold, at least.

    Ranks that never worked may load weights. Held ones run or wait for room: others may wait for KV.
    """
    certain = max(STALL_SECONDS, STEP_PARTS * track.longest_step)
    late = {s.name: s for s in track.ranks if page.t - s.since >= certain and s.pages >= FEWEST_PAGES}
    if not late:
        return 0.0, 0.0
    ranks = [rank for rank in list_ranks(page) if rank.name in late and rank.counts_steps and rank.work]
    held = [rank.gauges for rank in ranks if not may_have_left(late[rank.name], rank, page)]
    families = ("requests_waiting", "requests_waiting_capacity", "requests_running")
    waiting, capacity, running = (math.fsum(gauges.get(family, 0.0) for gauges in held) for family in families)
    return waiting, capacity + running


FIRST_TOKEN = "ttft_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """Queue of one page at `t` (unix seconds): waiting requests, and the totals of first tokens and of other ends."""

    t: float
    waiting: float
    served: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueTrack:
    """Pages back to the objective, oldest first, the requests that are `overdue` now, and those that were preempted.

    Preempted requests may wait again after their first token. `gone` of the overdue ones left since the page before.
    """

    pages: tuple[QueuePage, ...] = ()
    overdue: float = 0.0
    preempted: float = 0.0
    gone: float = 0.0


NO_QUEUE = OverdueTrack()


def step_overdue(track: OverdueTrack, before: Snapshot, page: Snapshot, objective_seconds: float) -> OverdueTrack:
    """Return the overdue requests after another page of the same process."""
    if not (page.gauges.get("requests_waiting") or track.overdue):
        return NO_QUEUE
    if FIRST_TOKEN not in page.histograms or FIRST_TOKEN not in before.histograms:
        return NO_QUEUE
    known, now = track.pages or (_queue_page(before),), _queue_page(page)
    old = [queue_page for queue_page in known if queue_page.t <= now.t - objective_seconds]
    preempted = track.preempted + page.counters.get("preemptions", 0.0) - before.counters.get("preemptions", 0.0)
    preempted = min(max(0.0, preempted), now.waiting)
    overdue = 0.0
    if old:
        first = old[-1]
        stayed = first.waiting - max(0.0, now.served - first.served) - max(0.0, now.left - first.left)
        overdue = max(0.0, min(now.waiting, stayed) - preempted)
    gone = max(0.0, track.overdue - overdue - max(0.0, now.served - known[-1].served))
    if not now.waiting:
        return OverdueTrack(gone=gone)
    pages = (*(old[-1:]), *(queue_page for queue_page in known if queue_page.t > now.t - objective_seconds), now)
    return OverdueTrack(pages=pages, overdue=overdue, preempted=preempted, gone=gone)


def _queue_page(page: Snapshot) -> QueuePage:
    first = page.histograms[FIRST_TOKEN].counts[-1]
    # SGLang observes the first tokens of streams only: others leave the queue when they run.
    begun = page.counters.get(FINISHED, 0.0) + page.gauges.get("requests_running", 0.0)
    streamed_only = page.engine == "sglang"
    served, waiting = max(first, begun) if streamed_only else first, page.gauges.get("requests_waiting", 0.0)
    # They may have left the queue without a first token.
    early = page.counters.get("requests_aborted", 0.0) + page.counters.get("requests_failed", 0.0)
    return QueuePage(t=page.t, waiting=waiting, served=served, left=early + max(0.0, count_left(page) or 0.0))
