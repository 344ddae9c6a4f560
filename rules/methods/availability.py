"""What the rules of single scrapes say of one replica: the KV cascade, a target that is down, telemetry that is stale.

Owns these answers and their sentences. The state they read is `rules.replicas.state`; thresholds stand in the catalogue.

What is said of a tier as a whole at every scrape: whether anything of it answers, and what can no longer be judged.

Owns these two answers, pure functions of the replicas' records and of where every rule stands. What single replicas say
is `rules.methods.availability`; thresholds stand in the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.confidence import Certainty
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.cascade import STAGES, CascadeState
from rules.replicas.state import ReplicaState
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.finding import RuleState
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import Action, RuleResult, Status, Subject, Unknown, Verdict

ONE_PAGE = "one page is no slope yet"

NO_SLOPE = {
    Gap.NOT_SCRAPED: "the two pages are too far apart for a slope of the KV cache",
    Gap.CONTRADICTORY: "more requests finished than the gauges allow",
}
"""Why two pages make no slope, where it is not the want of a second one."""


def evaluate_replica_rules(
    replica: ReplicaState, view: TierContext, now: float, recent: Sequence[BinnedWindow] = ()
) -> tuple[RuleResult, ...]:
    """What they say at `now`; `recent` are the replica's last minutes, to explain a cascade with."""
    return _cascade(replica, view, now, recent), _down(replica, view, now), _stale(replica, view, now)


def _unknown(rule: Rule, replica: ReplicaState, now: float, reason: Gap, text: str) -> Unknown:
    return Unknown(t=now, rule=rule.name, subject=_subject(replica), reason=reason, text=text)


def _subject(replica: ReplicaState) -> Subject:
    return Subject(tier=replica.tier, replica=replica.name)


def _replica_verdict(
    rule: Rule,
    replica: ReplicaState,
    now: float,
    status: Status,
    observed: float,
    sentence: str,
    certainty: Certainty = Certainty.CERTAIN,
    stage: int | None = None,
) -> Verdict:
    return Verdict(
        t=now,
        rule=rule.name,
        subject=_subject(replica),
        status=status,
        certainty=certainty,
        observed=Reading(value=observed, low=observed, high=observed, n=1),
        expected=Missing(gap=Gap.NOT_IN_PLAN),
        unit=rule.unit,
        sentence=sentence,
        stage=stage,
        actions=tuple(Action(text=a, runbook=rule.name) for a in rule.actions) if status is not Status.OK else (),
    )


def _cascade(replica: ReplicaState, view: TierContext, now: float, recent: Sequence[BinnedWindow]) -> RuleResult:
    """Certain once a second scrape shows evictions or a queue, or users feel it: one scrape is one instant."""
    rule, state, last = BY_NAME["KvCacheCascade"], replica.cascade, replica.track.last
    if last is None or replica.track.misses:
        return _unknown(rule, replica, now, Gap.SCRAPE_FAILED, "no page from the replica")
    if "kv_utilization_max" not in last.gauges:
        return _unknown(rule, replica, now, Gap.NOT_EXPOSED, "the page has no KV cache utilisation")
    if not state.recent:
        return _unknown(rule, replica, now, replica.unslopable, NO_SLOPE.get(replica.unslopable, ONE_PAGE))
    level = state.recent[-1].level
    if state.stage == 0:
        return _replica_verdict(rule, replica, now, Status.OK, level, f"KV cache {level:.0%} full", stage=0)
    status = Status.CRITICAL if state.stage >= 3 else Status.WARNING
    certainty = Certainty.CERTAIN if state.confirmed else Certainty.LIKELY
    found = _replica_verdict(rule, replica, now, status, level, _cascade_sentence(state), certainty, state.stage)
    return explain.add_causes(found, view, recent)


def _cascade_sentence(state: CascadeState) -> str:
    text = f"KV cache cascade, stage {state.stage} ({STAGES[state.stage]}): {state.evidence}"
    if state.breach_at is not None and state.onset is not None and state.breach_at > state.onset:
        text += f"; first seen {state.breach_at - state.onset:.0f} s before users felt it"
    return text


