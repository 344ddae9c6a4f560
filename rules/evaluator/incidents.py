"""Incidents: the findings of one tier that share one root cause.

A pure function of findings, open and ended. Findings of one tier that are near in time are one incident. The stage of a
rule in the catalogue says how far downstream it lies: the root is the finding of the lowest stage. A new effect in the
sentence is a row of EFFECTS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rules.catalogue.registry import BURNS, BY_NAME, SUSPECTED
from rules.confidence import Certainty
from rules.evaluator.alert_severity import RESOLVED_KEPT_SECONDS, alert_severity
from rules.telemetry.windows import group_by
from rules.telemetry.wording import describe_period, number, split_claim
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, Finding, IdleReplicas, MissedObjective, RuleResult, Subject, Verdict

NEAR_SECONDS = RESOLVED_KEPT_SECONDS
"""Pause in seconds up to which findings of one tier belong together: so long an alert is posted as resolved, and it is the
hold of most rules, after which a cause and its symptom have both fired."""

APART_SECONDS = 3600.0
"""Seconds after the begin of an incident's newest root from which another root is an incident of its own. A plan that no
longer fits would swallow every later outage."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings that share one root. `findings` are in the order of their begin; times are unix seconds.

    `severity` is the loudest of the certain findings, else REPORT: what is only likely sends no alert. `ended_at` is None
    while a finding lasts. `verdict` is the root's newest one that fires. `sentence` has at most MOST_WORDS words; `action`
    is the root's first. `relief` is what helps users at once, until NEAR_SECONDS after its finding, "" if that is the action.
    `missed` and `idle` are the worst that an active finding carries, of any finding after the end.
    """

    id: str
    tier: str
    root: Finding
    severity: Severity
    started_at: float
    ended_at: float | None
    findings: tuple[Finding, ...]
    verdict: Verdict
    missed: MissedObjective | None
    replicas: tuple[str, ...]
    idle: IdleReplicas | None
    sentence: str
    action: str
    relief: str

    @property
    def symptoms(self) -> Mapping[str, tuple[Finding, ...]]:
        """Return the findings of each rule other than the root's, in order of time. What comes and goes is one symptom."""
        grouped = group_by(self.findings, lambda finding: finding.rule)
        return {rule: tuple(rows) for rule, rows in grouped.items() if rule != self.root.rule}


def group_incidents(
    findings: Iterable[Finding], results: Iterable[RuleResult] = (), now: float | None = None, zone: str = "UTC"
) -> tuple[Incident, ...]:
    """Return the incidents of all tiers, in order of their begin. Each finding is in exactly one of them.

    The order of the findings does not matter. A finding belongs where it did when it began: what begins or ends later
    moves none, so an incident keeps its id. `results` are the newest ones of open findings: sentence and impact follow
    them while an incident lasts. Sentences have times of `zone`, without the day if it is that of `now` (unix seconds).
    """
    firing = (result for result in results if isinstance(result, Verdict) and result.status in FIRING)
    newest = {(verdict.rule, verdict.subject): verdict for verdict in firing}
    groups: dict[str, list[_Group]] = {}
    incidents = []
    for finding in sorted(findings, key=_order):
        near = [candidate for candidate in groups.get(finding.subject.tier, ()) if candidate.is_near(finding)]
        home = _find_home(finding, near)
        if home is None:
            home = _Group(root_began_at=finding.started_at)
            incidents.append(home)
            near.append(home)
        groups[finding.subject.tier] = near
        home.add(finding)
    return tuple(_incident(group.members, newest, now, zone) for group in incidents)


