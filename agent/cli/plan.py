"""`sizewatch plan check|show|schema|import|init|diff`.

Owns the list of parts. A part that is more than a few lines has a module of its own; a new one is a row of PARTS.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.cli import plan_import, plan_init
from agent.config.files import load_plan
from agent.errors import PlanError
from exporters.documents.plan_diff import plan_diff
from exporters.documents.plan_show import show
from rules.plan.checks import check_plan
from rules.plan.schema import plan_schema

FINE, FINDING = 0, 1


class PlanSubcommand(NamedTuple):
    """One row: its name, what it is for, its arguments, and what it does."""

    name: str
    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = "|".join(part.name for part in PARTS)
    parts = parser.add_subparsers(dest="part", metavar=names, required=True)
    for part in PARTS:
        part.add_arguments(parts.add_parser(part.name, help=part.text, description=_sentence(part.text)))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def run(options: argparse.Namespace) -> int:
    return next(part for part in PARTS if part.name == options.part).run(options)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="sizing plan (YAML or JSON)")


def _add_plan_and_tier(parser: argparse.ArgumentParser) -> None:
    _add_plan(parser)
    parser.add_argument("--tier", metavar="T", help="one tier; default all")


def _add_nothing(_: argparse.ArgumentParser) -> None:
    """The schema needs no argument."""


def _check(options: argparse.Namespace) -> int:
    """A plan with problems raises BadPlan (exit 2). A grave mistake fails the check; what only weakens the plan does not."""
    plan = load_plan(options.plan)
    found = check_plan(plan)
    for finding in found:
        print(f"{finding.severity}: {finding.path}: {finding.text}")
    mistakes = sum(finding.severity == "mistake" for finding in found)
    remarks = len(found) - mistakes
    counted = f"{_count(len(plan.tiers), 'tier')}, {_count(remarks, 'remark')}"
    if mistakes:
        print(
            f"{options.plan}: {_count(mistakes, 'grave mistake')}; correct the plan before anything follows it ({counted})"
        )
        return FINDING
    print(f"{options.plan}: a valid plan of {counted}")
    return FINE


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _show(options: argparse.Namespace) -> int:
    plan = load_plan(options.plan)
    if options.tier is not None and options.tier not in plan.tiers:
        raise PlanError((f"{options.plan}: has no tier {options.tier}; it has {', '.join(plan.tiers)}",))
    names = [options.tier] if options.tier else list(plan.tiers)
    print("\n\n".join(show(plan, name) for name in names))
    return FINE


def _schema(options: argparse.Namespace) -> int:
    json.dump(plan_schema(), sys.stdout, indent=2, ensure_ascii=False)
    print()
    return FINE


def _add_two_plans(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="A", help="one plan")
    parser.add_argument("after", type=Path, metavar="B", help="the other, such as plan.next.yaml")


def _diff(options: argparse.Namespace) -> int:
    changes = plan_diff(load_plan(options.before), load_plan(options.after))
    print("\n".join(changes) or "The plans say the same.")
    return FINDING if changes else FINE


PARTS = (
    PlanSubcommand("check", "every problem of a plan, and what weakens it", _add_plan, _check),
    PlanSubcommand(
        "show", "the curve drawn, with C_max, usable rps and the fleet arithmetic", _add_plan_and_tier, _show
    ),
    PlanSubcommand("schema", "the JSON Schema of plans", _add_nothing, _schema),
    PlanSubcommand(
        "import",
        "a tier's benchmark curve out of the result files of a load generator",
        plan_import.add_arguments,
        plan_import.run,
    ),
    PlanSubcommand(
        "init", "a plan to fill in, from what is running now", plan_init.add_init_arguments, plan_init.run_init
    ),
    PlanSubcommand("diff", "what changed between two plans, in words, and what it costs", _add_two_plans, _diff),
)
