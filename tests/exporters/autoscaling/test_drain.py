"""What a pod that goes needs: its grace period in the comment, and an autoscaler that waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scaling_samples import CHAT, DRAINED, objects

from exporters.autoscaling.manifests import FORMATS, Scaling, manifest_text
from forecast.capacity.drain import DrainTime
from rules.telemetry.signals import Reading


def scale_down(scaling: Scaling) -> dict[str, Any]:
    found: dict[str, Any] = objects(scaling, "hpa")[0]["spec"]["behavior"]["scaleDown"]
    return found


def drained(seconds: float) -> Scaling:
    return replace(CHAT, hold_seconds=60.0, drain=DrainTime(e2e_p99=Reading(value=1.0, low=0.5, high=seconds, n=500.0)))


@pytest.mark.parametrize("name", FORMATS)
def test_the_head_says_what_a_pod_needs_to_drain(name: str) -> None:
    text = " ".join(manifest_text(DRAINED, name).replace("\n#", "").split())
    assert f"terminationGracePeriodSeconds {15 + 40 + 20} and a preStop sleep of 15 s" in text
    assert "--shutdown-timeout 40" in text
    assert "the duration of requests was not read" in " ".join(manifest_text(CHAT, name).replace("\n#", "").split())


def test_a_step_down_waits_until_the_last_one_has_drained() -> None:
    steps = [{"type": "Pods", "value": 1}, {"type": "Percent", "value": 10}]
    assert scale_down(drained(300.0)) == {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{**step, "periodSeconds": 300} for step in steps],
    }
    assert scale_down(drained(5.0))["stabilizationWindowSeconds"] == 60, "the hold is longer"
    assert {policy["periodSeconds"] for policy in scale_down(drained(5.0))["policies"]} == {15}
    long = scale_down(drained(7680.0))
    assert long["stabilizationWindowSeconds"] == 3600, "Kubernetes takes no more"
    assert {policy["periodSeconds"] for policy in long["policies"]} == {1800}, "Kubernetes takes no more"
