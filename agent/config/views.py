"""The tiers of a configuration as judgements see them."""

from __future__ import annotations

from agent.config.load import LoadedConfig
from rules.engines.registry import itl_comparable
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import plan_version


def build_tier_contexts(loaded: LoadedConfig) -> dict[str, TierContext]:
    """A view of every tier that the plan, a target or a source in a store names."""
    planned = dict(loaded.plan.tiers) if loaded.plan else {}
    engines = {tier: source.engine for tier, source in loaded.config.tiers.items()}
    engines |= {target.tier: target.engine for target in loaded.config.targets}
    views = {}
    for name in sorted(planned.keys() | engines.keys()):
        tier = planned.get(name)
        engine = engines.get(name) or (tier.engine if tier else None)
        pools = {target.name: target.pool for target in loaded.config.targets if target.tier == name}
        views[name] = build_tier_context(name, tier, itl_comparable(engine), loaded.config.thresholds.get(name), pools)
    return views


def plan_versions(loaded: LoadedConfig) -> dict[str, str]:
    """The plan version of every planned tier, by which the history keeps its sums apart."""
    return {name: plan_version(tier) for name, tier in loaded.plan.tiers.items()} if loaded.plan else {}
