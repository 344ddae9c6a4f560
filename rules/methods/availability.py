"""Methods over single scrapes: KV cache cascade, outages, stalled engines, lasting unknowns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rules.confidence import Certainty
from rules.methods.evidence import exact_reading, join_names, range_reading
from rules.plan.load_bins import pool_of
from rules.plan.schema import TierPlan
from rules.replicas.cascade import STAGES
from rules.replicas.stalls import FEWEST_PAGES, START_SECONDS, list_ranks, may_have_left
from rules.replicas.starts import Timing, quantiles_by_timing
from rules.replicas.state import ReplicaState
from rules.telemetry.gauges import IN_SYSTEM, STEP_FAMILY
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import RankPage, Snapshot
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.wording import format_count, format_duration
from rules.verdicts.context import RuleContext, read_plan_value
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

FAULTS = frozenset({Gap.NOT_SCRAPED, Gap.SCRAPE_FAILED, Gap.STALE, Gap.RESTARTED, Gap.IMPOSSIBLE})
"""Reasons that an operator can repair. The others are missing parts of plan, engine or traffic."""

NOT_PLANNED = Missing(gap=Gap.NOT_IN_PLAN)
"""Expectation of every rule here: plans say nothing of scrapes."""

NAMED = 3
"""Maximum number of rules without a result that are named."""


def require_replica(context: RuleContext) -> ReplicaState:
    """Return the replica that a rule is evaluated for. Raise ValueError without one."""
    if context.replica is None:
        raise ValueError(f"{context.rule.name} is evaluated for a replica")
    return context.replica


def _verdict(
    context: RuleContext, status: Status, observed: float | Reading, sentence: str, details: Iterable[str] = ()
) -> Verdict:
    seen = observed if isinstance(observed, Reading) else exact_reading(observed, 1)
    return context.verdict(status, Certainty.CERTAIN, seen, NOT_PLANNED, sentence, details=details)


def judge_cascade(context: RuleContext) -> RuleResult:
    """Return the stage of a replica's cascade. The second scrape makes it certain."""
    replica = require_replica(context)
    state, last = replica.cascade, replica.track.last
    if last is None or replica.track.misses:
        return context.unknown(Gap.SCRAPE_FAILED, "no page from the replica")
    if "kv_utilization_max" not in last.gauges:
        return context.unknown(Gap.NOT_EXPOSED, "the page has no KV cache utilisation")
    if not state.recent:
        return context.unknown(replica.slope_gap, "no two pages give a slope of the KV cache yet")
    level, status, details = state.recent[-1].level, Status.OK, ""
    sentence, certainty = f"KV cache {level:.0%} full", Certainty.CERTAIN
    if state.stage > 0:
        status, certainty = Status.CRITICAL if state.stage >= 3 else Status.WARNING, Certainty.of(state.confirmed)
        # TTFT degrades only from stage 3 on (guide 7.4).
        act = "; act now, before users feel it" if state.stage == 2 else ""
        sentence = f"KV cache cascade, stage {state.stage} ({STAGES[state.stage]}): {state.evidence}{act}"
        if state.breach_at is not None and state.onset is not None and state.breach_at > state.onset:
            details = f"first seen {state.breach_at - state.onset:.0f} s before users felt it"
    seen = exact_reading(level, 1)
    return context.verdict(status, certainty, seen, NOT_PLANNED, sentence, details=(details,), stage=state.stage)