@dataclass(slots=True)
class _Group:
    """Findings of one incident in order of their begin; by rule their latest end; when the newest root began."""

    root_began_at: float
    members: list[Finding] = field(default_factory=list)
    ends: dict[str, float] = field(default_factory=dict)

    def is_near(self, finding: Finding) -> bool:
        return finding.started_at <= max(self.ends.values()) + NEAR_SECONDS

    def add(self, finding: Finding) -> None:
        self.members.append(finding)
        self.ends[finding.rule] = max(finding.end, self.ends.get(finding.rule, finding.end))

    def explains(self, finding: Finding) -> bool:
        """Return whether a finding of the same rule or of a lower stage is near."""
        stage = stage_of(finding.rule)
        causes = (end for rule, end in self.ends.items() if rule == finding.rule or 0 < stage_of(rule) < stage)
        return any(finding.started_at <= end + NEAR_SECONDS for end in causes)

    def is_explained_by(self, finding: Finding) -> bool:
        """Return whether a finding that begins now is the most upstream one."""
        is_late = finding.started_at - self.members[0].started_at > SHARP_SECONDS and BY_NAME[finding.rule].per_scrape
        return stage_of(finding.rule) < min(map(stage_of, self.ends)) and not is_late


def stage_of(rule: str) -> int:
    """Return the stage of a rule, 0 for one that was removed: the history may hold its findings."""
    return BY_NAME[rule].stage if rule in BY_NAME else 0


def _find_home(finding: Finding, near: Sequence[_Group]) -> _Group | None:
    """Return the newest incident that explains a finding, else that it explains, else a recent one."""
    latest_first = tuple(reversed(near))
    home = next((group for group in latest_first if group.explains(finding)), None)
    if home or not stage_of(finding.rule):
        return home
    staged = [group for group in latest_first if min(map(stage_of, group.ends))]
    home = next((group for group in staged if group.is_explained_by(finding)), None)
    home = home or next((group for group in staged if finding.started_at <= group.root_began_at + APART_SECONDS), None)
    if home:
        home.root_began_at = finding.started_at
    return home


def _order(finding: Finding) -> tuple[float, str, str, str, float]:
    return finding.started_at, finding.subject.tier, finding.rule, finding.subject.replica or "", finding.end


def _incident(
    findings: Sequence[Finding], newest: Mapping[tuple[str, Subject], Verdict], now: float | None, zone: str
) -> Incident:
    first, root = findings[0], _newest_finding(_select_root(findings), findings)
    ends = [finding.ended_at for finding in findings if finding.ended_at is not None]
    ended_at = max(ends) if len(ends) == len(findings) else None
    verdicts = {id(finding): _newest_verdict(finding, newest) for finding in findings}
    active = [finding for finding in findings if finding.ended_at is None] or findings
    lasting = [verdicts[id(finding)] for finding in active]
    missed = _select_missed(findings, lasting)
    idle = [candidate.idle for candidate in lasting if candidate.idle]
    verdict = verdicts[id(root)]
    names = {finding.subject.replica for finding in findings if finding.subject.replica is not None}
    claimed = findings
    if root.rule in BY_NAME and BY_NAME[root.rule].per_scrape:
        # A rule that follows single scrapes fires when its claim begins, not before.
        claimed = [finding for finding in findings if finding.rule == root.rule]
    end = root.ended_at if ended_at is None else max(finding.end for finding in claimed)
    if root.subject.replica is not None:
        # Another replica's state is no begin.
        claimed = [finding for finding in claimed if finding.subject == root.subject]
    when = describe_period(claimed[0].started_at, end, now, zone)
    action = next(iter(verdict.actions), "")
    relief = _select_relief((finding for finding in findings if (now or 0.0) <= finding.end + NEAR_SECONDS), verdicts)
    outlived = ended_at is None and root.ended_at is not None
    effect = _describe_rest(active) if outlived else _describe_effect(lasting, root)
    return Incident(
        id=f"{first.subject}/{first.rule}/{first.started_at:.0f}",
        tier=first.subject.tier,
        root=root,
        severity=_severity(findings),
        started_at=first.started_at,
        ended_at=ended_at,
        findings=tuple(findings),
        verdict=verdict,
        missed=missed,
        replicas=tuple(sorted(names)),
        idle=max(idle, key=lambda replicas: replicas.replicas, default=None),
        sentence=_sentence(verdict, when, effect, missed),
        action=action,
        relief="" if relief == action else relief,
    )


