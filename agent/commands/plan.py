"""`sizewatch plan check|show|schema`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agent.config_files import load_plan
from agent.errors import BadPlan
from exporters.plan_text import show
from rules.plan import plan_schema
from rules.plan_findings import findings

FINE = 0
PARTS = {
    "check": "every problem of a plan, and what weakens it",
    "show": "the curve drawn, with C_max, usable rps and the fleet arithmetic",
    "schema": "the JSON Schema of plans",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", metavar="check|show|schema", required=True)
    check, shown, _ = (parts.add_parser(name, help=text, description=_sentence(text)) for name, text in PARTS.items())
    for part in (check, shown):
        part.add_argument("plan", type=Path, metavar="PLAN", help="sizing plan (YAML or JSON)")
    shown.add_argument("--tier", metavar="T", help="one tier; default all")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def run(options: argparse.Namespace) -> int:
    return {"check": _check, "show": _show, "schema": _schema}[options.part](options)


def _check(options: argparse.Namespace) -> int:
    """A plan with problems raises BadPlan (exit 2); what only weakens it is told and does not fail the check."""
    plan = load_plan(options.plan)
    found = findings(plan)
    for finding in found:
        print(f"{finding.severity}: {finding.path}: {finding.text}")
    tiers = len(plan.tiers)
    print(f"{options.plan}: a valid plan of {tiers} tier{'s' if tiers != 1 else ''}, {len(found)} remarks")
    return FINE


def _show(options: argparse.Namespace) -> int:
    plan = load_plan(options.plan)
    if options.tier is not None and options.tier not in plan.tiers:
        raise BadPlan((f"{options.plan}: has no tier {options.tier}; it has {', '.join(plan.tiers)}",))
    names = [options.tier] if options.tier else list(plan.tiers)
    print("\n\n".join(show(plan, name) for name in names))
    return FINE


def _schema(options: argparse.Namespace) -> int:
    json.dump(plan_schema(), sys.stdout, indent=2, ensure_ascii=False)
    print()
    return FINE