def _down(replica: ReplicaState, view: TierContext, now: float) -> RuleResult:
    rule, misses, last = BY_NAME["TargetDown"], replica.track.misses, replica.track.last
    if last is None and misses < rule.limit("misses", view.limits):
        # Not "ok": after a restart of the agent that would end the episode of a target that is still down.
        text = f"{misses} scrapes without a usable page, and none before" if misses else "not scraped yet"
        return _unknown(rule, replica, now, Gap.SCRAPE_FAILED, text)
    if replica.track.unscraped_seconds and not misses:
        return _unknown(rule, replica, now, Gap.NOT_SCRAPED, _unasked(replica))
    if misses < rule.limit("misses", view.limits):
        text = "The metrics page answers" if misses == 0 else f"{misses} scrapes without a usable page"
        silent = now - last.t if last is not None else 0.0
        # Failed scrapes are counted where they come at least once a minute.
        if misses and silent > rule.limit("misses", view.limits) * MINUTE_SECONDS:
            return _unknown(rule, replica, now, Gap.SCRAPE_FAILED, f"{text}, and none for {silent:.0f} s")
        return _replica_verdict(rule, replica, now, Status.OK, float(misses), text)
    since = f" ({now - last.t:.0f} s)" if last is not None else ", and none before"
    why = f": {replica.trouble}" if replica.trouble else ""
    text = f"No usable metrics page in the last {misses} scrapes{since}{why}"
    return _replica_verdict(rule, replica, now, Status.WARNING, float(misses), text)


def _stale(replica: ReplicaState, view: TierContext, now: float) -> RuleResult:
    rule, seconds, last = BY_NAME["TelemetryStale"], replica.stale_seconds, replica.track.last
    if replica.gpu_problem:
        return _replica_verdict(rule, replica, now, Status.WARNING, seconds, replica.gpu_problem)
    if last is None or replica.track.misses:
        return _unknown(rule, replica, now, Gap.SCRAPE_FAILED, "no page from the replica")
    if replica.track.unscraped_seconds:
        return _unknown(rule, replica, now, Gap.NOT_SCRAPED, _unasked(replica))
    if STEP_FAMILY not in last.counters:
        return _unknown(rule, replica, now, Gap.NOT_EXPOSED, "the page does not count the engine's steps")
    if seconds >= rule.limit("seconds", view.limits):
        text = f"The engine has not stepped for {seconds:.0f} s, yet its page claims {_claimed(replica)}"
        return _replica_verdict(rule, replica, now, Status.WARNING, seconds, text)
    return _replica_verdict(rule, replica, now, Status.OK, seconds, "The page moves with the engine")


def _unasked(replica: ReplicaState) -> str:
    """After a silence that is not bridged: what the target did in it, nobody knows."""
    return f"the page answers now, but was not scraped for {replica.track.unscraped_seconds:.0f} s before"


def _claimed(replica: ReplicaState) -> str:
    gauges = replica.track.last.gauges if replica.track.last else {}
    running, waiting = gauges.get("requests_running", 0.0), gauges.get("requests_waiting", 0.0)
    if running or waiting:
        return f"{running:.0f} running and {waiting:.0f} waiting requests"
    return f"a KV cache {gauges.get('kv_utilization', 0.0):.0%} full"


FAULTS = frozenset({Gap.NOT_SCRAPED, Gap.SCRAPE_FAILED, Gap.STALE, Gap.RESTARTED})
"""Reasons that somebody can repair; the others are what the plan, the engine or the traffic do not have."""

NAMED = 3
"""So many of the rules that cannot judge are named in a sentence."""


def evaluate_tier_availability(
    replicas: Sequence[ReplicaState], standings: Iterable[RuleState], view: TierContext, now: float
) -> tuple[RuleResult, ...]:
    """What they say at `now` of the tier whose replicas and standings (its replicas' too) these are."""
    return tier_down(replicas, view, now), unknown_too_long(standings, view, now)


