"""Map of committed generated files to their render functions.

`agent.cli.render` reads and writes the files. This package must not import the agent, so the agent's command line and
configuration keys come in as RenderInputs. A new file is a function in its own module and a row of ARTEFACTS.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from exporters.docs.reference_pages import (
    commands_page,
    configuration_page,
    engines_page,
    list_contexts,
    signals_page,
    walk_schema,
)
from exporters.docs.runbooks import fill_runbooks
from exporters.documents.calibration import calibration_schema
from exporters.grafana.dashboards import FILES as GRAFANA
from exporters.metrics import names
from exporters.prometheus_rules.alerts import alerts_text
from exporters.report.records import report_schema
from rules.catalogue.registry import RULES
from rules.plan.schema import plan_schema
from rules.telemetry.signals import SIGNALS, Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """Inputs from the agent: the JSON Schema of the configuration, the whole command line, and the page's address for alerts."""

    config_schema: Mapping[str, Any]
    command_line: click.Group
    external_url: str = ""


Render = Callable[[RenderInputs, str], str]
"""Function from the inputs and the present text of the file ("" if missing) to its new text."""

ARTEFACTS: Mapping[str, Render] = {
    "docs/plan.schema.json": lambda sources, _: schema_text(plan_schema()),
    "docs/calibration.schema.json": lambda sources, _: schema_text(calibration_schema()),
    "docs/report.schema.json": lambda sources, _: schema_text(report_schema()),
    "docs/config.schema.json": lambda sources, _: schema_text(sources.config_schema),
    "docs/public-surface.json": lambda sources, present: surface_text(public_surface(sources), present),
    "docs/configuration.md": lambda sources, _: configuration_page(sources.config_schema),
    "docs/commands.md": lambda sources, _: commands_page(sources.command_line),
    "docs/engines.md": lambda sources, _: engines_page(),
    "docs/signals.md": lambda sources, _: signals_page(),
    "docs/runbooks.md": lambda sources, present: fill_runbooks(present),
    "rules/prometheus/sizewatch-alerts.yaml": lambda sources, _: alerts_text(sources.external_url),
    # Copies: a chart reads only files of its own folder.
    "deploy/chart/sizewatch/files/sizewatch-alerts.yaml": lambda sources, _: alerts_text(sources.external_url),
    **{path: lambda *_, text=text: text() for path, text in GRAFANA.items()},
}
"""Render functions by path from the root of the repository."""


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as published."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def public_surface(inputs: RenderInputs) -> dict[str, list[str]]:
    """Return every name that other people's programs may rely on, by kind, sorted.

    A metric has its labels, a command its options. Keys are dotted paths. The JSON that commands print is not here:
    a test takes its keys from real output.
    """
    metrics = [f"{metric.name}{{{','.join(metric.labels)}}}" for metric in names.ALL]
    # Every command has --help; it is listed once.
    commands = [f"{inputs.command_line.name} --help"]
    for context in list_contexts(inputs.command_line):
        options = itertools.chain.from_iterable(parameter.opts for parameter in context.command.params)
        commands.append(context.command_path)
        commands += [f"{context.command_path} {option}" for option in options if option.startswith("--")]
    mapping = {
        "calibration": _keys(calibration_schema()),
        "commands": commands,
        "configuration": _keys(inputs.config_schema),
        "gaps": [gap.value for gap in Gap],
        "metrics": metrics,
        "plan": _keys(plan_schema()),
        "report.json": _keys(report_schema()),
        "rules": [rule.name for rule in RULES],
        "signals": [signal.name for signal in SIGNALS],
    }
    return {kind: sorted(set(listed)) for kind, listed in mapping.items()}


def surface_text(current: Mapping[str, list[str]], present: str) -> str:
    """Return docs/public-surface.json with the current names added.

    No name is ever taken away here. Who removes one moves it to `removed` by hand, with the version and what to use.
    """
    kept: dict[str, Any] = json.loads(present) if present else {"removed": {}}
    gone = {name for listed in kept["removed"].values() for name in listed}
    for kind, listed in current.items():
        kept[kind] = sorted({*kept.get(kind, ()), *listed} - gone)
    return schema_text(kept)


def _keys(schema: Mapping[str, Any]) -> list[str]:
    return [path for path, _, _ in walk_schema(schema)]
