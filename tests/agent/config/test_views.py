"""The tiers of a configuration as judgements see them."""

from pathlib import Path
from typing import Any

from paths import TESTS

from agent.config.files import load_plan
from agent.config.load import LoadedConfig, build_tier_contexts, parse_config, plan_versions
from rules.plan.schema import plan_version

PLAN = load_plan(TESTS / "plans" / "cpu-small.yaml")
TARGET = {"url": "http://127.0.0.1:8000/metrics", "tier": "cpu-small"}


def loaded(folder: Path, planned: bool = True, **keys: Any) -> LoadedConfig:
    plan = PLAN if planned else None
    return LoadedConfig(path=folder, config=parse_config(keys, folder=folder, plan=plan), plan=plan, warnings=())


def test_every_tier_has_a_view(tmp_path: Path) -> None:
    second = {**TARGET, "replica": "b", "url": "http://127.0.0.1:8001/metrics"}
    other = {**TARGET, "tier": "new", "replica": "n", "pool": "prefill"}
    limits = {"TargetDown": {"misses": 5.0}}
    given = loaded(tmp_path, targets=[TARGET, second, other], thresholds={"cpu-small": limits})
    contexts = build_tier_contexts(given)
    assert list(contexts) == ["cpu-small", "new"]
    assert contexts["cpu-small"].curve is not None
    assert (contexts["cpu-small"].limits, contexts["new"].plan, contexts["new"].curve) == (limits, None, None)
    assert contexts["cpu-small"].pools == {"127.0.0.1:8000": "mixed", "b": "mixed"}
    assert contexts["new"].pools == {"n": "prefill"}
    assert list(build_tier_contexts(loaded(tmp_path))) == ["cpu-small"]


def test_versions_are_of_planned_tiers(tmp_path: Path) -> None:
    found = plan_versions(loaded(tmp_path, targets=[{**TARGET, "tier": "new"}]))
    assert found == {"cpu-small": plan_version(PLAN.tiers["cpu-small"])}
    assert plan_versions(loaded(tmp_path, planned=False)) == {}
