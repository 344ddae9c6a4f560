"""Registry of the rules: rows of the TOML files in this folder, each read once.

A table of a file is a rule, with the keys of `Rule`. Its name is its alert name and its heading in the runbook: a public
contract. `method` is a module of `rules.methods` and its function. A threshold is [value, unit, source]. `like` takes
missing keys from a rule above. Thresholds and actions of several rules are in `shared.toml`, by their key. A value that
code needs too is the path of its constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import chain
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rules.methods.burn_rate import judge_burn
from rules.plan.replica_count import Margin, margin_from_rule
from rules.tables import freeze, read_table, table_path
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.thresholds import CatalogueRow, Threshold
from rules.verdicts.rule import Rule

SUBJECTS = (
    *("benchmark", "workload", "memory", "utilization", "objectives"),
    *("configuration", "guardrails", "hardware", "availability"),
)
"""Files of rules, in the order of the runbook. A file's rules have the runbook's order too."""

_RULE, _THRESHOLDS = TypeAdapter(Rule), TypeAdapter(CatalogueRow)
_SHARED = read_table("rules.catalogue", "shared")

ACTIONS: Mapping[str, str] = {key: " ".join(text.split()) for key, text in _SHARED["actions"].items()}
"""Actions that several rules name, by their key."""


def load_rows(subject: str) -> tuple[CatalogueRow, ...]:
    """Return the rows of a file in this folder. Raise ValueError, with file, row and key, for what is no row."""
    tables: dict[str, dict[str, Any]] = {}
    rows = []
    for name, own in read_table("rules.catalogue", subject).items():
        try:
            alike = own.pop("like", None)
            if alike is not None and alike not in tables:
                raise ValueError(f"like: {alike} is no rule above it")
            base = tables.get(alike, {})
            tables[name] = {**base, **own, "thresholds": {**base.get("thresholds", {}), **own.get("thresholds", {})}}
            rows.append(_load_row(name, tables[name]))
        except ValidationError as error:
            text = "; ".join(f"{entry['loc'][0]}: {entry['msg']}" for entry in error.errors())
            raise ValueError(f"{table_path('rules.catalogue', subject)}: {name}: {text}") from error
        except ValueError as error:
            raise ValueError(f"{table_path('rules.catalogue', subject)}: {name}: {error}") from error
    return tuple(rows)


def _load_row(name: str, table: Mapping[str, Any]) -> CatalogueRow:
    """Return a rule, or a row of thresholds where no method is named. A rule with levers takes all their actions."""
    row = {**table, "name": name}
    row["thresholds"] = {key: _load_threshold(key, value) for key, value in table["thresholds"].items()}
    if "method" not in row:
        return _THRESHOLDS.validate_python(row)
    row["method"] = _find_constant(f"methods.{row['method']}")
    row["meaning"] = " ".join(row.get("meaning", "").split())
    row["levers"] = {pattern: _list_actions(keys) for pattern, keys in row.get("levers", {}).items()}
    row["actions"] = tuple(dict.fromkeys(chain(_list_actions(row.get("actions", ())), *row["levers"].values())))
    rule = _RULE.validate_python(row)
    if rule.signal not in SIGNALS and rule.signal not in ("coverage", rule.family):
        raise ValueError(f"signal: {rule.signal} is no row of rules/telemetry/signals.toml")
    return rule


def _load_threshold(key: str, value: Any) -> Threshold:
    """Return the threshold of a row, or the shared one that it names."""
    parts = _SHARED["thresholds"].get(value) if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) != 3:
        raise ValueError(f"thresholds.{key}: is no [value, unit, source] and no threshold of shared.toml: {value}")
    number, unit, source = parts
    return Threshold(_find_constant(number) if isinstance(number, str) else number, unit, source)


def _list_actions(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(ACTIONS.get(key, key) for key in keys)


def _find_constant(path: str) -> Any:
    """Return what a path below `rules` names: a method, or a number that code needs without a catalogue."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(f"rules.{module}"), name)
    except (AttributeError, ImportError) as error:
        raise ValueError(f"{path}: is no MODULE.NAME below rules ({error})") from error


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

REMEDIES: Mapping[str, str] = freeze(_SHARED["remedies"])
"""What to do first against late tokens or refusals, by their first cause."""


def margin_of(overrides: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> Margin:
    """Return the margin that counts of replicas keep: NoHeadroom's own limits, or the overrides of a tier."""
    return margin_from_rule(BY_NAME["NoHeadroom"], overrides)
