"""Evaluation step: an observation goes in; findings, closed minutes and events come out.

`Evaluator.step` depends on its arguments only. Role node, role fleet and replay all use it, so they give the
same verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from rules.evaluator import rule_evaluation, tier_minutes, timeline
from rules.evaluator.observation import (
    AGGREGATE,
    ClosedMinute,
    Observation,
    ReplicaKey,
    ReplicaScrape,
    StepResult,
    TierAggregate,
)
from rules.evaluator.rule_evaluation import (
    UNKNOWN_TOO_LONG,
    cascade_limits,
    evaluate_replica_rules,
    evaluate_tier_availability,
    evaluate_unknowns,
)
from rules.evaluator.state import EvaluatorState
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.replicas.stalls import is_stopped
from rules.replicas.starts import KEPT_SECONDS
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot, detect_release, is_unwatched
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import ENGINE_VERSION, KV_FORMATS, Snapshot
from rules.telemetry.windows import Window
from rules.verdicts import error_budget
from rules.verdicts.verdict import (
    FIRING,
    ClosedSpan,
    Finding,
    MissedObjective,
    RuleResult,
    Unknown,
    Verdict,
    close_rule_state,
    has_changed,
    step_rule_state,
)

DEFECT = "defect in sizewatch, see its log"


class Evaluator:
    """Evaluation of scrapes against the tier contexts of one configuration. For one thread."""

    def __init__(self, tiers: Mapping[str, TierContext]) -> None:
        self.tiers = dict(tiers)

    def tier(self, name: str) -> TierContext:
        """Return the context of a tier. A tier that no plan names gets one without a plan."""
        if name not in self.tiers:
            self.tiers[name] = load_bins.build_tier_context(name, None)
        return self.tiers[name]

    def set_capacities(self, measured: Mapping[str, TierContext]) -> None:
        """Use the measured capacities of these contexts from the next step on."""
        for name, context in measured.items():
            self.tiers[name] = load_bins.with_capacity(self.tier(name), context.capacity)

    def step(self, state: EvaluatorState, observation: Observation) -> StepResult:
        """Apply an observation to `state` and evaluate every due rule. `state` is changed in place."""
        rows: list[tuple[ReplicaKey, Window]] = []
        events = list(observation.events)
        defects: dict[ReplicaKey, Exception] = {}
        for name, pools in observation.pools.items():
            if self.tier(name).pools != pools:
                self.tiers[name] = replace(self.tier(name), pools=pools)
        state.set_aggregated(observation.aggregated)
        for scrape in observation.scrapes:
            try:
                window = self.apply_scrape(state, scrape, observation.now, events)
            except Exception as defect:  # noqa: BLE001 - a defect at one replica must not stop the others
                defects[scrape.key] = defect
                window = self._apply_failure(state, replace(scrape, error=DEFECT))
            if window is not None:
                rows.append((scrape.key, window))
        for name, aggregate in observation.aggregates.items():
            add_aggregate(state, name, aggregate, self.tier(name))
        if observation.removed:
            self.remove_replicas(state, observation.removed)
        defects |= self._add_closed_minutes(state)
        closed, changed = self._evaluate(state, observation)
        return StepResult(
            now=observation.now,
            tiers=self.tiers,
            observation=observation,
            closed=closed,
            open=state.open_findings(),
            changed=changed,
            minutes=state.pop_closed_minutes(),
            windows=tuple(rows),
            events=tuple(events),
            defects=defects,
        )

    def _add_closed_minutes(self, state: EvaluatorState) -> dict[ReplicaKey, Exception]:
        """Add the minutes that this step closed, those of a tier together. Return the defects at the replicas of a tier."""
        defects: dict[ReplicaKey, Exception] = {}
        closed = (minute for minute in state.closed_minutes if minute.replica != AGGREGATE)
        for tier, group in windows.group_by(closed, lambda minute: minute.tier).items():
            before, binned = state.of_tier(tier), [minute.slice for minute in group]
            try:
                state.minutes[tier] = tier_minutes.add_minutes(before, binned, self.tier(tier), state.now)
            except Exception as defect:  # noqa: BLE001 - a defect at one tier must not stop the others
                defects |= {(tier, minute.replica): defect for minute in group}
        return defects

    def flush(self, state: EvaluatorState) -> tuple[ClosedMinute, ...]:
        """Close the open minutes for an orderly stop."""
        for replica in state.replicas.values():
            _close_open_minute(state, replica, self.tier(replica.tier))
        self._add_closed_minutes(state)
        return state.pop_closed_minutes()

    def remove_replicas(self, state: EvaluatorState, keys: Collection[ReplicaKey]) -> None:
        """Remove replicas. Their open minutes close, and the next evaluation closes their findings."""
        for key, replica in state.replicas.items():
            if key in keys:
                _close_open_minute(state, replica, self.tier(key[0]))
        state.remove_replicas(keys)

    def apply_scrape(
        self, state: EvaluatorState, scrape: ReplicaScrape, now: float, events: list[TimelineEvent]
    ) -> Window | None:
        """Apply one scrape at `now` (unix seconds). Return its window, and add what happened to `events`."""
        if scrape.no_engine:
            self.remove_replicas(state, {scrape.key})
            return None
        if scrape.snapshot is None and scrape.starting and self._is_starting(state, scrape):
            return None
        key = scrape.key
        before = state.replicas.get(key) or ReplicaState(tier=scrape.tier, name=scrape.replica)
        if before.gpu_problem != scrape.gpu_problem:
            before = state.replicas[key] = replace(before, gpu_problem=scrape.gpu_problem)
        if scrape.snapshot is None:
            return self._apply_failure(state, scrape)
        if before.track.last is not None and windows.is_restart(before.track.last, scrape.snapshot):
            t, kind, text = scrape.snapshot.t, TimelineKind.RESTART, "the engine restarted"
            events.append(TimelineEvent(t=t, kind=kind, tier=scrape.tier, replica=scrape.replica, text=text))
        limits = cascade_limits(self.tier(scrape.tier))
        replica, window, minute = apply_snapshot(before, scrape.snapshot, limits, scrape.gpu_window)
        start = replica.start if replica.start is not before.start else None
        # The event restores the start after a restart of the agent.
        if start is not None and state.add_start(scrape.tier, start) and start.t > now - KEPT_SECONDS:
            events.append(timeline.start_event(scrape.tier, start))
        self._update(state, before, replica, minute)
        words = before.track.last.facts.get(ENGINE_VERSION) if before.track.last is not None else None
        if words != scrape.snapshot.facts.get(ENGINE_VERSION):
            events.extend(_add_release(state, scrape, scrape.snapshot))
        return window

    def _apply_failure(self, state: EvaluatorState, scrape: ReplicaScrape) -> Window | None:
        before = state.replicas.get(scrape.key) or ReplicaState(tier=scrape.tier, name=scrape.replica)
        replica, window, minute = apply_failed_scrape(before, scrape.t, Gap.SCRAPE_FAILED, scrape.error)
        self._update(state, before, replica, minute)
        return window

    def _update(
        self, state: EvaluatorState, before: ReplicaState, replica: ReplicaState, minute: Window | None
    ) -> None:
        state.replicas[replica.tier, replica.name] = replica
        if minute is not None:
            _close_minute(state, before, minute, self.tier(replica.tier))

    def _is_starting(self, state: EvaluatorState, scrape: ReplicaScrape) -> bool:
        """Return whether a failed scrape of an unready pod is no gap.

        A StatefulSet reuses pod names: state from before the pod was created is another pod's, and is removed."""
        replica = state.replicas.get(scrape.key)
        if replica is None or scrape.pod_created is None:
            return replica is None
        last = replica.track.last
        if last is not None and last.t >= scrape.pod_created:
            return False
        self.remove_replicas(state, {scrape.key})
        return True

    def _evaluate(
        self, state: EvaluatorState, observation: Observation
    ) -> tuple[tuple[ClosedSpan, ...], tuple[Finding, ...]]:
        """Evaluate the due rules. Return what ended and the findings that began or became worse."""
        now = state.now = observation.now
        unavailable = observation.unavailable
        scraped = {scrape.key for scrape in observation.scrapes} if observation.partial else state.replicas.keys()
        results: list[RuleResult] = []
        tracks = ((replica, replica.track) for replica in state.replicas.values())
        pages = [(replica, track.last) for replica, track in tracks if track.last and not track.misses]
        answering = {replica.tier for replica, _ in pages}
        serving = {replica.tier for replica, page in pages if not is_stopped(replica.stalls, page)}
        for replica_key, replica in state.replicas.items():
            if replica_key in scraped and replica.tier not in unavailable:
                context, minutes = self.tier(replica.tier), state.of_tier(replica.tier)
                recent = tier_minutes.recent_windows(minutes, replica, context, now)
                answers = replica.tier in answering, replica.tier in serving
                results.extend(evaluate_replica_rules(replica, context, now, recent, *answers, minutes.starts))
        results.extend(self._evaluate_availability(state, now, unavailable))
        results.extend(_unknown_results(state, now, unavailable))
        results.extend(self._evaluate_tiers(state, now, unavailable))
        results.extend(state.new_results)
        state.new_results = ()
        results = list(_add_impact(state, results, now))
        closed = [span for gone in state.removed_rules.values() for span in close_rule_state(gone, now)]
        state.removed_rules = {}
        before = {key: rule_state.finding for key, rule_state in state.rules.items()}
        for result in results:
            key = (result.rule, result.subject)
            state.rules[key], ended = step_rule_state(state.rules.get(key), result)
            closed.extend(ended)
        now_open = state.open_findings()
        changed = (new for new in now_open if has_changed(before.get((new.rule, new.subject)), new))
        return tuple(closed), tuple(changed)

    def _evaluate_availability(
        self, state: EvaluatorState, now: float, unavailable: Mapping[str, str]
    ) -> Iterator[RuleResult]:
        """Yield results on whole tiers. What becomes unknown in this step is counted in the next."""
        replicas = windows.group_by(state.replicas.values(), lambda replica: replica.tier)
        rules = windows.group_by(state.rules.values(), lambda rule: rule.result.subject.tier)
        for name, members in sorted(replicas.items()):
            if name in unavailable:
                yield evaluate_unknowns(rules.get(name, []), self.tier(name), now)
            else:
                yield from evaluate_tier_availability(members, rules.get(name, []), self.tier(name), now)

    def _evaluate_tiers(
        self, state: EvaluatorState, now: float, unavailable: Mapping[str, str]
    ) -> Iterator[RuleResult]:
        """Yield the results of rules over minutes for every tier that closed one."""
        if not state.due_tiers:
            return
        contexts = {name: self.tier(name) for name in state.minutes}
        fleet = rule_evaluation.compared_tiers(state.minutes, contexts, now)
        for name in sorted(state.due_tiers & contexts.keys() - unavailable.keys()):
            minutes, projection = state.minutes[name], state.projections.get(name)
            results = rule_evaluation.evaluate_tier_rules(minutes, self.tier(name), now, fleet, projection, state.rules)
            for result in results:
                yield rule_evaluation.prefer_firing_result(result, state.long_term)
        state.due_tiers.clear()


