"""The autoscalers that sizewatch writes manifests for, by the name that `sizewatch prewarm --format` takes.

Owns this table alone. Another autoscaler is a module that makes a `Manifest` from a `Scaling`, and a row.
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
"""Those that make an owner of the replica field, of which there must be no other."""


def manifest_text(scaling: Scaling, name: str) -> str:
    """The manifests of one format as YAML. Raises KeyError for an unknown format, ValueError where it cannot be written."""
    if name in NEW_OWNERS and (owner := scaling.autoscaler) is not None:
        raise ValueError(
            f"{owner.kind} {owner.name} owns the replicas, and {name} would be a second owner: remove it and name no "
            "autoscaler, or keep it and write cronjob, which moves its minimum"
        )
    return render_manifest(FORMATS[name](scaling))
