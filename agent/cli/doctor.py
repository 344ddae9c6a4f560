"""Command `sizewatch doctor`: checks of this installation, or a first look at the engines of some addresses."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import click

from agent.cli.arguments import (
    BAD_INPUT,
    CANNOT_JUDGE,
    CONFIG,
    FINDING,
    FINE,
    FORMAT,
    connection_options,
    duration,
    option,
    print_result,
    ways_in,
)
from agent.cli.inspect import read_page_body
from agent.cli.terminal import tell_progress
from agent.config.load import LoadedConfig, find, load
from agent.doctor.check_result import exit_code, format_text
from agent.doctor.run import run_checks
from agent.errors import ConfigError
from agent.http_client.errors import place_of
from exporters.documents.diagnosis import EngineDiagnosis, TierLook, diagnosis_json, diagnosis_text
from exporters.render.text import format_duration
from rules.catalogue.registry import BY_NAME
from rules.telemetry.wording import number
from rules.verdicts.rule import Severity

TTFT, TPOT = "2s", "90ms"
"""Objectives that nobody gave: guide 8.3 sizes for a TTFT P99 of 2 s; a fast reader takes a token every 90 ms (guide 1.4)."""


def parameters() -> tuple[click.Parameter, ...]:
    places = "engines to look at: http://HOST:PORT/metrics, HOST:PORT, or one or two saved pages of one engine"
    how_long = "how long to look; for saved pages, how far they are apart"
    return (
        click.Argument(["url"], nargs=-1, metavar="[URL]...", help=places),
        option("--for seconds", "15s", f"{how_long}, 5s to 1h (default 15s)", duration(5, 3600), default="15s"),
        option("--ttft", TTFT, f"objective of the TTFT P99 (default {TTFT})", duration(), default=TTFT),
        option("--tpot", TPOT, f"objective of the TPOT P99 (default {TPOT})", duration(), default=TPOT),
        *connection_options("the addresses"),
        CONFIG,
        *FORMAT,
    )


def run(options: SimpleNamespace) -> int:
    """Look at engines, or without an address check the installation."""
    if options.url:
        return _look(options)
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


def _look(options: SimpleNamespace) -> int:
    # On demand: a check of the installation needs no evaluation.
    from agent.doctor.engine_pages import Objectives, find_engines, look_at_engines, look_at_files

    seconds, objectives = options.seconds, Objectives(ttft=options.ttft, tpot=options.tpot)
    files = [Path(place) for place in options.url if place and "://" not in place and os.path.exists(place)]
    problems: tuple[str, ...] = ()
    looks: tuple[TierLook, ...] = ()
    if files:
        if len(files) < len(options.url) or len(files) > 2:
            raise ConfigError(("give addresses, or one or two saved pages of one engine",))
        bodies = [read_page_body(options, str(path)) for path in files]
        looks = look_at_files(files, bodies, seconds, objectives)
    else:
        engines, problems = find_engines(options.url, ways_in(options))
        if engines:
            show = lambda share: tell_progress(share, f"looking for {format_duration(seconds)}")  # noqa: E731
            looks = look_at_engines(engines, ways_in(options), seconds, objectives, show)
    words = [number(value, "seconds") for value in (objectives.ttft, objectives.tpot)]
    # The query of an address may be a secret.
    where = "URL" if files else " ".join(shlex.quote(place_of(url) if "://" in url else url) for url in options.url)
    diagnosis = EngineDiagnosis(
        looks=looks,
        problems=problems,
        objectives=f"Objectives: TTFT P99 {words[0]}, TPOT P99 {words[1]}; others with --ttft and --tpot.",
        longer=f"sizewatch doctor {where} --for 5m",
        next_command="sizewatch init --run (a configuration and a plan from the engines of this machine)",
    )
    print_result(options, diagnosis_json(diagnosis), diagnosis_text(diagnosis))
    if not any(look.signals for look in looks):
        return CANNOT_JUDGE
    if any(look.troubles for look in looks):
        return FINDING
    verdicts = (verdict for look in looks for verdict in look.verdicts)
    return FINDING if any(BY_NAME[verdict.rule].severity is not Severity.REPORT for verdict in verdicts) else FINE
