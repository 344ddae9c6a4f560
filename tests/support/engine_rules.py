"""The rule file of engines without an agent, for a small tier's plan, as tests of it need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from judging_samples import tier

from exporters.prometheus_rules.engine_only import EngineRulesOptions, engine_only_text
from rules.plan.schema import Plan

SELECTOR = 'tier="{tier}"'


def plan(**parts: Any) -> Plan:
    """The tier of judging_samples with objectives of 2 s and 0.08 s and a planned hit rate; `parts` replace."""
    slo = {"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.08}
    whole = tier(**{"slo": slo, "workload": {"prefix_hit_ratio": 0.6}, **parts}).model_dump(
        mode="json", exclude_none=True
    )
    return Plan.model_validate({"schema": 1, "tiers": {"t": whole}})


def written(folder: Path, **parts: Any) -> Path:
    """The file, found by target labels."""
    file = folder / "rules.yaml"
    file.write_text(
        engine_only_text(EngineRulesOptions(plan=plan(**parts), source="plan.yaml", selector=SELECTOR)),
        encoding="utf-8",
    )
    return file
