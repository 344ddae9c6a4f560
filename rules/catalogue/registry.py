"""Registry of the rules: rows of the TOML files in this folder, each read once.

A table of a file is a rule, with the keys of `Rule`. Its name is its alert name and its heading in the runbook: a public
contract. Three things are shorter than in `Rule`: `method` is a module of `rules.methods` and its function, a threshold is
[value, unit, source], and `like` takes the keys of a rule above it that the rule has not itself. What several rules name
is in `shared.toml`: thresholds and actions by their key. A value that code needs too is the path of its constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import chain
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from rules.methods.burn_rate import judge_burn
from rules.plan.replica_count import Margin, margin_from_rule
from rules.tables import freeze, read_table
from rules.thresholds import CatalogueRow, Threshold
from rules.verdicts.rule import Rule

SUBJECTS = (
    *("benchmark", "workload", "memory", "utilization", "objectives"),
    *("configuration", "guardrails", "hardware", "availability"),
)
"""Files of rules, in the order of the runbook. A file's rules have the runbook's order too."""

_RULE = TypeAdapter(Rule)
_SHARED = read_table("rules.catalogue", "shared")

ACTIONS: Mapping[str, str] = {key: " ".join(text.split()) for key, text in _SHARED["actions"].items()}
"""Actions that several rules name, by their key."""


def load_rows(subject: str) -> tuple[CatalogueRow, ...]:
    """Return the rows of a file in this folder. Raise ValueError, with file and row, for what is no row."""
    tables: dict[str, dict[str, Any]] = {}
    rows = []
    for name, own in read_table("rules.catalogue", subject).items():
        try:
            base = tables[own.pop("like")] if "like" in own else {}
            tables[name] = {**base, **own, "thresholds": {**base.get("thresholds", {}), **own.get("thresholds", {})}}
            rows.append(_load_row(name, tables[name]))
        except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"rules/catalogue/{subject}.toml: {name}: {error!r}") from error
    return tuple(rows)


def _load_row(name: str, table: Mapping[str, Any]) -> CatalogueRow:
    """Return a rule, or a row of thresholds where no method is named. A rule with levers takes all their actions."""
    row = {**table, "name": name, "thresholds": {key: _threshold(value) for key, value in table["thresholds"].items()}}
    if "method" not in row:
        return CatalogueRow(**row)
    levers = {pattern: _actions(keys) for pattern, keys in table.get("levers", {}).items()}
    actions = dict.fromkeys(chain(_actions(table["actions"]), *levers.values()))
    texts = {"meaning": " ".join(table["meaning"].split()), "actions": tuple(actions), "levers": levers}
    return _RULE.validate_python({**row, **texts, "method": _constant(f"methods.{table['method']}")})


def _threshold(value: Any) -> Threshold:
    """Return the threshold of a row, or the shared one that it names."""
    number, unit, source = _SHARED["thresholds"][value] if isinstance(value, str) else value
    return Threshold(_constant(number) if isinstance(number, str) else number, unit, source)


def _actions(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(ACTIONS.get(key, key) for key in keys)


def _constant(path: str) -> Any:
    """Return what a path below `rules` names: a method, or a number that code needs without a catalogue."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"rules.{module}"), name)


RULES = tuple(row for subject in SUBJECTS for row in load_rows(subject) if isinstance(row, Rule))

BY_NAME = {rule.name: rule for rule in RULES}

_CHECKS = load_rows("checks")

BATCH_WORK = next(row for row in _CHECKS if isinstance(row, Rule))
"""Row by which a check confirms a batch tier. It is no rule of the agent, so it has no alert."""

CATALOGUE: Mapping[str, CatalogueRow] = {**BY_NAME, **{row.name: row for row in _CHECKS}}
"""All rows whose thresholds a configuration may override: rules, and rows of checks that have no alert."""

BURNS = tuple(rule.name for rule in RULES if rule.method is judge_burn)
"""Rules of latency objectives."""

SUSPECTED: Mapping[str, tuple[str, ...]] = freeze(_SHARED["suspected"])
"""Rules that find what a suspected cause of a symptom names."""


def margin_of(overrides: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> Margin:
    """Return the margin that counts of replicas keep: NoHeadroom's own limits, or the overrides of a tier."""
    return margin_from_rule(BY_NAME["NoHeadroom"], overrides)
