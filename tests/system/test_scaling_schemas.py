"""What is of Kubernetes itself, against the schemas of the releases that people run."""

from dataclasses import replace
from typing import Any

import pytest
from test_manifests import CHAT, HOSTILE, objects

RELEASES = ("1.30", "1.34", "1.37")


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_own_schemas_take_every_object(release: str) -> None:
    library: Any = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: manifests were NOT checked against Kubernetes",
    )
    tiers = [CHAT, *(replace(CHAT, tier=tier, note=tier) for tier in HOSTILE)]
    for one in (one for scaling in tiers for one in objects(scaling, "hpa")):
        library.validate(one, release, strict=True)
    first = objects(CHAT, "hpa")[0]
    with pytest.raises(library.ValidationError):
        library.validate({**first, "spec": {**first["spec"], "minReplica": 1}}, release, strict=True)
