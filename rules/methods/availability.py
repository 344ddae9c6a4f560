"""What the rules of single scrapes say of one replica: the KV cascade, a target that is down, telemetry that is stale.

Owns these answers and their sentences. The state they read is `rules.replicas.state`; thresholds stand in the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence

from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.confidence import Certainty
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.cascade import STAGES, CascadeState
from rules.replicas.state import ReplicaState
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import MINUTE_SECONDS
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
