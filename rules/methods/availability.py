"""Methods over single scrapes: KV cache cascade, targets and tiers that are down, stale telemetry, lasting unknowns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, exact_reading
from rules.replicas.cascade import STAGES
from rules.replicas.start_quantiles import quantiles_by_timing
from rules.replicas.starts import Timing
from rules.replicas.state import ReplicaState
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.wording import format_count
from rules.verdicts.context import RuleContext
from rules.verdicts.finding import RuleState
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

ONE_PAGE = "one page is no slope yet"

NO_SLOPE = {
    Gap.NOT_SCRAPED: "the two pages are too far apart for a slope of the KV cache",
    Gap.CONTRADICTORY: "more requests finished than the gauges allow",
    Gap.IMPOSSIBLE: "the engine tells numbers that cannot be",
}
"""Reasons why two pages give no slope."""

FAULTS = frozenset({Gap.NOT_SCRAPED, Gap.SCRAPE_FAILED, Gap.STALE, Gap.RESTARTED, Gap.IMPOSSIBLE})
"""Reasons that an operator can repair. The others are missing parts of plan, engine or traffic."""

NOT_PLANNED = Missing(gap=Gap.NOT_IN_PLAN)
"""Expectation of every rule here: plans say nothing of scrapes."""

ACT = "; act now, before users feel it"
"""Words for stage 2: the cascade builds there, and TTFT degrades only from stage 3 on (guide 7.4)."""

NAMED = 3
"""Maximum number of rules without a result that are named."""


def require_replica(case: RuleContext) -> ReplicaState:
    """Return the replica that a rule is evaluated for. Raise ValueError without one."""
    if case.replica is None:
        raise ValueError(f"{case.rule.name} is evaluated for a replica")
    return case.replica


def _verdict(
    case: RuleContext,
    status: Status,
    observed: float | Reading,
    sentence: str,
    certainty: Certainty = Certainty.CERTAIN,
    stage: int | None = None,
    details: Iterable[str] = (),
) -> Verdict:
    seen = observed if isinstance(observed, Reading) else exact_reading(observed, 1)
    return case.verdict(status, certainty, seen, NOT_PLANNED, sentence, details=details, stage=stage)


def judge_cascade(case: RuleContext) -> RuleResult:
    """Return the stage of a replica's KV cache cascade.

    Certain once a second scrape shows evictions or a queue, or users feel it: one scrape is one instant.
    """
    replica = require_replica(case)
    state, last = replica.cascade, replica.track.last
    if last is None or replica.track.misses:
        return case.unknown(Gap.SCRAPE_FAILED, "no page from the replica")
    if "kv_utilization_max" not in last.gauges:
        return case.unknown(Gap.NOT_EXPOSED, "the page has no KV cache utilisation")
    if not state.recent:
        return case.unknown(replica.slope_gap, NO_SLOPE.get(replica.slope_gap, ONE_PAGE))
    level = state.recent[-1].level
    if state.stage == 0:
        return _verdict(case, Status.OK, level, f"KV cache {level:.0%} full", stage=0)
    status = Status.CRITICAL if state.stage >= 3 else Status.WARNING
    text = f"KV cache cascade, stage {state.stage} ({STAGES[state.stage]}): {state.evidence}{ACT if state.stage == 2 else ''}"
    details = []
    if state.breach_at is not None and state.onset is not None and state.breach_at > state.onset:
        details.append(f"first seen {state.breach_at - state.onset:.0f} s before users felt it")
    return _verdict(case, status, level, text, certain_if(state.confirmed), state.stage, details)


def judge_target_down(case: RuleContext) -> RuleResult:
    """Find replicas whose last scrapes failed. A new replica of a served tier may still start."""
    replica, allowed = require_replica(case), case.limit("misses")
    misses, last = replica.track.misses, replica.track.last
    if last is None and (misses < allowed or (case.others_answer and _may_start(case, replica))):
        # Not "ok": after a restart of the agent that would end the finding of a target that is still down.
        text = f"{misses} scrapes without a usable page, and none before" if misses else "not scraped yet"
        return case.unknown(Gap.SCRAPE_FAILED, text)
    if replica.track.unscraped_seconds and not misses:
        return case.unknown(Gap.NOT_SCRAPED, explain_hole(replica))
    if misses < allowed:
        text = "The metrics page answers" if misses == 0 else f"{misses} scrapes without a usable page"
        silent = case.now - last.t if last is not None else 0.0
        # Failed scrapes are counted where they come at least once a minute.
        if misses and silent > allowed * MINUTE_SECONDS:
            return case.unknown(Gap.SCRAPE_FAILED, f"{text}, and none for {silent:.0f} s")
        return _verdict(case, Status.OK, float(misses), text)
    since = f" for {case.now - last.t:.0f} s" if last is not None else " ever"
    why = f": {_shorten_error(replica.error)}" if replica.error else ""
    text = f"No usable metrics page{since}; {misses} scrapes in a row failed{why}"
    return _verdict(case, Status.WARNING, float(misses), text, details=(replica.error,))


def _shorten_error(error: str) -> str:
    """Return the kind of a scrape error, without address and text of the client."""
    if "refused" in error.lower() or "Connect call failed" in error:
        return "connection refused"
    status = re.search(r"answered (\d{3})", error)
    return f"HTTP {status[1]}" if status is not None else error.partition(": ")[0]


def _may_start(case: RuleContext, replica: ReplicaState) -> bool:
    """Return whether a replica may still start: for the tier's measured start, else the planned one, else the limit.

    A start that was timed in part only makes it longer: what it omits is not known."""
    plan = case.context.plan
    planned = plan.cold_start_seconds if plan is not None else None
    known = {quantiles.timing: quantiles.p95_seconds for quantiles in quantiles_by_timing(case.starts)}
    seconds = known.get(Timing.POD)
    if seconds is None:
        seconds = max(planned if planned is not None else case.limit("start_seconds"), *known.values(), 0.0)
    return case.now - _silent_since(replica) < seconds


def judge_stale(case: RuleContext) -> RuleResult:
    """Find replicas whose page is served and does not change, or whose GPUs cannot be read."""
    replica = require_replica(case)
    seconds, last = replica.stale_seconds, replica.track.last
    if replica.gpu_problem:
        return _verdict(case, Status.WARNING, seconds, replica.gpu_problem)
    if last is None or replica.track.misses:
        return case.unknown(Gap.SCRAPE_FAILED, "no page from the replica")
    if replica.track.unscraped_seconds:
        return case.unknown(Gap.NOT_SCRAPED, explain_hole(replica))
    if STEP_FAMILY not in last.counters:
        return case.unknown(Gap.NOT_EXPOSED, "the page does not count the engine's steps")
    if seconds >= case.limit("seconds"):
        text = f"The engine has not stepped for {seconds:.0f} s; its page claims {_describe_claim(replica)}"
        return _verdict(case, Status.WARNING, seconds, text)
    return _verdict(case, Status.OK, seconds, "The page moves with the engine")


def explain_hole(replica: ReplicaState) -> str:
    return f"the page answers now, but was not scraped for {replica.track.unscraped_seconds:.0f} s before"


def _describe_claim(replica: ReplicaState) -> str:
    gauges = replica.track.last.gauges if replica.track.last else {}
    running, waiting = gauges.get("requests_running", 0.0), gauges.get("requests_waiting", 0.0)
    if running or waiting:
        return f"{running:.0f} running and {waiting:.0f} waiting requests"
    return f"a KV cache {gauges.get('kv_utilization', 0.0):.0%} full"


def judge_tier_down(case: RuleContext) -> RuleResult:
    """Find tiers without a usable page in the last scrapes of any replica. Critical if it lasts longer than a restart."""
    replicas, allowed, now = case.replicas, case.limit("misses"), case.now
    up = [one for one in replicas if one.track.last is not None and one.track.misses < allowed]
    down = [one for one in replicas if one.track.misses >= allowed]
    seen = exact_reading(len(up), len(replicas))
    unscraped = min((0.0 if one.track.misses else one.track.unscraped_seconds for one in up), default=0.0)
    if unscraped:
        text = f"no replica was scraped for {unscraped:.0f} s before the last scrape"
        return case.unknown(Gap.NOT_SCRAPED, text)
    silent = min((now - _silent_since(one) for one in up), default=0.0)
    if silent > allowed * MINUTE_SECONDS and all(one.track.misses for one in up):
        text = f"no replica answered the last scrape; the last page is {silent:.0f} s old"
        return case.unknown(Gap.SCRAPE_FAILED, text)
    if up:
        return _verdict(case, Status.OK, seen, f"{len(up)} of {len(replicas)} replicas answer")
    if len(down) < len(replicas) or not replicas:
        text = f"{len(replicas) - len(down)} of {len(replicas)} replicas have not been scraped often enough yet"
        return case.unknown(Gap.SCRAPE_FAILED, text)
    silent = min(now - _silent_since(one) for one in down)
    status = Status.CRITICAL if silent >= case.limit("seconds") else Status.WARNING
    never = "" if any(one.track.last is not None for one in down) else ", and never before"
    why = tuple(f"{one.name}: {one.error}" for one in down if one.error)[:1]
    fewest = min(one.track.misses for one in down)
    none = f"None of the tier's {len(down)} replicas" if len(down) > 1 else "The tier's only replica has not"
    text = f"{none} answered for {silent:.0f} s{never}; {fewest} scrapes in a row failed"
    return _verdict(case, status, seen, text, details=why)


def _silent_since(replica: ReplicaState) -> float:
    """Return the time of the last usable page, else of the first failed scrape (unix seconds)."""
    last = replica.track.last
    return last.t if last is not None else replica.track.silent_since or 0.0


def judge_unknown_too_long(case: RuleContext) -> RuleResult:
    """Find rules that had a result and for long have none, for a reason that an operator can repair."""
    silent = sorted(
        (
            (case.now - _silent_from(one, one.evaluated_at), one.result)
            for one in case.states
            if isinstance(one.result, Unknown) and one.result.reason in FAULTS and one.evaluated_at is not None
        ),
        key=lambda pair: (-pair[0], pair[1].rule, str(pair[1].subject)),
    )
    longest = silent[0][0] if silent else 0.0
    observed = exact_reading(longest, len(silent))
    late = [result for seconds, result in silent if seconds >= case.limit("seconds")]
    if not late:
        text = "Every rule of the tier has a result, or had one a moment ago"
        return _verdict(case, Status.OK, observed, text)
    named = tuple(f"{result.rule} of {result.subject}: {_format_reason(result)}" for result in late[:NAMED])
    more = (f"and {len(late) - NAMED} more",) if len(late) > NAMED else ()
    first = f"{late[0].rule} of {late[0].subject} for longest"
    text = f"{format_count(len(late), 'rule')} without a result for up to {longest / 3600:.1f} h; {first}"
    return _verdict(case, Status.WARNING, observed, text, details=(*named, *more))


def _silent_from(one: RuleState, judged_at: float) -> float:
    """Return the time from which a rule has no result. A pause of the agent itself does not count."""
    if one.unknown is not None and one.unknown.reason is Gap.NOT_SCRAPED:
        return one.unknown.started_at
    return judged_at


def _format_reason(result: Unknown) -> str:
    words = result.reason.value.replace("_", " ")
    return f"{words} ({result.text})" if result.text else words
