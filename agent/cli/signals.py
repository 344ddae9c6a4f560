"""Command `sizewatch signals`: table of engines and signals, each known, bounded or not exposed."""

from __future__ import annotations

import argparse
import json

from agent.cli.arguments import FINE, add_format
from agent.errors import ConfigError
from exporters.documents.signal_exposure import engines_json, engines_text
from rules.engines.registry import ENGINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", metavar="NAME", help="one engine, or one generation of it (vllm/v0), with the reason for every gap"
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table. An unknown engine raises ConfigError (exit 2)."""
    wanted = options.engine
    engines = [e for e in ENGINES if wanted in (None, e.name, f"{e.name}/{e.generation}")]
    if not engines:
        known = ", ".join(f"{engine.name}/{engine.generation}" for engine in ENGINES)
        raise ConfigError((f"--engine {wanted}: is none that sizewatch reads; there is {known}",))
    if options.format == "json":
        print(json.dumps(engines_json(engines), indent=2))
    elif wanted is None:
        print(engines_text(engines))
    else:
        print("\n\n".join(engines_text([engine]) for engine in engines))
    return FINE