def _newest_finding(root: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the open finding of the root's rule and subject if it came back, else the root."""
    again = (finding for finding in findings if (finding.rule, finding.subject) == (root.rule, root.subject))
    return next((finding for finding in again if finding.ended_at is None), root)


def _newest_verdict(finding: Finding, newest: Mapping[tuple[str, Subject], Verdict]) -> Verdict:
    """Return the newest firing verdict of an open finding, else its worst."""
    verdict = newest.get((finding.rule, finding.subject)) if finding.ended_at is None else None
    return verdict or finding.worst


def _select_relief(findings: Iterable[Finding], verdicts: Mapping[int, Verdict]) -> str:
    """Return the first action of the most upstream certain rule that pages, "" without one."""
    known = (finding for finding in findings if finding.rule in BY_NAME and finding.certain_transitions)
    paging = (finding for finding in known if BY_NAME[finding.rule].severity is Severity.PAGE)
    first = min(paging, key=lambda finding: stage_of(finding.rule), default=None)
    return next(iter(verdicts[id(first)].actions), "") if first else ""


def _select_missed(findings: Sequence[Finding], verdicts: Iterable[Verdict]) -> MissedObjective | None:
    """Return the largest share of missed requests. A note caused none, and requests that no replica took are not known."""
    silent = all(finding.rule in BY_NAME and BY_NAME[finding.rule].severity is Severity.REPORT for finding in findings)
    down = any(finding.rule == "TierDown" for finding in findings)
    known = (verdict.missed for verdict in verdicts if verdict.missed)
    missed = [] if silent else [objective for objective in known if not down or objective.share.value]
    return max(missed, key=lambda objective: (objective.share.value or 0.0, objective.share.n), default=None)


def _sentence(verdict: Verdict, when: str, effect: str, missed: MissedObjective | None) -> str:
    """Return the root's claim, the time, the effect and the share of missed requests, as far as MOST_WORDS allow."""
    share = "" if verdict.rule in (*BURNS, "AvailabilityBurn") else describe_missed(missed)
    head = f"{split_claim(verdict.sentence)[0]} {when}"
    tails = (", ".join(filter(None, (effect, share))), share, effect)
    whole = (f"{head}; {tail}" for tail in tails if tail)
    return next((text for text in whole if len(text.split()) <= MOST_WORDS), head)


def _describe_effect(verdicts: Iterable[Verdict], root: Finding) -> str:
    """Return the first effect that is seen, else one that is forecast. Demand that ready replicas take has none."""
    symptoms = {v.rule: v for v in verdicts if v.rule in EFFECTS and v.rule != root.rule}
    demand = symptoms.get("DemandExceedsCapacity")
    if demand and getattr(demand.observed, "value", 0.0) <= getattr(demand.expected, "high", -1.0):
        del symptoms[demand.rule]
    seen = next((text for rule, text in EFFECTS.items() if rule in symptoms and not symptoms[rule].is_forecast), "")
    return seen or (EXPECTED_EFFECT if symptoms else "")


def _describe_rest(active: Sequence[Finding]) -> str:
    """Return what lasts of an incident whose root has ended: its loudest finding."""
    by_severity = list(Severity)
    last = min(active, key=lambda finding: (by_severity.index(_severity([finding])), *_order(finding)))
    return f"still: {BY_NAME[last.rule].title if last.rule in BY_NAME else last.rule}"


def describe_missed(missed: MissedObjective | None) -> str:
    """Return the share (of few, the number) of missed requests, "" unless surely MISSED_SHARE."""
    if missed is None or missed.share.value is None or (missed.share.low or 0.0) < MISSED_SHARE:
        return ""
    counted = "output events" if missed.objective == "ITL" else "requests"
    share, n = f"{number(missed.share.value, 'ratio')} of {counted}", missed.share.n
    if n < FEW_REQUESTS:
        share = f"{missed.share.value * n:.0f} of {n:.0f} {counted}"
    if missed.limit_seconds is None:
        return f"{share} fail"
    return f"{share} miss the {number(missed.limit_seconds, 'seconds')} {missed.objective} objective"


def _select_root(findings: Sequence[Finding]) -> Finding:
    """Return the most upstream finding; of several the loudest, the one that most symptoms suspect, the earliest."""
    by_rule = group_by(findings, lambda finding: finding.rule)
    suspecting: dict[str, list[Finding]] = {}
    for finding in findings:
        for cause in finding.worst.causes:
            for rule in SUSPECTED.get(cause.cause, ()):
                suspecting.setdefault(rule, []).append(finding)
    causes = {id(finding): _list_causes(finding, by_rule, suspecting.get(finding.rule, ())) for finding in findings}
    roots = []
    for finding in findings:
        upstream = causes[id(finding)]
        if not upstream or _is_evident(finding, upstream):
            roots.append(finding)
    rules = {root.rule for root in roots}
    suspected: Counter[str] = Counter()
    for finding in findings:
        near = rules.intersection(causes[id(finding)])
        finders = (near.intersection(SUSPECTED.get(cause.cause, ())) for cause in finding.worst.causes)
        suspected.update(next(filter(None, finders), ()))
    by_severity = list(Severity)
    return min(
        roots,
        key=lambda candidate: (
            by_severity.index(_severity([candidate])),
            -suspected[candidate.rule],
            candidate.started_at,
            not _list_severities(candidate),
            *_order(candidate),
        ),
    )


def _list_causes(finding: Finding, by_rule: Mapping[str, Sequence[Finding]], hints: Sequence[Finding]) -> list[str]:
    """Return the rules of the same incident that explain a finding: of a lower stage, and begun in time for it.

    What is only likely explains what is certain if that suspects it, finds the same cause, or began while it lasted.
    `hints` are symptoms that suspect the rule: a long hold may end after they began.
    """
    named = {cause.cause for cause in finding.worst.causes}
    suspects: set[str] = set()
    for cause, rules in SUSPECTED.items():
        if cause in named or finding.rule in rules:
            suspects.update(rules)
    begin = min([finding.started_at, *(hint.started_at for hint in hints if hint.end >= finding.started_at)])
    sharp, late = begin + SHARP_SECONDS, finding.end + NEAR_SECONDS
    causes = []
    for rule, group in by_rule.items():
        is_upstream = 0 < stage_of(rule) < stage_of(finding.rule)
        if not is_upstream or group[0].started_at > (sharp if BY_NAME[rule].per_scrape else late):
            continue
        is_sure = rule in suspects or not finding.certain_transitions
        if is_sure or any(m.certain_transitions or m.started_at <= begin <= m.end for m in group):
            causes.append(rule)
    return causes


def _is_evident(finding: Finding, causes: Collection[str]) -> bool:
    """Return whether a finding names its own cause for certain, and no rule of the incident finds that cause."""
    first = [cause.cause for cause in finding.worst.causes[:1] if cause.certainty is Certainty.CERTAIN]
    finders = list(map(SUSPECTED.get, first))
    return finders == [()] or (finders == [("EngineStalled",)] and "EngineStalled" not in causes)


def _severity(findings: Sequence[Finding]) -> Severity:
    severities = {severity for finding in findings for severity in _list_severities(finding)}
    return next((severity for severity in Severity if severity in severities), Severity.REPORT)


def _list_severities(finding: Finding) -> set[Severity]:
    """Return the severities that the finding had while it was certain."""
    if finding.rule not in BY_NAME:
        return set()
    return {alert_severity(finding.rule, transition.status) for transition in finding.certain_transitions}
