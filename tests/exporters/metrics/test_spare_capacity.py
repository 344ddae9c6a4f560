"""The gauge of spare capacity: what the ready replicas leave, and no series where that is not known."""

from dataclasses import replace

import pytest

from exporters.metrics import names
from exporters.metrics.names import SAMPLES
from exporters.status.records import ExportScope, TierStatus
from rules.catalogue.registry import margin_of
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Workload
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from tests.support.status_samples import agent_status, plan, planned_tier, unplanned_tier, window


def gauges(tier: TierStatus) -> dict[str, float]:
    wanted = {names.SPARE_RPS: "rps", names.SPARE_TOKENS: "tokens"}
    status = agent_status(tiers=(tier,))
    return {
        wanted[metric]: value for metric, samples in SAMPLES.items() if metric in wanted for _, value in samples(status)
    }


def test_spare_is_margin_capacity_less_demand() -> None:
    tier = planned_tier()
    capacity, recent = tier.context.capacity, tier.recent
    assert recent is not None
    used, arriving = (read(BY_NAME[name], recent, tier.context.basis) for name in ("fleet_utilization", "arrival_rps"))
    assert used.value is not None
    come = (arriving.value or arriving.low or 0.0) if isinstance(arriving, Reading) else 0.0
    demand = max(used.value * capacity.rps * 3, come)
    found = gauges(tier)
    # Three of four replicas are up, so none may be lost.
    assert found["rps"] == pytest.approx(max(0.0, 3 * margin_of().target_utilization * capacity.rps - demand))
    idle = replace(tier, recent=window(tier.recent.end, rps=1.0))  # type: ignore[union-attr]
    assert gauges(idle)["rps"] > found["rps"]


def test_full_tier_spares_zero() -> None:
    tier = planned_tier()
    assert gauges(replace(tier, replicas=()))["rps"] == 0.0


def test_spare_capacity_may_be_absent() -> None:
    tier = planned_tier()
    batch = plan("m", "NVIDIA H100 80GB HBM3", workload=Workload(archetype="batch"))
    assert gauges(replace(tier, context=build_tier_context(tier.name, batch))) == {}
    assert gauges(replace(tier, recent=None)) == {}
    assert gauges(replace(tier, export_scope=ExportScope.REPLICAS)) == {}
    assert gauges(unplanned_tier()) == {}
