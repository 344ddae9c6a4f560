"""Incidents: the findings of one tier that share one root cause.

A pure function of findings, open and ended. The catalogue says which rule explains which (`Rule.explained_by`). Findings
that explain each other, directly or through others, are one incident. A new explanation is an entry of the catalogue; a
new effect in the sentence is a row of EFFECTS.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rules.catalogue.registry import BY_NAME, RULES, upstream_rules
from rules.catalogue.thresholds import BURNS, SLOW_CAUSE_SECONDS, SUSPECTED
from rules.confidence import Certainty
from rules.evaluator.alert_severity import RESOLVED_KEPT_SECONDS, alert_loudness
from rules.telemetry.windows import group_by
from rules.telemetry.wording import describe_period, number, split_claim
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, IdleReplicas, MissedObjective, RuleResult, Subject, Verdict

FLAP_SECONDS = RESOLVED_KEPT_SECONDS
"""Pause in seconds within which a finding of the same rule and tier is the same incident: so long its alert is posted as
resolved."""


LONGEST_SECONDS = max(FLAP_SECONDS, *(one.within_seconds for rule in RULES for one in rule.explained_by))
"""Pause in seconds after which two findings are never linked."""


SHARP_SECONDS = 120.0
"""Seconds by which a rule that follows single scrapes may fire after a symptom: their hold. Other rules fire when enough
requests are seen, which may be days after the first symptom."""

MOST_WORDS = 25
"""Maximum words of an incident's sentence: it is read at a glance, and fits one line of a pager."""

MISSED_SHARE = 0.01
"""Share of missed requests from which a sentence names it: a P99 allows 1 %."""

FEW_REQUESTS = 100
"""Requests below which a per cent is less than one request: their number is said instead."""

EFFECTS: Mapping[str, str] = {
    "TierDown": "no replica answers",
    "DemandExceedsCapacity": "more arrives than the fleet can serve",
    "KvCacheCascade": "the KV cache fills",
    "KvCacheNearCeiling": "the KV cache fills",
    "KvEviction": "requests are preempted",
    "EvictionDivergence": "requests are preempted",
    "QueueGrowing": "the queue grows",
    "NoHeadroom": "no headroom is left",
    "TpotDivergence": "tokens come slower",
    "TtftDivergence": "first tokens come later",
}
"""Effect of a symptom, in the words of an incident's sentence. The first that is found is named."""

EXPECTED_EFFECT = "more is expected than the fleet can serve"
"""Effect of a demand that is only forecast."""

_LATENCY_ROOTS = frozenset({*BURNS, "AvailabilityBurn"})
"""Rules whose own sentence has the share of missed requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """Cost of an incident: the share of requests that missed an objective, named replicas, and idle paid replicas.

    `missed` is the worst that an active finding carries, of any finding after the end.
    """

    missed: MissedObjective | None
    replicas: tuple[str, ...]
    idle: IdleReplicas | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings that share one root. `findings` are in the order of their begin; times are unix seconds.

    `severity` is the loudest of the certain findings, else REPORT: what is only likely sends no alert. `ended_at` is None
    while a finding lasts. `verdict` is the root's newest one that fires. `sentence` has at most MOST_WORDS words; `action`
    is the root's first. `relief` is what helps users at once, "" if that is the action: the root may only need a new plan.
    """

    id: str
    tier: str
    root: Finding
    severity: Severity
    started_at: float
    ended_at: float | None
    findings: tuple[Finding, ...]
    verdict: Verdict
    impact: Impact
    sentence: str
    action: str
    relief: str

    @property
    def symptoms(self) -> Mapping[str, tuple[Finding, ...]]:
        """Return the findings of each rule other than the root's, in order of time. What comes and goes is one symptom."""
        grouped = group_by(self.findings, lambda one: one.rule)
        return {rule: tuple(several) for rule, several in grouped.items() if rule != self.root.rule}