def judge_target_down(context: RuleContext) -> RuleResult:
    """Find replicas whose last scrapes failed. A new replica of a served tier may still start."""
    replica, allowed = require_replica(context), context.limit("misses")
    misses, last = replica.track.misses, replica.track.last
    failed = f"{format_count(misses, 'scrape')} without a usable page"
    if last is None and (misses < allowed or (context.others_answer and _may_start(context, replica))):
        # Not "ok": after our own restart that would end the finding of a target still down.
        return context.unknown(Gap.SCRAPE_FAILED, f"{failed}, and none before" if misses else "not scraped yet")
    if replica.track.unscraped_seconds and not misses:
        return context.unknown(Gap.NOT_SCRAPED, explain_hole(replica))
    if misses < allowed:
        text = failed if misses else "The metrics page answers"
        silent = context.now - last.t if last is not None else 0.0
        # Failed scrapes are counted where they come at least once a minute.
        if misses and silent > allowed * MINUTE_SECONDS:
            return context.unknown(Gap.SCRAPE_FAILED, f"{text}, and none for {format_duration(silent)}")
        return _verdict(context, Status.OK, float(misses), text)
    since = f" for {format_duration(context.now - last.t)}" if last is not None else " ever"
    kind, answer = replica.error.partition(": ")[0], re.search(r"answered (\d{3})", replica.error)
    if "refused" in replica.error.lower() or "Connect call failed" in replica.error:
        kind = "connection refused"
    elif answer is not None:
        kind = f"HTTP {answer[1]}"
    elif kind == "auth":
        kind = "sizewatch's own credentials cannot be used"
    text = f"No usable metrics page{since}; {misses} scrapes in a row failed{f': {kind}' if kind else ''}"
    return _verdict(context, Status.WARNING, float(misses), text, (replica.error,))


def _may_start(context: RuleContext, replica: ReplicaState) -> bool:
    """Return whether a replica may still start, by the measured, else the planned time."""
    planned = read_plan_value(context.tier, "cold_start_seconds")
    known = {quantiles.timing: quantiles.p95_seconds for quantiles in quantiles_by_timing(context.starts)}
    seconds = known.get(Timing.POD)
    if seconds is None:
        # A start that was timed in part only makes it longer.
        seconds = max(context.limit("start_seconds") if planned is None else planned, *known.values(), 0.0)
    return context.now - _silent_since(replica) < seconds


def judge_stale_page(context: RuleContext) -> RuleResult:
    """Find replicas whose page does not change without an excuse, or whose GPUs cannot be read."""
    replica = require_replica(context)
    seconds, last = replica.stale_seconds, replica.track.last
    if replica.gpu_problem:
        verdict = _verdict(context, Status.WARNING, seconds, replica.gpu_problem)
        return replace(verdict, actions=tuple(action for action in verdict.actions if "GPU" in action))
    if last is None or replica.track.misses:
        return context.unknown(Gap.SCRAPE_FAILED, "no page from the replica")
    if replica.track.unscraped_seconds:
        return context.unknown(Gap.NOT_SCRAPED, explain_hole(replica))
    if STEP_FAMILY not in last.counters:
        return context.unknown(Gap.NOT_EXPOSED, "the page does not count the engine's steps")
    if seconds < context.limit("seconds"):
        return _verdict(context, Status.OK, seconds, "The page moves with the engine")
    if excuse := _excuse_still(context, list_ranks(last), replica, last):
        return context.unknown(Gap.NO_TRAFFIC, excuse)
    running, waiting = (last.gauges.get(name, 0.0) for name in IN_SYSTEM)
    claim = f"{running:.0f} running and {waiting:.0f} waiting requests"
    if not running and not waiting:
        claim = f"a KV cache {last.gauges.get('kv_utilization', 0.0):.0%} full"
    text = f"The engine has not stepped for {format_duration(seconds)}; its page claims {claim}"
    return _verdict(context, Status.WARNING, seconds, text)


def explain_hole(replica: ReplicaState) -> str:
    return f"the page answers now, but was not scraped for {format_duration(replica.track.unscraped_seconds)} before"


