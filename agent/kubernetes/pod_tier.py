"""Tier of a pod: by its own word or by the configuration; and whether it may belong to it.

Anybody who may make a pod may annotate it. So a pod without a GPU counts only in a namespace that the operator names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from agent.config.sections import unknown_name_text
from agent.config.targets import PodTier
from agent.kubernetes.pods import Pod
from exporters.render.text import quote_external_text
from rules.plan.schema import TierPlan

_TIER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ExcludedPodError(Exception):
    """Pod that cannot be a target. `later`: the reason may disappear with time."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCandidates:
    """Facts to find the tier of a pod. `tiers` are those of the plan (None without a plan), `entries` and `namespaces`
    those of the configuration. `holders` are the pods (namespace/name) that the kubelet gave a GPU.
    """

    tiers: Mapping[str, TierPlan] | None = None
    entries: tuple[PodTier, ...] = ()
    namespaces: tuple[str, ...] = ()
    holders: frozenset[str] = frozenset()

    def is_open(self, tier: str) -> bool:
        """Return whether a pod with a GPU may be of a tier in any namespace."""
        entries = [entry for entry in self.entries if entry.tier == tier]
        return not (entries and all(entry.namespaces for entry in entries))


def has_gpu(pod: Pod, holders: Container[str]) -> bool:
    """Return whether a pod holds a GPU: a device plugin gave it, or the kubelet says so. A claim may be of any device."""
    return (pod.wants_gpu and not pod.by_claim) or pod.place in holders


def find_open_tiers(names: Iterable[str], known: TierCandidates) -> tuple[str, ...]:
    """Return the tiers that a pod of any namespace may join."""
    return () if known.namespaces else tuple(name for name in sorted(set(names)) if known.is_open(name))


def tier_of(pod: Pod, known: TierCandidates) -> str:
    """Return the tier of a pod. Raise ExcludedPodError for a pod without a tier, or that may not belong to it."""
    holds_gpu = has_gpu(pod, known.holders)
    named = {*known.namespaces, *(name for entry in known.entries for name in entry.namespaces)}
    if not holds_gpu and pod.namespace not in named:
        kind = "devices by a claim, which may be no GPU" if pod.by_claim else "no GPU"
        raise ExcludedPodError(f"requests {kind}, and discovery.kubernetes.tiers does not name its namespace")
    tier = _tier_by_label(pod, known) or _tier_by_entries(pod, known)
    namespaces = {name for entry in known.entries if entry.tier == tier for name in entry.namespaces}
    is_trusted = holds_gpu or pod.namespace in known.namespaces
    if pod.namespace not in namespaces and not (is_trusted and known.is_open(tier)):
        name = quote_external_text(tier, 80)
        raise ExcludedPodError(f"its namespace is none of those that discovery.kubernetes.tiers allows for {name}")
    return tier


def _tier_by_label(pod: Pod, known: TierCandidates) -> str | None:
    tier = pod.own.get("tier")
    if tier is None:
        return None
    if not _TIER_NAME.fullmatch(tier):
        raise ExcludedPodError("its sizewatch.io/tier is no name of a tier (at most 63 letters, digits, dots, _ and -)")
    if known.tiers is not None and tier not in {*known.tiers, *(entry.tier for entry in known.entries)}:
        text = unknown_name_text(tier, tuple(known.tiers), "a tier of the plan")
        raise ExcludedPodError(f"its sizewatch.io/tier: {text}")
    return tier


def _tier_by_entries(pod: Pod, known: TierCandidates) -> str:
    """Return the tier of the entries that match by labels and namespace. Raise ExcludedPodError for none or several."""
    tiers = sorted(
        {
            entry.tier
            for entry in known.entries
            if entry.labels.items() <= pod.labels.items() and pod.namespace in (entry.namespaces or (pod.namespace,))
        }
    )
    if not tiers:
        raise ExcludedPodError(
            "has no tier: give it the label sizewatch.io/tier, or name its namespace in discovery.kubernetes.tiers"
        )
    if len(tiers) > 1:
        raise ExcludedPodError(
            f"matches the tiers {', '.join(tiers)} of discovery.kubernetes.tiers: give it the label sizewatch.io/tier"
        )
    return tiers[0]