def group_incidents(
    findings: Iterable[Finding], results: Iterable[RuleResult] = (), now: float | None = None
) -> tuple[Incident, ...]:
    """Return the incidents of all tiers, in order of their begin. Each finding is in exactly one of them.

    The order of the findings does not matter. The id is that of the earliest finding: it stays when others join or end.
    `results` are the newest ones of open findings: sentence and impact follow them while an incident lasts. A sentence
    omits the day if it is that of `now` (unix seconds).
    """
    newest = {(one.rule, one.subject): one for one in results if isinstance(one, Verdict) and one.status in FIRING}
    groups: list[_Group] = []
    complete: list[list[Finding]] = []
    for finding in sorted(findings, key=_order):
        joined, apart = _Group(), []
        for group in groups:
            if group.ends_at + LONGEST_SECONDS < finding.started_at:
                complete.append(group.members)
            elif any(_is_linked(one, finding) for one in group.latest.values()):
                joined = joined.merge(group)
            else:
                apart.append(group)
        joined.add(finding)
        groups = [*apart, joined]
    incidents = (
        _incident(members, newest, now)
        for found in (*complete, *(group.members for group in groups))
        for members in _split(sorted(found, key=_order))
    )
    return tuple(sorted(incidents, key=lambda one: (one.started_at, one.id)))


@dataclass(slots=True)
class _Group:
    """Findings of one incident. `latest` holds by rule and subject the one that ends last: a later finding that is linked
    to any of them is linked to that one.
    """

    members: list[Finding] = field(default_factory=list)
    latest: dict[tuple[str, Subject], Finding] = field(default_factory=dict)
    ends_at: float = -math.inf

    def add(self, finding: Finding) -> None:
        key = (finding.rule, finding.subject)
        self.members.append(finding)
        self.latest[key] = max(finding, self.latest.get(key, finding), key=lambda one: one.end)
        self.ends_at = max(self.ends_at, finding.end)

    def merge(self, other: _Group) -> _Group:
        """Add the smaller group to the larger one, and return that."""
        small, large = sorted((self, other), key=lambda group: len(group.members))
        for finding in small.members:
            large.add(finding)
        return large


def _order(finding: Finding) -> tuple[float, str, str, str, float]:
    subject = finding.subject
    return finding.started_at, subject.tier, finding.rule, subject.replica or "", finding.end


def _is_linked(one: Finding, other: Finding) -> bool:
    if one.subject.tier != other.subject.tier:
        return False
    if one.rule == other.rule:
        # Replicas of a tier that show the same at the same time have one cause.
        return _pause_seconds(one, other) <= FLAP_SECONDS
    return is_explained(one, other) or is_explained(other, one)


def is_explained(finding: Finding, cause: Finding) -> bool:
    """Return whether `cause` explains `finding`: by the catalogue, in one tier and not between replicas, in time.

    A cause that is seen at once does not explain what began before it.
    """
    replicas = {finding.subject.replica, cause.subject.replica} - {None}
    if finding.subject.tier != cause.subject.tier or len(replicas) > 1:
        return False
    rule = BY_NAME.get(finding.rule)  # The history may hold findings of a rule that was removed.
    explained_by = rule.explained_by if rule is not None else ()
    within = next((one.within_seconds for one in explained_by if one.rule == cause.rule), None)
    if within is None or _pause_seconds(finding, cause) > within:
        return False
    return not BY_NAME[cause.rule].per_scrape or cause.started_at - finding.started_at <= SHARP_SECONDS


def _pause_seconds(one: Finding, other: Finding) -> float:
    """Return the seconds between two findings, at most 0 where they overlap."""
    return max(one.started_at, other.started_at) - min(one.end, other.end)


def _incident(
    findings: Sequence[Finding], newest: Mapping[tuple[str, Subject], Verdict], now: float | None
) -> Incident:
    first, root = findings[0], _newest_finding(_select_root(findings), findings)
    ends = [one.ended_at for one in findings if one.ended_at is not None]
    ended_at = max(ends) if len(ends) == len(findings) else None
    verdicts = {id(one): _newest_verdict(one, newest) for one in findings}
    active = [one for one in findings if one.ended_at is None] or findings
    impact = _measure_impact(findings, [verdicts[id(one)] for one in active])
    verdict = verdicts[id(root)]
    when = describe_period(first.started_at, root.ended_at if ended_at is None else ended_at, now)
    action = verdict.actions[0].text if verdict.actions else ""
    relief = _select_relief(findings, verdicts)
    lasts = ended_at is not None or root.ended_at is None
    effect = _describe_effect([verdicts[id(one)] for one in active], root) if lasts else _describe_rest(active)
    return Incident(
        id=f"{first.subject}/{first.rule}/{first.started_at:.0f}",
        tier=first.subject.tier,
        root=root,
        severity=_severity(findings),
        started_at=first.started_at,
        ended_at=ended_at,
        findings=tuple(findings),
        verdict=verdict,
        impact=impact,
        sentence=_sentence(verdict, when, effect, impact),
        action=action,
        relief="" if relief == action else relief,
    )


