"""Manifest formats by the name in `sizewatch prewarm --format`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporters.autoscaling.hpa import hpa, keda
from exporters.autoscaling.manifests import Manifest, render_manifest
from exporters.autoscaling.records import Scaling

FORMATS: Mapping[str, Callable[[Scaling], Manifest]] = {"keda": keda, "hpa": hpa}


def manifest_text(scaling: Scaling, name: str) -> str:
    """Return the manifests of a format as YAML. Raise KeyError if unknown."""
    return render_manifest(FORMATS[name](scaling))
