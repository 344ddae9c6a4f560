"""Engines that no longer step: requests are there, and no counter of work moves (vLLM issue 29928 for the exception)."""

from __future__ import annotations

from collections.abc import Sequence

from rules.confidence import Certainty
from rules.methods.availability import explain_hole, judge_stale, require_replica
from rules.methods.evidence import certain_if, exact_reading, join_names, range_reading
from rules.plan.load_bins import pool_of
from rules.plan.schema import TierPlan
from rules.replicas.stalls import FEWEST_PAGES, START_SECONDS, list_ranks, may_have_left
from rules.replicas.state import ReplicaState
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import RankPage, Snapshot
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, Status, Verdict

MOVES = "The engine works, or has no requests"


def judge_stalled(case: RuleContext) -> RuleResult:
    """Find engines and ranks that hold requests and do no work. Critical if no replica of the tier answers anybody.

    Certain after the longest time that a step may take, over at least FEWEST_PAGES good pages.
    """
    replica = require_replica(case)
    last = replica.track.last
    if last is None or replica.track.misses:
        return case.unknown(Gap.SCRAPE_FAILED, "no page from the replica")
    if replica.track.unscraped_seconds and not replica.stalls.ranks:
        return case.unknown(Gap.NOT_SCRAPED, explain_hole(replica))
    ranks = {rank.name: rank for rank in list_ranks(last)}
    if not any(name in rank.gauges for rank in ranks.values() for name in IN_SYSTEM):
        return case.unknown(Gap.NOT_EXPOSED, "the page does not count the requests in the engine")
    stalls = [(stall, ranks[stall.name]) for stall in replica.stalls.ranks]
    told = [(stall, rank) for stall, rank in stalls if rank.counts_steps or not rank.gauges.get("requests_running")]
    if stalls and not told:
        return case.unknown(Gap.NOT_EXPOSED, "the page counts neither the engine's steps nor every token")
    if told and (excuse := _excuse_still(case, [rank for _, rank in told], replica, last)):
        return case.unknown(Gap.NO_TRAFFIC, excuse)
    ready = [(stall, rank) for stall, rank in told if not _excuse_still(case, [rank], replica, last)]
    allowed, certain = _allowed_seconds(case, replica)
    late = [(stall, rank) for stall, rank in ready if last.t - stall.since >= allowed]
    seconds = max((last.t - stall.since for stall, _ in late), default=0.0)
    expected = range_reading(0.0, certain, 1)
    if not late:
        return case.verdict(Status.OK, Certainty.CERTAIN, exact_reading(0.0, 1), expected, MOVES)
    sure = [
        last.t - stall.since >= certain and stall.pages >= FEWEST_PAGES and not may_have_left(stall, rank, last)
        for stall, rank in late
    ]
    status = Status.WARNING if case.others_serve or len(late) < len(ranks) else Status.CRITICAL
    running, waiting = (sum(rank.gauges.get(name, 0.0) for _, rank in late) for name in IN_SYSTEM)
    names = join_names([stall.name for stall, _ in late]) if len(ranks) > 1 else ""
    who = f"Rank {names} of {len(ranks)} ranks has" if names else "The engine has"
    sentence = (
        f"{who} not stepped for {seconds:.0f} s; it holds {running:.0f} running and {waiting:.0f} waiting requests"
    )
    left = seconds >= certain and not any(sure)
    details = (
        f"certain after {certain:.0f} s: longer than any step of this engine takes",
        "as many clients have left since: the engine may be idle and show old gauges" if left else "",
        "no replica of the tier answers anybody" if status is Status.CRITICAL else "",
    )
    return case.verdict(status, certain_if(any(sure)), exact_reading(seconds, 1), expected, sentence, details=details)


def judge_stale_page(case: RuleContext) -> RuleResult:
    """Find pages that do not change, or unread GPUs. An engine that waits for KV or loads keeps its page rightly."""
    result, replica = judge_stale(case), require_replica(case)
    last = replica.track.last
    if last is None or replica.gpu_problem or not isinstance(result, Verdict) or result.status is Status.OK:
        return result
    excuse = _excuse_still(case, list_ranks(last), replica, last)
    return case.unknown(Gap.NO_TRAFFIC, excuse) if excuse else result


def _excuse_still(case: RuleContext, ranks: Sequence[RankPage], replica: ReplicaState, page: Snapshot) -> str:
    """Return why none of these ranks needs to work, or ""."""
    if all(_waits_for_kv(case, rank) for rank in ranks):
        return "a decode pool waits for the KV of its prefill pool"
    begins = {stall.name: stall.since for stall in replica.stalls.ranks}
    if all(_waits_for_kv(case, rank) or _may_load(case, begins.get(rank.name, page.t), rank, page) for rank in ranks):
        return "no request was served yet: weights may load, graphs may be captured"
    return ""


def _allowed_seconds(case: RuleContext, replica: ReplicaState) -> tuple[float, float]:
    """Return the time in seconds without work that is likely a stall, and the time that surely is."""
    prefill, step = planned_prefill_seconds(case.context.plan), replica.stalls.longest_step
    likely = max(case.limit("likely_seconds"), prefill, step)
    return likely, max(case.limit("seconds"), prefill, case.limit("steps") * step)


def planned_prefill_seconds(plan: TierPlan | None) -> float:
    """Return the planned seconds to compute the longest prompt, 0 if the plan does not tell."""
    if plan is None or plan.workload is None:
        return 0.0
    limit = plan.guardrails.max_prompt_tokens if plan.guardrails is not None else None
    longest = limit or (plan.workload.prompt_tokens.p99 if plan.workload.prompt_tokens is not None else None)
    if longest is None:
        return 0.0
    if plan.disaggregation is not None:
        return longest / plan.disaggregation.prefill_tokens_per_second
    points = plan.curve.points if plan.curve is not None else ()
    alone = min(points, key=lambda point: point.completed_rps, default=None)
    if alone is None or not alone.ttft_p50_seconds or not alone.prompt_tokens_mean:
        return 0.0
    return longest / alone.prompt_tokens_mean * alone.ttft_p50_seconds


def _waits_for_kv(case: RuleContext, rank: RankPage) -> bool:
    """Return whether a rank of a decode pool runs nothing, and no request waits for its own room."""
    if pool_of(case.context, case.subject.replica) != "decode" or rank.gauges.get("requests_running"):
        return False
    return not rank.gauges.get("requests_waiting_capacity")


def _may_load(case: RuleContext, since: float, rank: RankPage, page: Snapshot) -> bool:
    """Return whether a rank that never worked is within its planned cold start."""
    plan = case.context.plan
    planned = plan.cold_start_seconds if plan is not None else None
    limits = case.context.limits.get("EngineStalled", {})
    begin = since if page.started_at is None else min(since, page.started_at)
    return not rank.work and page.t - begin < (planned or limits.get("start_seconds", START_SECONDS))
