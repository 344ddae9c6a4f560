"""Command `sizewatch doctor`: checks of this installation."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import click

from agent.cli.arguments import BAD_INPUT, CONFIG, FORMAT
from agent.config.load import LoadedConfig, find, load
from agent.doctor.check_result import exit_code, format_text
from agent.doctor.run import run_checks
from agent.errors import ConfigError


def parameters() -> tuple[click.Parameter, ...]:
    return CONFIG, *FORMAT


def run(options: SimpleNamespace) -> int:
    loaded = _loaded(options.config)
    results = run_checks(loaded)
    if options.format == "json":
        print(json.dumps({"schema": 1, "findings": [asdict(finding) for finding in results]}, indent=2))
    else:
        print(format_text(results))
    return BAD_INPUT if isinstance(loaded, ConfigError) else exit_code(results)


def _loaded(given: str | None) -> LoadedConfig | ConfigError:
    """Return the configuration, or its error as the first finding."""
    try:
        return load(find(given))
    except ConfigError as error:
        return error