def tier_down(replicas: Sequence[ReplicaState], view: TierContext, now: float) -> RuleResult:
    """A warning when no replica gave a usable page in its last scrapes, whether or not one ever did; critical once that
    has lasted longer than a restart does."""
    rule = BY_NAME["TierDown"]
    allowed = rule.limit("misses", view.limits)
    up = [one for one in replicas if one.track.last is not None and one.track.misses < allowed]
    down = [one for one in replicas if one.track.misses >= allowed]
    seen = Reading(value=len(up), low=len(up), high=len(up), n=len(replicas))
    unscraped = min((0.0 if one.track.misses else one.track.unscraped_seconds for one in up), default=0.0)
    if unscraped:
        text = f"no replica was scraped for {unscraped:.0f} s before the last scrape"
        return Unknown(t=now, rule=rule.name, subject=Subject(tier=view.tier), reason=Gap.NOT_SCRAPED, text=text)
    silent = min((now - _silent_since(one) for one in up), default=0.0)
    if silent > allowed * MINUTE_SECONDS and all(one.track.misses for one in up):
        text = f"no replica answered the last scrape; the last page is {silent:.0f} s old"
        return Unknown(t=now, rule=rule.name, subject=Subject(tier=view.tier), reason=Gap.SCRAPE_FAILED, text=text)
    if up:
        return _tier_verdict(rule, view, now, Status.OK, seen, f"{len(up)} of {len(replicas)} replicas answer")
    if len(down) < len(replicas) or not replicas:
        text = f"{len(replicas) - len(down)} of {len(replicas)} replicas have not been scraped often enough yet"
        return Unknown(t=now, rule=rule.name, subject=Subject(tier=view.tier), reason=Gap.SCRAPE_FAILED, text=text)
    silent = min(now - _silent_since(one) for one in down)
    status = Status.CRITICAL if silent >= rule.limit("seconds", view.limits) else Status.WARNING
    return _tier_verdict(rule, view, now, status, seen, _down_sentence(down, silent))


def _silent_since(replica: ReplicaState) -> float:
    """The last usable page, or the first failed scrape where there never was one."""
    last = replica.track.last
    return last.t if last is not None else replica.track.silent_since or 0.0


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _down_sentence(down: Sequence[ReplicaState], silent: float) -> str:
    never = "" if any(one.track.last is not None for one in down) else "; none ever did"
    why = next((f" ({one.name}: {one.trouble})" for one in down if one.trouble), "")
    fewest = min(one.track.misses for one in down)
    of = f"None of the tier's {_counted(len(down), 'replica')}"
    return f"{of} answered in the last {fewest} scrapes, {silent:.0f} s by now{never}{why}"


def unknown_too_long(standings: Iterable[RuleState], view: TierContext, now: float) -> RuleResult:
    """Rules that could judge the tier or a replica of it and for long cannot, for a reason that can be repaired."""
    rule = BY_NAME["UnknownTooLong"]
    allowed = rule.limit("seconds", view.limits)
    silent = sorted(
        (
            (now - _silent_from(one, one.judged_at), one.answer)
            for one in standings
            if isinstance(one.answer, Unknown) and one.answer.reason in FAULTS and one.judged_at is not None
        ),
        key=lambda pair: (-pair[0], pair[1].rule, str(pair[1].subject)),
    )
    longest = silent[0][0] if silent else 0.0
    observed = Reading(value=longest, low=longest, high=longest, n=len(silent))
    late = [answer for seconds, answer in silent if seconds >= allowed]
    if not late:
        text = "Every rule that could judge the tier still can, or could until a moment ago"
        return _tier_verdict(rule, view, now, Status.OK, observed, text)
    named = "; ".join(f"{answer.rule} of {answer.subject}: {_reason(answer)}" for answer in late[:NAMED])
    more = f"; and {len(late) - NAMED} more" if len(late) > NAMED else ""
    text = f"{_counted(len(late), 'rule')} that judged before cannot any more, for up to {longest / 3600:.1f} h: {named}{more}"
    return _tier_verdict(rule, view, now, Status.WARNING, observed, text)


def _silent_from(one: RuleState, judged_at: float) -> float:
    """Since when a rule cannot judge. Nobody asked for an answer in a silence of the agent's own."""
    if one.unknown is not None and one.unknown.reason is Gap.NOT_SCRAPED:
        return one.unknown.started_at
    return judged_at


def _reason(answer: Unknown) -> str:
    words = answer.reason.value.replace("_", " ")
    return f"{words} ({answer.text})" if answer.text else words


def _tier_verdict(
    rule: Rule, view: TierContext, now: float, status: Status, observed: Reading, sentence: str
) -> Verdict:
    return Verdict(
        t=now,
        rule=rule.name,
        subject=Subject(tier=view.tier),
        status=status,
        certainty=Certainty.CERTAIN,
        observed=observed,
        expected=Missing(gap=Gap.NOT_IN_PLAN),
        unit=rule.unit,
        sentence=sentence,
        actions=tuple(Action(text=a, runbook=rule.name) for a in rule.actions) if status is not Status.OK else (),
    )