def judge_tier_down(context: RuleContext) -> RuleResult:
    """Find tiers without a usable page of any replica. Critical if it lasts longer than a restart."""
    replicas, allowed, now = context.replicas, context.limit("misses"), context.now
    up = [replica for replica in replicas if replica.track.last is not None and replica.track.misses < allowed]
    down = [replica for replica in replicas if replica.track.misses >= allowed]
    seen = exact_reading(len(up), len(replicas))
    unscraped = min((0.0 if replica.track.misses else replica.track.unscraped_seconds for replica in up), default=0.0)
    if unscraped:
        return context.unknown(Gap.NOT_SCRAPED, f"no replica was scraped for {format_duration(unscraped)} until now")
    silent = min((now - _silent_since(replica) for replica in up), default=0.0)
    if silent > allowed * MINUTE_SECONDS and all(replica.track.misses for replica in up):
        text = f"no replica answered the last scrape; the last page is {format_duration(silent)} old"
        return context.unknown(Gap.SCRAPE_FAILED, text)
    if up:
        return _verdict(context, Status.OK, seen, f"{len(up)} of {len(replicas)} replicas answer")
    if len(down) < len(replicas) or not replicas:
        text = f"{len(replicas) - len(down)} of {len(replicas)} replicas have not been scraped often enough yet"
        return context.unknown(Gap.SCRAPE_FAILED, text)
    # A replica that refuses us, or that is not asked, may serve.
    blind = [replica for replica in down if replica.error.startswith("auth: ")]
    if blind:
        reason = blind[0].error.removeprefix("auth: ")
        text = f"sizewatch's credentials for {format_count(len(blind), 'replica')} do not work: {reason}"
        return context.unknown(Gap.SCRAPE_FAILED, text)
    silent = min(now - _silent_since(replica) for replica in down)
    status = Status.CRITICAL if silent >= context.limit("seconds") else Status.WARNING
    never = "" if any(replica.track.last is not None for replica in down) else ", and never before"
    why = [f"{replica.name}: {replica.error}" for replica in down if replica.error][:1]
    fewest = min(replica.track.misses for replica in down)
    none = f"None of the tier's {len(down)} replicas" if len(down) > 1 else "The tier's only replica has not"
    text = f"{none} answered for {format_duration(silent)}{never}; {fewest} scrapes in a row failed"
    return _verdict(context, status, seen, text, why)


def _silent_since(replica: ReplicaState) -> float:
    """Return the time of the last usable page, else of the first failed scrape (unix seconds)."""
    last = replica.track.last
    return last.t if last is not None else replica.track.silent_since or 0.0


def judge_unknown_too_long(context: RuleContext) -> RuleResult:
    """Find rules that for long have no result, for a reason that an operator can repair."""
    silent = []
    for state in context.states:
        result, pause = state.result, state.unknown
        if not isinstance(result, Unknown) or result.reason not in FAULTS or state.evaluated_at is None:
            continue
        since = pause.started_at if pause is not None and pause.reason is Gap.NOT_SCRAPED else state.evaluated_at
        silent.append((context.now - since, result))
    silent.sort(key=lambda pair: (-pair[0], pair[1].rule, str(pair[1].subject)))
    longest = silent[0][0] if silent else 0.0
    observed = exact_reading(longest, len(silent))
    late = [result for seconds, result in silent if seconds >= context.limit("seconds")]
    if not late:
        return _verdict(context, Status.OK, observed, "No rule lost its result for long by a fault of scrapes")
    details = []
    for result in late[:NAMED]:
        text = f" ({result.text})" if result.text else ""
        details.append(f"{result.rule} of {result.subject}: {result.reason.value.replace('_', ' ')}{text}")
    details += [f"and {len(late) - NAMED} more"] if len(late) > NAMED else []
    first = f"{late[0].rule} of {late[0].subject} for longest"
    text = f"{format_count(len(late), 'rule')} without a result for up to {longest / 3600:.1f} h; {first}"
    return _verdict(context, Status.WARNING, observed, text, details)


