"""Table of manifest formats by the name in `sizewatch prewarm --format`.

A new autoscaler is a row here and a module that makes a `Manifest` from a `Scaling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporters.autoscaling.aibrix import aibrix
from exporters.autoscaling.cronjob import cronjobs
from exporters.autoscaling.hpa import hpa
from exporters.autoscaling.keda import keda
from exporters.autoscaling.manifests import Manifest, render_manifest
from exporters.autoscaling.records import Scaling

FORMATS: Mapping[str, Callable[[Scaling], Manifest]] = {"keda": keda, "hpa": hpa, "cronjob": cronjobs, "aibrix": aibrix}

NEW_OWNERS = frozenset({"keda", "hpa"})
"""Formats that create an owner of the replica field. No other owner may exist."""


def manifest_text(scaling: Scaling, name: str) -> str:
    """Return the manifests of a format as YAML. Raise KeyError if unknown, ValueError if not writable."""
    if name in NEW_OWNERS and (owner := scaling.autoscaler) is not None:
        raise ValueError(
            f"{owner.kind} {owner.name} owns the replicas, and {name} would be a second owner: remove it and name no "
            "autoscaler, or keep it and write cronjob, which moves its minimum"
        )
    return render_manifest(FORMATS[name](scaling))
