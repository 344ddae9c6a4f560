"""Registry of the rules of all subjects.

A rule's name is its alert name and its heading in the runbook: a public contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rules.catalogue import (
    availability,
    benchmark,
    configuration,
    guardrails,
    hardware,
    memory,
    objectives,
    utilization,
    workload,
)
from rules.plan.replica_count import Margin, margin_from_rule
from rules.thresholds import CatalogueRow
from rules.verdicts.rule import Rule

SUBJECTS = (
    *(benchmark, workload, memory, utilization, objectives),
    *(configuration, guardrails, hardware, availability),
)
"""Modules that hold the rows, in the order of the runbook. A module's rows have the runbook's order too."""

RULES: tuple[Rule, ...] = tuple(row for subject in SUBJECTS for row in subject.ROWS)

BY_NAME = {rule.name: rule for rule in RULES}

CATALOGUE: Mapping[str, CatalogueRow] = {
    **BY_NAME,
    **{row.name: row for row in (benchmark.BATCH_WORK, guardrails.GUARDRAILS)},
}
"""All rows whose thresholds a configuration may override: rules, and rows of checks that have no alert."""


def margin_of(overrides: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> Margin:
    """Return the margin that counts of replicas keep: NoHeadroom's own limits, or the overrides of a tier."""
    return margin_from_rule(BY_NAME["NoHeadroom"], overrides)