def _newest_finding(root: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the open finding of the root's rule and subject if it came back, else the root."""
    again = (one for one in findings if (one.rule, one.subject) == (root.rule, root.subject) and one.ended_at is None)
    return next(again, root)


def _newest_verdict(finding: Finding, newest: Mapping[tuple[str, Subject], Verdict]) -> Verdict:
    """Return the newest firing verdict of an open finding, else its worst."""
    found = newest.get((finding.rule, finding.subject)) if finding.ended_at is None else None
    return found or finding.worst


def _select_relief(findings: Iterable[Finding], verdicts: Mapping[int, Verdict]) -> str:
    """Return the first action of the most upstream rule that pages, "" without one. It stays while findings come and go."""
    paging = (one for one in findings if one.rule in BY_NAME and BY_NAME[one.rule].loudness is Severity.PAGE)
    first = min(paging, key=lambda one: _UPSTREAM_FIRST.get(one.rule, 0), default=None)
    return next((action.text for action in verdicts[id(first)].actions), "") if first is not None else ""


def _measure_impact(findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> Impact:
    """Return the cost of an incident. A note has none that it caused, and requests that no replica took are not known."""
    silent = all(one.rule in BY_NAME and BY_NAME[one.rule].loudness is Severity.REPORT for one in findings)
    down = any(one.rule == "TierDown" for one in findings)
    known = (one.missed for one in verdicts if one.missed is not None)
    missed = [] if silent else [one for one in known if not down or one.share.value]
    idle = [one.idle for one in verdicts if one.idle is not None]
    return Impact(
        missed=max(missed, key=lambda one: (one.share.value or 0.0, one.share.n), default=None),
        replicas=tuple(sorted({one.subject.replica for one in findings if one.subject.replica is not None})),
        idle=max(idle, key=lambda one: one.replicas, default=None),
    )


def _sentence(verdict: Verdict, when: str, effect: str, impact: Impact) -> str:
    """Return the root's claim, the time, the effect and the share of missed requests, as far as MOST_WORDS allow."""
    missed = "" if verdict.rule in _LATENCY_ROOTS else describe_missed(impact.missed)
    head = f"{split_claim(verdict.sentence)[0]} {when}"
    tails = (", ".join(filter(None, (effect, missed))), missed, effect)
    whole = (f"{head}; {tail}" for tail in tails if tail)
    return next((one for one in whole if len(one.split()) <= MOST_WORDS), head)


def _describe_effect(verdicts: Iterable[Verdict], root: Finding) -> str:
    """Return the first effect that is seen, else one that is forecast."""
    symptoms = {one.rule: one for one in verdicts if one.rule in EFFECTS and one.rule != root.rule}
    seen = next((text for rule, text in EFFECTS.items() if rule in symptoms and not symptoms[rule].is_forecast), "")
    return seen or (EXPECTED_EFFECT if symptoms else "")


def _describe_rest(active: Sequence[Finding]) -> str:
    """Return what lasts of an incident whose root has ended: its loudest finding."""
    by_severity = list(Severity)
    last = min(active, key=lambda one: (by_severity.index(_severity([one])), *_order(one)))
    return f"still: {BY_NAME[last.rule].title if last.rule in BY_NAME else last.rule}"


def describe_missed(missed: MissedObjective | None) -> str:
    """Return the share of missed requests in words, of few requests their number. "" unless it is surely MISSED_SHARE."""
    if missed is None or missed.share.value is None or (missed.share.low or 0.0) < MISSED_SHARE:
        return ""
    share, n = number(missed.share.value, "ratio"), missed.share.n
    if n < FEW_REQUESTS:
        share = f"{missed.share.value * n:.0f} of {n:.0f}"
    counted = "output events" if missed.objective == "ITL" else "requests"
    share = f"{share} {counted}" if n < FEW_REQUESTS else f"{share} of {counted}"
    if missed.limit_seconds is None:
        return f"{share} fail"
    return f"{share} miss the {number(missed.limit_seconds, 'seconds')} {missed.objective} objective"


def _split(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """Yield the findings by root: roots that began more than SLOW_CAUSE_SECONDS apart are incidents of their own.

    Without this a plan that no longer fits would swallow every later outage. A symptom of several roots belongs to the
    latest that began before it.
    """
    by_rule = _group_by_rule(findings)
    begins: list[float] = []
    last = -math.inf
    for root in (one for one in findings if not any(_causes(one, by_rule))):
        if root.started_at > last + SLOW_CAUSE_SECONDS:
            begins.append(root.started_at)
        last = root.started_at
    homes: dict[int, int] = {}
    for one in sorted(findings, key=lambda one: _UPSTREAM_FIRST.get(one.rule, 0)) if len(begins) > 1 else ():
        reached = sorted({homes[id(cause)] for cause in _causes(one, by_rule)})
        begun = bisect_right(begins, one.started_at + (SLOW_CAUSE_SECONDS if reached else 0.0)) - 1
        homes[id(one)] = max((home for home in reached if home <= begun), default=reached[0] if reached else begun)
    for home in range(len(begins)):
        yield [one for one in findings if homes.get(id(one), 0) == home]


_UPSTREAM_FIRST = {name: place for place, name in enumerate(upstream_rules(RULES))}


def _select_root(findings: Sequence[Finding]) -> Finding:
    """Return the most upstream finding; of several the loudest, the one that most symptoms suspect, the earliest."""
    by_rule = _group_by_rule(findings)
    roots = [one for one in findings if _is_evident(one) or not any(_causes(one, by_rule))]
    by_root = _group_by_rule(roots)
    suspected = Counter(
        rule for one in findings for rule in _suspected_rules(one, {root.rule for root in _causes(one, by_root)})
    )
    by_severity = list(Severity)
    return min(
        roots,
        key=lambda one: (
            by_severity.index(_severity([one])),
            -suspected[one.rule],
            one.started_at,
            not _loudnesses(one),
            *_order(one),
        ),
    )


def _is_evident(finding: Finding) -> bool:
    """Return whether a finding names its own cause for certain, and no rule finds that cause."""
    first = next(iter(finding.worst.causes), None)
    return first is not None and first.certainty is Certainty.CERTAIN and SUSPECTED.get(first.cause) == ()


def _suspected_rules(finding: Finding, rules: Collection[str]) -> frozenset[str]:
    """Return those of `rules` that find the first cause of a finding that any of them finds."""
    found = (frozenset(SUSPECTED.get(cause.cause, ())).intersection(rules) for cause in finding.worst.causes)
    return next(filter(None, found), frozenset())


_ByRule = Mapping[str, Mapping[str | None, tuple[list[float], list[Finding]]]]


def _group_by_rule(findings: Iterable[Finding]) -> _ByRule:
    """Return by rule and replica the begins, and for each begin the finding up to it that ends last."""
    by_rule: dict[str, dict[str | None, tuple[list[float], list[Finding]]]] = {}
    for one in findings:
        begins, latest = by_rule.setdefault(one.rule, {}).setdefault(one.subject.replica, ([], []))
        begins.append(one.started_at)
        latest.append(max(one, latest[-1] if latest else one, key=lambda one: one.end))
    return by_rule


def _causes(finding: Finding, by_rule: _ByRule) -> Iterator[Finding]:
    """Yield the finding of each rule and replica that explains a finding and ends last.

    Explanations form no circle, so one finding at least has none.
    """
    rule = BY_NAME.get(finding.rule)
    for one in rule.explained_by if rule is not None else ():
        sharp = finding.started_at + SHARP_SECONDS if BY_NAME[one.rule].per_scrape else math.inf
        for begins, latest in by_rule.get(one.rule, {}).values():
            number = bisect_right(begins, min(sharp, finding.end + one.within_seconds))
            if number and is_explained(finding, latest[number - 1]):
                yield latest[number - 1]


def _severity(findings: Sequence[Finding]) -> Severity:
    found = {loudness for one in findings for loudness in _loudnesses(one)}
    return next((one for one in Severity if one in found), Severity.REPORT)


def _loudnesses(finding: Finding) -> set[Severity]:
    """Return the severities that the finding had while it was certain."""
    if finding.rule not in BY_NAME:
        return set()
    return {alert_loudness(finding.rule, one.status) for one in finding.certain_transitions}
