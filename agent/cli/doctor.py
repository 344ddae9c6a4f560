"""Command `sizewatch doctor`: checks of this installation."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from agent.cli.arguments import BAD_INPUT, add_config, add_format
from agent.config.load import LoadedConfig, find, load
from agent.doctor.check_result import exit_code, format_text
from agent.doctor.run import run_checks
from agent.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    loaded = _loaded(options.config)
    found = run_checks(loaded)
    if options.format == "json":
        print(json.dumps({"schema": 1, "findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        print(format_text(found))
    return BAD_INPUT if isinstance(loaded, ConfigError) else exit_code(found)


def _loaded(given: str | None) -> LoadedConfig | ConfigError:
    """Return the configuration, or its error as the first finding."""
    try:
        return load(find(given))
    except ConfigError as error:
        return error
