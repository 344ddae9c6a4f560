"""promtool run by tests: rule files checked and unit-tested at times that no test has to wait for."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tools import run_words, tool

from exporters.render.text import alert_name

STEP = "15s"
"""How far apart the samples of a series stand, and how often rules are evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Series in promtool's notation, and what must hold: alerts at times, and values of expressions at times."""

    series: Mapping[str, str]
    alerts: Iterable[tuple[str, str, list[dict[str, Any]]]] = ()
    values: Iterable[tuple[str, str, float]] = ()
    name: str = field(default="")


def complaints(*files: Path) -> str:
    """What promtool's linter says of rule files; empty where nothing."""
    ran = run_words([tool("promtool"), "check", "rules", "--lint-fatal", *files])
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr or "promtool failed without a word"


def differences(folder: Path, rules: Path | None, cases: Iterable[Case]) -> str:
    """What promtool's own unit tests over a rule file, or over none, find otherwise; empty where nothing."""
    file = folder / "unit-tests.yaml"
    tests = {
        "rule_files": [str(rules.absolute())] if rules else [],
        "evaluation_interval": STEP,
        "tests": [_test(one) for one in cases],
    }
    file.write_text(json.dumps(tests, indent=1), encoding="utf-8")
    ran = run_words([tool("promtool"), "test", "rules", file])
    return "" if ran.returncode == 0 else (ran.stdout + ran.stderr)[-6000:] or "promtool failed without a word"


def narrowed(folder: Path, rules: Path, *alerts: str) -> Path:
    """The rule file with some alerts alone: so much quicker to test."""
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    wanted = [row for group in groups for row in group["rules"] if row["alert"] in map(alert_name, alerts)]
    file = folder / f"{alerts[0]}.yaml"
    file.write_text(json.dumps({"groups": [{"name": alerts[0], "rules": wanted}]}), encoding="utf-8")
    return file


def firing(alert: str, **labels: str) -> str:
    """An expression for how many alerts of a name fire: 0 where none does."""
    own = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f'count(ALERTS{{alertname="{alert_name(alert)}",alertstate="firing"{own}}}) or vector(0)'


def _test(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "interval": STEP,
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": when, "alertname": alert_name(alert), "exp_alerts": expected}
            for when, alert, expected in case.alerts
        ],
        "promql_expr_test": [
            {"eval_time": when, "expr": expr, "exp_samples": [{"labels": "{}", "value": value}]}
            for when, expr, value in case.values
        ],
    }