def _unknown_results(state: EvaluatorState, now: float, unavailable: Mapping[str, str]) -> Iterator[RuleResult]:
    for rule, subject in state.rules:
        if subject.tier in unavailable and rule != UNKNOWN_TOO_LONG.name:
            yield Unknown(t=now, rule=rule, subject=subject, reason=Gap.STALE, text=unavailable[subject.tier])


def _add_impact(state: EvaluatorState, results: Iterable[RuleResult], now: float) -> Iterator[RuleResult]:
    """Add to each result that fires what the users of its tier feel."""
    missed: dict[str, MissedObjective | None] = {}
    for result in results:
        if not isinstance(result, Verdict) or result.status not in FIRING:
            yield result
            continue
        tier = result.subject.tier
        if tier not in missed and tier in state.minutes:
            missed[tier] = error_budget.measure_missed_objective(state.minutes[tier].budget, now)
        yield replace(result, missed=missed.get(tier))


def _add_release(state: EvaluatorState, scrape: ReplicaScrape, page: Snapshot) -> Iterator[TimelineEvent]:
    """Add the release that a page tells. Yield an event if it replaces another."""
    tier, replica = scrape.tier, scrape.replica
    live = (name for tier_name, name in state.replicas if tier_name == tier)
    change = detect_release(state.of_tier(tier).releases, replica, page, live)
    if change is not None:
        release, before = change
        state.add_release(tier, replica, release)
        if before:
            text = f"{page.engine} {before} → {release}"
            yield TimelineEvent(t=page.t, kind=TimelineKind.RELEASE, tier=tier, replica=replica, text=text)


