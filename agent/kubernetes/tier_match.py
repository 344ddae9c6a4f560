"""Which tier a pod belongs to: what it says itself, what the configuration says, else its GPU and its model.

Owns the ways and their order (WAYS) and the comparison of product names. Exactly one tier, or a reason in words. Another way
is a function and a row in WAYS. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.config.discovery_keys import PodTier
from agent.config.problems import unknown_key_text
from agent.kubernetes.pods import Pod
from rules.plan.schema import TierPlan

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Labels of a node that name its GPU: NVIDIA's GPU feature discovery, AMD's node labeller in both spellings."""

_TIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NOISE = frozenset({"nvidia", "amd", "shared"})
"""Parts of a product's name that tell no hardware apart: the maker, and that the device plugin shares it."""


class AmbiguousTierError(Exception):
    """A pod that cannot be watched, with the reason in words; `later` says that time alone may change that."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCandidates:
    """What is known beside the pod. `tiers` are those of the plan (None: there is none), `entries` those of the configuration,
    `products` the GPUs of the node, `models` what pods' pages say they serve, by uid.
    """

    tiers: Mapping[str, TierPlan] | None = None
    entries: tuple[PodTier, ...] = ()
    products: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def tier_of(pod: Pod, known: TierCandidates, *, has_page: bool = True) -> str:
    """The tier. Raises Unclear. Without a page of its own (a worker) the GPU alone must tell it."""
    for way in WAYS:
        found = way(pod, known)
        if found:
            return found
    return _by_hardware(pod, known, has_page)


def _own_word(pod: Pod, known: TierCandidates) -> str | None:
    named = pod.own.get("tier")
    if named is None:
        return None
    if not _TIER.fullmatch(named):
        raise AmbiguousTierError(
            "its sizewatch.io/tier is no name of a tier (at most 63 letters, digits, dots, _ and -)"
        )
    mapped = {entry.tier for entry in known.entries}
    if known.tiers is not None and named not in known.tiers and named not in mapped:
        raise AmbiguousTierError(
            f"its sizewatch.io/tier: {unknown_key_text(named, tuple(known.tiers), 'a tier of the plan')}"
        )
    return named


def _by_entries(pod: Pod, known: TierCandidates) -> str | None:
    found = sorted({entry.tier for entry in known.entries if _matches(entry, pod)})
    if len(found) > 1:
        raise AmbiguousTierError(f"matches the tiers {', '.join(found)} of discovery.kubernetes.tiers: one is needed")
    return found[0] if found else None


def _matches(entry: PodTier, pod: Pod) -> bool:
    return all(pod.labels.get(name) == value for name, value in entry.labels.items()) and (
        not entry.namespaces or pod.namespace in entry.namespaces
    )


WAYS: tuple[Callable[[Pod, TierCandidates], str | None], ...] = (_own_word, _by_entries)


def _by_hardware(pod: Pod, known: TierCandidates, has_page: bool) -> str:
    advice = "; give it the label sizewatch.io/tier"
    if not known.tiers:
        raise AmbiguousTierError(f"says no tier, and there is no plan to find it by{advice}")
    if not known.products:
        raise AmbiguousTierError(
            f"says no tier, and the node's GPU is not known (no label {PRODUCT_LABELS[0]}){advice}", later=True
        )
    fits = sorted(n for n, t in known.tiers.items() if any(same_product(t.gpu.product, one) for one in known.products))
    shown = ", ".join(known.products)
    if not fits:
        raise AmbiguousTierError(f"says no tier, and no tier of the plan is for {shown}{advice}")
    if not has_page:
        if len(fits) > 1:
            raise AmbiguousTierError(f"says no tier; for {shown} the plan has {', '.join(fits)}{advice}")
        return fits[0]
    models = known.models.get(pod.uid)
    if models is None:
        raise AmbiguousTierError(
            "says no tier; it follows from the model on its page, which has not been read yet", later=True
        )
    same = [name for name in fits if any(same_model(known.tiers[name].model, model) for model in models)]
    if len(same) == 1:
        return same[0]
    serves = f"serves {', '.join(models) or 'no model that it names'} on {shown}"
    if not same:
        raise AmbiguousTierError(f"{serves}, for which the plan has no tier{advice}")
    raise AmbiguousTierError(f"{serves}, for which the plan has {', '.join(same)}{advice}")


def same_product(one: str, other: str) -> bool:
    """Return whether both name the same GPU: NVML writes blanks, labels of nodes dashes or underscores."""
    return bool(_parts(one)) and _parts(one) == _parts(other)


def _parts(product: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[^a-z0-9.]+", product.casefold()) if part and part not in _NOISE)


def same_model(one: str, other: str) -> bool:
    """The same name, with or without its organisation or folder before it."""
    plain = [name.casefold().rstrip("/").rpartition("/")[2] for name in (one, other)]
    return plain[0] == plain[1] != ""