def judge_stalled(context: RuleContext) -> RuleResult:
    """Find engines and ranks that hold requests and do no work (vLLM issue 29928 for the exception)."""
    replica = require_replica(context)
    last = replica.track.last
    if last is None or replica.track.misses:
        return context.unknown(Gap.SCRAPE_FAILED, "no page from the replica")
    if replica.track.unscraped_seconds and not replica.stalls.ranks:
        return context.unknown(Gap.NOT_SCRAPED, explain_hole(replica))
    pages = [rank.gauges for rank in last.ranks] or [last.gauges]
    if not any(name in gauges for gauges in pages for name in IN_SYSTEM):
        return context.unknown(Gap.NOT_EXPOSED, "the page does not count the requests in the engine")
    # Hot path: the work of a page is a sum of all its counters, and most replicas have no stall.
    ranks = {rank.name: rank for rank in list_ranks(last)} if replica.stalls.ranks else {}
    stalls = [(stall, ranks[stall.name]) for stall in replica.stalls.ranks]
    rows = [(stall, rank) for stall, rank in stalls if rank.counts_steps or not rank.gauges.get("requests_running")]
    if stalls and not rows:
        return context.unknown(Gap.NOT_EXPOSED, "the page counts neither the engine's steps nor every token")
    if rows and (excuse := _excuse_still(context, [rank for _, rank in rows], replica, last)):
        return context.unknown(Gap.NO_TRAFFIC, excuse)
    ready = [(stall, rank) for stall, rank in rows if not _excuse_still(context, [rank], replica, last)]
    # Likely a stall, and certainly: longer than any step takes.
    prefill, step = planned_prefill_seconds(context.tier.plan), replica.stalls.longest_step
    allowed = max(context.limit("likely_seconds"), prefill, step)
    certain = max(context.limit("seconds"), prefill, context.limit("steps") * step)
    late = [(stall, rank) for stall, rank in ready if last.t - stall.since >= allowed]
    seconds = max((last.t - stall.since for stall, _ in late), default=0.0)
    expected = range_reading(0.0, certain, 1)
    if not late:
        text = "The engine works, or has no requests"
        return context.verdict(Status.OK, Certainty.CERTAIN, exact_reading(0.0, 1), expected, text)
    sure = [
        last.t - stall.since >= certain and stall.pages >= FEWEST_PAGES and not may_have_left(stall, rank, last)
        for stall, rank in late
    ]
    status = Status.WARNING if context.others_serve or len(late) < len(ranks) else Status.CRITICAL
    running, waiting = (sum(rank.gauges.get(name, 0.0) for _, rank in late) for name in IN_SYSTEM)
    names = join_names([stall.name for stall, _ in late]) if len(ranks) > 1 else ""
    who = f"Rank {names} of {len(ranks)} ranks has" if names else "The engine has"
    held = f"{running:.0f} running and {waiting:.0f} waiting requests"
    sentence = f"{who} not stepped for {format_duration(seconds)}; it holds {held}"
    left = seconds >= certain and not any(sure)
    details = (
        f"certain after {certain:.0f} s: longer than any step of this engine takes",
        "as many clients have left since: the engine may be idle and show old gauges" if left else "",
        "no replica of the tier answers anybody" if status is Status.CRITICAL else "",
    )
    observed, certainty = exact_reading(seconds, 1), Certainty.of(any(sure))
    return context.verdict(status, certainty, observed, expected, sentence, details=details)


def _excuse_still(context: RuleContext, ranks: Sequence[RankPage], replica: ReplicaState, page: Snapshot) -> str:
    """Return why no rank needs to work, or "": a decode pool waits, or weights load."""
    is_decode = pool_of(context.tier, context.subject.replica) == "decode"
    working = []
    for rank in ranks:
        runs = rank.gauges.get("requests_running") or rank.gauges.get("requests_waiting_capacity")
        working += [] if is_decode and not runs else [rank]
    if not working:
        return "a decode pool waits for the KV of its prefill pool"
    # A rank that never worked may be within its planned cold start.
    start_seconds = context.tier.limits.get("EngineStalled", {}).get("start_seconds", START_SECONDS)
    seconds = read_plan_value(context.tier, "cold_start_seconds") or start_seconds
    begins = {stall.name: stall.since for stall in replica.stalls.ranks}
    for rank in working:
        begin = min(begins.get(rank.name, page.t), math.inf if page.started_at is None else page.started_at)
        if rank.work or page.t - begin >= seconds:
            return ""
    return "no request was served yet: weights may load, graphs may be captured"


def planned_prefill_seconds(plan: TierPlan | None) -> float:
    """Return the planned seconds to compute the longest prompt, 0 if the plan does not tell."""
    workload = plan.workload if plan is not None else None
    if plan is None or workload is None:
        return 0.0
    limit = plan.guardrails.max_prompt_tokens if plan.guardrails is not None else None
    longest = limit or (workload.prompt_tokens.p99 if workload.prompt_tokens is not None else None) or 0.0
    if plan.disaggregation is not None:
        return longest / plan.disaggregation.prefill_tokens_per_second
    points = plan.curve.points if plan.curve is not None else ()
    alone = min(points, key=lambda point: point.completed_rps, default=None)
    if alone is None or not alone.ttft_p50_seconds or not alone.prompt_tokens_mean:
        return 0.0
    return longest / alone.prompt_tokens_mean * alone.ttft_p50_seconds
