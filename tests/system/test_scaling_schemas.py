"""What is of Kubernetes itself, against the schemas of the releases that people run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scaling_samples import BEHIND_AIBRIX, BEHIND_HPA, CHAT, HOSTILE, objects

RELEASES = ("1.30", "1.34", "1.37")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["hpa", "cronjob"])
def test_kubernetes_own_schemas_take_every_object(name: str, release: str) -> None:
    library: Any = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: manifests were NOT checked against Kubernetes",
    )
    tiers = [CHAT, BEHIND_HPA, BEHIND_AIBRIX, *(replace(CHAT, tier=tier, note=tier) for tier in HOSTILE)]
    # An HPA is a new owner of the replicas: beside another autoscaler it is refused.
    taken = [one for one in tiers if name != "hpa" or one.autoscaler is None]
    for one in (one for scaling in taken for one in objects(scaling, name)):
        library.validate(one, release, strict=True)
    exact = objects(replace(CHAT, exact_steps=True), "hpa")[0]
    library.validate(exact, "1.37", strict=True)
    with pytest.raises(library.ValidationError):
        library.validate({**exact, "spec": {**exact["spec"], "minReplica": 1}}, release, strict=True)
