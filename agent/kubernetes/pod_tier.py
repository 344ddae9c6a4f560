"""Tier of a pod: by its own word, by the configuration, or by its GPU and model; and whether it may belong to it.

Anybody who may make a pod may annotate it. So a pod without a GPU counts only in a namespace that the operator names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from agent.config.discovery import PodTier
from agent.config.sections import unknown_key_text
from agent.kubernetes.pods import Pod
from exporters.render.text import quote_external_text
from rules.plan.schema import TierPlan

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Node labels with the GPU product: NVIDIA's GPU feature discovery, AMD's node labeller in both spellings."""

_TIER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NOISE = frozenset({"nvidia", "amd", "shared"})
"""Parts of a product name that do not identify hardware: the maker, and sharing by the device plugin."""


class ExcludedPodError(Exception):
    """Pod that cannot be a target. `later`: the reason may disappear with time."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCandidates:
    """Facts to find the tier of a pod. `tiers` are those of the plan (None without a plan), `entries` and `namespaces`
    those of the configuration, `products` the GPUs of the node, `models` the models on pages of pods, by uid. `holders`
    are the pods (namespace/name) that the kubelet gave a GPU.
    """

    tiers: Mapping[str, TierPlan] | None = None
    entries: tuple[PodTier, ...] = ()
    namespaces: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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


def tier_of(pod: Pod, known: TierCandidates, *, has_page: bool = True) -> str:
    """Return the tier of a pod. Raise ExcludedPodError. Without a page (a worker) its GPU must determine the tier."""
    named = {*known.namespaces, *(name for entry in known.entries for name in entry.namespaces)}
    if not has_gpu(pod, known.holders) and pod.namespace not in named:
        asked = "devices by a claim, which may be no GPU" if pod.by_claim else "no GPU"
        raise ExcludedPodError(f"requests {asked}, and discovery.kubernetes.tiers does not name its namespace")
    tier = _tier_by_label(pod, known) or _tier_by_entries(pod, known)
    if tier is None:
        return _tier_by_hardware(pod, known, has_page)
    return _allowed_tiers(pod, [tier], known)[0]


def _allowed_tiers(pod: Pod, tiers: list[str], known: TierCandidates) -> list[str]:
    """Return those of the tiers that the pod may belong to. Raise ExcludedPodError without any."""
    is_trusted = has_gpu(pod, known.holders) or pod.namespace in known.namespaces
    allowed = []
    for tier in tiers:
        namespaces = {name for entry in known.entries if entry.tier == tier for name in entry.namespaces}
        if pod.namespace in namespaces or (is_trusted and known.is_open(tier)):
            allowed.append(tier)
    if not allowed:
        names = quote_external_text(", ".join(tiers), 80)
        raise ExcludedPodError(f"its namespace is none of those that discovery.kubernetes.tiers allows for {names}")
    return allowed


def _tier_by_label(pod: Pod, known: TierCandidates) -> str | None:
    tier = pod.own.get("tier")
    if tier is None:
        return None
    if not _TIER_NAME.fullmatch(tier):
        raise ExcludedPodError("its sizewatch.io/tier is no name of a tier (at most 63 letters, digits, dots, _ and -)")
    if known.tiers is not None and tier not in {*known.tiers, *(entry.tier for entry in known.entries)}:
        text = unknown_key_text(tier, tuple(known.tiers), "a tier of the plan")
        raise ExcludedPodError(f"its sizewatch.io/tier: {text}")
    return tier


def _tier_by_entries(pod: Pod, known: TierCandidates) -> str | None:
    """Return the tier of the entries that match. Several without labels only say which namespaces count."""
    matching = [
        entry
        for entry in known.entries
        if entry.labels.items() <= pod.labels.items() and pod.namespace in (entry.namespaces or (pod.namespace,))
    ]
    tiers = sorted({entry.tier for entry in matching})
    if len(tiers) > 1 and (any(entry.labels for entry in matching) or not known.tiers):
        raise ExcludedPodError(f"matches the tiers {', '.join(tiers)} of discovery.kubernetes.tiers: one is needed")
    return tiers[0] if len(tiers) == 1 else None


def _tier_by_hardware(pod: Pod, known: TierCandidates, has_page: bool) -> str:
    advice = "; give it the label sizewatch.io/tier"
    if not known.tiers:
        raise ExcludedPodError(f"says no tier, and there is no plan to find it by{advice}")
    if not known.products:
        raise ExcludedPodError(
            f"says no tier, and the node's GPU is not known (no label {PRODUCT_LABELS[0]}){advice}", later=True
        )
    fits = sorted(n for n, t in known.tiers.items() if any(same_product(t.gpu.product, one) for one in known.products))
    shown = ", ".join(known.products)
    if not fits:
        raise ExcludedPodError(f"says no tier, and no tier of the plan is for {shown}{advice}")
    fits = _allowed_tiers(pod, fits, known)
    if not has_page:
        if len(fits) > 1:
            raise ExcludedPodError(f"says no tier; for {shown} the plan has {', '.join(fits)}{advice}")
        return fits[0]
    models = known.models.get(pod.uid)
    if models is None:
        raise ExcludedPodError(
            "says no tier; it follows from the model on its page, which has not been read yet", later=True
        )
    same = [name for name in fits if any(same_model(known.tiers[name].model, model) for model in models)]
    if len(same) == 1:
        return same[0]
    serves = f"serves {', '.join(models) or 'no model that it names'} on {shown}"
    if not same:
        raise ExcludedPodError(f"{serves}, for which the plan has no tier{advice}")
    raise ExcludedPodError(f"{serves}, for which the plan has {', '.join(same)}{advice}")


def same_product(one: str, other: str) -> bool:
    """Return whether both name the same GPU: NVML writes blanks, node labels dashes or underscores."""
    return bool(_product_parts(one)) and _product_parts(one) == _product_parts(other)


def _product_parts(product: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[^a-z0-9.]+", product.casefold()) if part and part not in _NOISE)


def same_model(one: str, other: str) -> bool:
    """Return whether both names are equal without organisation or folder."""
    plain = [name.casefold().rstrip("/").rpartition("/")[2] for name in (one, other)]
    return plain[0] == plain[1] != ""
