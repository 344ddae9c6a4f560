"""Alerts of other systems: whose replica they are about, and which episode of ours explains them.

Owns the record, the placing on a tier and the tie to an episode; all pure. How an alert arrives is
`agent.alerting.webhook`'s, who remembers it `agent.alerting.service`'s. Another symptom is a row of SYMPTOMS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.verdicts.finding import Finding
from rules.verdicts.verdict import FIRING, SEVERITY, Subject

AFTERMATH_SECONDS = 900.0
"""An alert that begins up to 15 minutes after an episode may still be told of it: rates over 5 to 15 minutes lag."""

OURS = ("source", "sizewatch")
"""The label of alerts that sizewatch itself sent: taking them for foreign ones would be a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The episode that explains a foreign alert; `certain` says whether that episode has been certain so far."""

    rule: str
    subject: Subject
    began_at: float
    certain: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAlert:
    """An alert of another system, from its start to its end (unix seconds, None while it fires).

    `heard_at` is when it was last heard of; `tier` is None where it is about none of ours that can be told.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    summary: str
    started_at: float
    ended_at: float | None
    heard_at: float
    tier: str | None = None
    replica: str | None = None
    diagnosis: Diagnosis | None = None

    @property
    def identity(self) -> str:
        """The same for every message about this alert: a digest of its labels."""
        return hashlib.sha256(repr(self.labels).encode("utf-8", "replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTargets:
    """What an alert can be about: each replica's (tier, name) with the names its address goes by, and which tiers serve
    a model."""

    tiers: frozenset[str]
    replicas: Mapping[tuple[str, str], frozenset[str]]
    models: Mapping[str, frozenset[str]] = field(default_factory=dict)


REPLICA_LABELS = ("replica", "instance", "pod", "pod_name", "exported_pod", "exported_instance")
MODEL_LABELS = ("model_name", "model")


def assign_tier(alert: ExternalAlert, fleet: AlertTargets) -> ExternalAlert:
    """The alert on its tier: by the label `tier`, else by a replica that it names, else by a model of one tier only."""
    labels = dict(alert.labels)
    said = labels.get("tier")
    tier = said if said in fleet.tiers else None
    named = {labels[name] for name in REPLICA_LABELS if name in labels}
    found = sorted(key for key, names in fleet.replicas.items() if tier in (None, key[0]) and named & names)
    if len(found) == 1:
        return replace(alert, tier=found[0][0], replica=found[0][1])
    if tier is None and len({of for of, _ in found}) == 1:
        tier = found[0][0]
    if tier is None:
        models = [fleet.models[labels[name]] for name in MODEL_LABELS if labels.get(name) in fleet.models]
        tier = next((of for several in models if len(several) == 1 for of in several), None)
    return replace(alert, tier=tier)


_SLOW = (
    *("TtftDivergence", "TpotDivergence", "ItlDivergence", "TtftSloBurn", "TpotSloBurn", "TtftTail", "TpotTail"),
    *("KvCacheCascade", "KvEviction", "EvictionDivergence", "KvCacheNearCeiling", "KvTransferSlow", "QueueGrowing"),
    *(
        "PastTheKnee",
        "GpuSaturated",
        "LoadBeyondBenchmark",
        "DemandExceedsCapacity",
        "NoHeadroom",
        "PrefixHitDivergence",
    ),
    *("PrefixHitLow", "PrefixRoutingBroken", "AdapterCachePressure", "SpeculationUneconomic", "MixedTierLoadBalancing"),
    *("ColdStartLate", "OutputLengthDrift", "RunawayGeneration", "WorkloadDrift", "PdRatioOff", "GpuThrottling"),
    *("GpuXid", "TierDown", "TargetDown", "ExpertImbalance"),
)
_FAILS = (
    "AvailabilityBurn",
    "RequestsRefused",
    "TierDown",
    "TargetDown",
    "TelemetryStale",
    "GpuXid",
    "GpuEccErrors",
    "KvCacheCascade",
    "LoadBeyondBenchmark",
)

SYMPTOMS: tuple[tuple[str, tuple[str, ...], frozenset[str]], ...] = (
    (
        "latency",
        (
            "latency",
            "ttft",
            "tpot",
            "intertoken",
            "slow",
            "duration",
            "responsetime",
            "timeout",
            "queue",
            "slo",
            "p99",
            "p95",
        ),
        frozenset(_SLOW),
    ),
    ("error", ("error", "5xx", "unavailable", "failure", "failing", "down", "unhealthy"), frozenset(_FAILS)),
)
"""What an alert complains of, the words by which its name or summary shows it, and the rules that can explain it."""


def attach_finding(alert: ExternalAlert, episodes: Iterable[Finding], now: float) -> ExternalAlert:
    """The alert with the episode that explains it best: certain before likely, then the worst, then the first.

    An explanation that was found once stays where none is found any more.
    """
    symptom = _symptom(alert)
    if alert.tier is None or symptom is None:
        return alert
    word, rules = symptom
    found = [e for e in episodes if e.rule in rules and _same_place(alert, e) and _meet(alert, e, now)]
    if not found:
        return alert
    best = min(found, key=lambda e: (not _certain(e), -SEVERITY[e.worst.status], -(e.worst.stage or 0), e.started_at))
    diagnosis = Diagnosis(
        rule=best.rule,
        subject=best.subject,
        began_at=best.started_at,
        certain=_certain(best),
        sentence=f"this {word} alert: {_said(alert, best)}",
    )
    return replace(alert, diagnosis=diagnosis)


def _symptom(alert: ExternalAlert) -> tuple[str, frozenset[str]] | None:
    text = f"{alert.name} {alert.summary}".lower().replace(" ", "").replace("_", "").replace("-", "")
    return next(((word, rules) for word, marks, rules in SYMPTOMS if any(mark in text for mark in marks)), None)


def _same_place(alert: ExternalAlert, episode: Finding) -> bool:
    both = alert.replica is not None and episode.subject.replica is not None
    return episode.subject.tier == alert.tier and (not both or alert.replica == episode.subject.replica)


def _meet(alert: ExternalAlert, episode: Finding, now: float) -> bool:
    alert_end = now if alert.ended_at is None else alert.ended_at
    episode_end = now if episode.ended_at is None else episode.ended_at
    return episode.started_at <= alert_end and alert.started_at <= episode_end + AFTERMATH_SECONDS


def _certain(episode: Finding) -> bool:
    return any(t.status in FIRING and t.certainty is Certainty.CERTAIN for t in episode.transitions)


def _said(alert: ExternalAlert, episode: Finding) -> str:
    rule, stage = BY_NAME.get(episode.rule), episode.worst.stage
    where = f" of {episode.subject.replica}" if episode.subject.replica else ""
    what = f"{rule.title if rule else episode.rule}{where}{f', stage {stage}' if stage else ''}"
    doubt = "" if _certain(episode) else " (likely)"
    over = episode.ended_at is not None and episode.ended_at < alert.started_at
    ended = f" and ended {_length(alert.started_at - (episode.ended_at or 0.0))} before it" if over else ""
    return f"{what}{doubt}, began {_when(alert.started_at - episode.started_at)}{ended}"


def _when(lead_seconds: float) -> str:
    if abs(lead_seconds) < 1:
        return "at the same time"
    return f"{_length(abs(lead_seconds))} {'earlier' if lead_seconds > 0 else 'later'}"


def _length(seconds: float) -> str:
    for size, noun in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second")):
        if seconds >= size or size == 1.0:
            number = round(seconds / size)
            return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
    raise AssertionError("a second is the smallest")