def _close_minute(state: EvaluatorState, replica: ReplicaState, minute: Window, context: TierContext) -> None:
    """Close a complete minute of a replica. A tier that a store adds up takes its minutes from there."""
    tier = replica.tier
    if state.of_tier(tier).each is not None:
        return
    # One that this step closed already is not in the tier's minutes yet.
    minutes = (closed for closed in reversed(state.closed_minutes) if closed.tier == tier)
    earlier = next((closed.slice for closed in minutes if closed.replica == replica.name), None)
    page = replica.track.last
    closed = ClosedMinute(
        tier=tier,
        replica=replica.name,
        slice=tier_minutes.bin_minute(state.of_tier(tier), minute, replica.name, context, earlier),
        kept=not is_unwatched(minute),
        release=f"{page.engine} {page.facts.get(ENGINE_VERSION, '')}".rstrip() if page else "",
        precision=_describe_precision(context, page.facts if page else {}),
    )
    state.closed_minutes.append(closed)
    state.due_tiers.add(tier)


def _describe_precision(context: TierContext, facts: Mapping[str, str]) -> str:
    """Return the format of the weights by the plan and of the KV cache by the page, else by the plan."""
    planned = context.plan.precision if context.plan else None
    weights, kv = (planned.weights or "", planned.kv or "") if planned else ("", "")
    text = next((facts[fact] for fact in KV_FORMATS if facts.get(fact, "auto") != "auto"), kv)
    return f"{weights}/{text}" if weights or text else ""


def _close_open_minute(state: EvaluatorState, replica: ReplicaState, context: TierContext) -> None:
    """Close the minute of a replica that is not over."""
    if replica.open:
        _close_minute(state, replica, windows.sum_windows(replica.open), context)


def add_aggregate(state: EvaluatorState, tier: str, aggregate: TierAggregate, context: TierContext) -> None:
    """Add a minute of a tier that a store adds up."""
    before = state.of_tier(tier)
    state.minutes[tier] = tier_minutes.add_minutes(before, aggregate.groups, context, state.now, aggregate.each)
    precision = _describe_precision(context, {})
    for group in aggregate.groups:
        state.closed_minutes.append(ClosedMinute(tier=tier, slice=group, precision=precision))
    state.due_tiers.add(tier)
