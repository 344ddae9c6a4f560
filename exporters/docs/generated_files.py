"""Map of committed generated files to their render functions.

`agent.cli.render` reads and writes the files. This package must not import the agent, so the agent's command line and
configuration keys come in as RenderInputs. A new file is a function in its own module and a row of ARTEFACTS.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.alertmanager.sample_config import alertmanager_text
from exporters.docs.command_pages import commands_page, configuration_page
from exporters.docs.runbooks import fill_runbooks
from exporters.docs.signal_pages import engines_page, signals_page
from exporters.grafana.files import FILES as GRAFANA
from exporters.grafana.files import config_maps_text
from exporters.prometheus_rules.alerts import alerts_text, objects_text
from exporters.prometheus_rules.recording_rules import recording_text
from exporters.report.records import report_schema
from rules.plan.schema import plan_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """Inputs from the agent: the JSON Schema of the configuration, and the whole command line."""

    config_schema: Mapping[str, Any]
    parser: argparse.ArgumentParser


Render = Callable[[RenderInputs, str], str]
"""Function from the inputs and the present text of the file ("" if missing) to its new text.

Only a hand-written page with generated blocks depends on the present text.
"""

ARTEFACTS: Mapping[str, Render] = {
    "docs/plan.schema.json": lambda sources, _: schema_text(plan_schema()),
    "docs/report.schema.json": lambda sources, _: schema_text(report_schema()),
    "docs/config.schema.json": lambda sources, _: schema_text(sources.config_schema),
    "docs/configuration.md": lambda sources, _: configuration_page(sources.config_schema),
    "docs/commands.md": lambda sources, _: commands_page(sources.parser),
    "docs/engines.md": lambda sources, _: engines_page(),
    "docs/signals.md": lambda sources, _: signals_page(),
    "docs/runbooks.md": lambda sources, present: fill_runbooks(present),
    "rules/prometheus/sizewatch-alerts.yaml": lambda sources, _: alerts_text(),
    "rules/prometheus/sizewatch-recording.yaml": lambda sources, _: recording_text(),
    "rules/prometheus/prometheusrule.yaml": lambda sources, _: objects_text(),
    "rules/prometheus/alertmanager.sample.yaml": lambda sources, _: alertmanager_text(),
    # Copies: a chart reads only files of its own folder.
    "deploy/chart/sizewatch/files/sizewatch-alerts.yaml": lambda sources, _: alerts_text(),
    "deploy/chart/sizewatch/files/sizewatch-recording.yaml": lambda sources, _: recording_text(),
    "deploy/chart/sizewatch/files/dashboards.yaml": lambda sources, _: config_maps_text(),
    **{path: lambda *_, text=text: text() for path, text in GRAFANA.items()},
}
"""Render functions by path from the root of the repository."""


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as published."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
