"""The catalogue: one row a rule. The only place where a threshold stands; the rows are in `rules.catalogue` by subject.

A row says what is judged, how, against what, how long it must hold, how loud it is, what it means and what to do. The way
of judging is named by `Way` and lives in `rules.evaluator.judgements` or `rules.methods.availability`. A rule's name is its
`alertname` and its runbook heading: a public contract. The order is that of answers and of the runbook.
"""

from __future__ import annotations

from rules.catalogue import (
    benchmark,
    catalogue_cache,
    catalogue_demand,
    catalogue_guardrails,
    catalogue_targets,
    configuration,
    errors,
    fleet,
    hardware,
    latency,
    memory,
    routing,
    workload,
)
from rules.catalogue.rule_names import NAMES
from rules.verdicts.rule import Rule

SUBJECTS = (
    benchmark,
    catalogue_cache,
    configuration,
    catalogue_demand,
    errors,
    fleet,
    catalogue_guardrails,
    hardware,
    latency,
    memory,
    routing,
    catalogue_targets,
    workload,
)
"""The modules that hold the rows."""

RULES: tuple[Rule, ...] = tuple(
    sorted((row for subject in SUBJECTS for row in subject.ROWS), key=lambda row: NAMES.index(row.name))
)

BY_NAME = {rule.name: rule for rule in RULES}
