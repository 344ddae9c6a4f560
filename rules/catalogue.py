"""The catalogue: one row a rule. The only place where a threshold stands; the rows are in `rules.catalogue_*` by subject.

A row says what is judged, how, against what, how long it must hold, how loud it is, what it means and what to do. The way
of judging is named by `Way` and lives in `rules.judgements` or `rules.scrape_answers`. A rule's name is its `alertname`
and its runbook heading: a public contract. The order is that of answers and of the runbook.
"""

from __future__ import annotations

from rules import (
    catalogue_benchmark,
    catalogue_cache,
    catalogue_configuration,
    catalogue_demand,
    catalogue_errors,
    catalogue_fleet,
    catalogue_guardrails,
    catalogue_hardware,
    catalogue_latency,
    catalogue_memory,
    catalogue_routing,
    catalogue_targets,
    catalogue_workload,
)
from rules.rule import Rule
from rules.rule_names import NAMES

SUBJECTS = (
    catalogue_benchmark,
    catalogue_cache,
    catalogue_configuration,
    catalogue_demand,
    catalogue_errors,
    catalogue_fleet,
    catalogue_guardrails,
    catalogue_hardware,
    catalogue_latency,
    catalogue_memory,
    catalogue_routing,
    catalogue_targets,
    catalogue_workload,
)
"""The modules that hold the rows."""

RULES: tuple[Rule, ...] = tuple(
    sorted((row for subject in SUBJECTS for row in subject.ROWS), key=lambda row: NAMES.index(row.name))
)

BY_NAME = {rule.name: rule for rule in RULES}
