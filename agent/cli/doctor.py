"""Command `sizewatch doctor`: checks of this installation, or a first look at the engines of some addresses."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from agent.cli import arguments as cli
from agent.cli.inspect import read_page_body
from agent.cli.terminal import tell_progress
from agent.config.files import is_absent
from agent.config.load import LoadedConfig, find, load
from agent.doctor.check_result import exit_code, format_text
from agent.doctor.run import run_checks
from agent.errors import ConfigError
from agent.http_client.client import place_of
from exporters.documents.diagnosis import EngineDiagnosis, TierLook, diagnosis_json, diagnosis_text
from rules.catalogue.registry import BY_NAME
from rules.replicas.state import BRIDGE_SECONDS
from rules.telemetry.wording import format_duration, number
from rules.verdicts.rule import Severity

if TYPE_CHECKING:
    from agent.doctor.engine_pages import Objectives

ARCHETYPES: Mapping[str, tuple[float | None, float | None, str]] = {
    "chat": (2.0, 0.09, "guide 8.3 and 1.4; the first word matters most"),
    "rag": (2.0, 0.09, "guide 8.3 and 1.4; TTFT breaks first"),
    "code": (2.0, 0.09, "guide 8.3 and 1.4; TPOT matters most"),
    "agentic": (2.0, 0.09, "guide 8.3 and 1.4; the steps of a session add up"),
    "batch": (None, None, "guide 1.4; nobody waits"),
}
"""Objectives of TTFT and TPOT P99 in seconds that nobody gave, with their source.

Guide 8.3 sizes for a TTFT of 2 s; a fast reader takes a token every 90 ms (guide 1.4). It has no other number for an
archetype, but that batch has none.
"""


def parameters() -> cli.Parameters:
    places = "engines to look at: http://HOST:PORT/metrics, HOST:PORT, or one or two saved pages of one engine"
    kind = "kind of traffic, whose objectives are those of the guide (default chat)"
    how_long = "how long to look; for saved pages, how far they are apart, at most 5m"
    return (
        cli.argument("url", "[URL]...", places, str, nargs=-1),
        cli.option("--for seconds", "15s", f"{how_long}, 5s to 1h (default 15s)", cli.duration(5, 3600), default="15s"),
        cli.choice("--archetype", ARCHETYPES, "chat", kind),
        cli.option("--ttft", "DURATION", "objective of the TTFT P99 (default by --archetype)", cli.duration()),
        cli.option("--tpot", "DURATION", "objective of the TPOT P99 (default by --archetype)", cli.duration()),
        *cli.connection_options("the addresses"),
        cli.CONFIG,
        *cli.FORMAT,
    )


def run(options: SimpleNamespace) -> int:
    """Look at engines, or without an address check the installation."""
    if options.url:
        return _look(options)
    loaded: LoadedConfig | ConfigError
    try:
        loaded = load(find(options.config))
    except ConfigError as error:
        # It is the first finding.
        loaded = error
    results = run_checks(loaded)
    if options.format == "json":
        print(json.dumps({"schema": 1, "findings": list(map(asdict, results))}, indent=2))
    else:
        print(format_text(results))
    if isinstance(loaded, ConfigError):
        return cli.Exit.BAD_INPUT
    return exit_code(results)


def _look(options: SimpleNamespace) -> int:
    # On demand: a check of the installation needs no evaluation.
    from agent.doctor.engine_pages import Objectives, find_pages, look_at_engines, look_at_files

    if options.config is not None:
        raise ConfigError(("give addresses, which need no configuration, or -c, whose installation is checked",))
    ttft, tpot, source = ARCHETYPES[options.archetype]
    seconds = options.seconds
    objectives = Objectives(ttft=options.ttft or ttft, tpot=options.tpot or tpot)
    files = [Path(place) for place in options.url if place and "://" not in place and not is_absent(Path(place))]
    problems: tuple[str, ...] = ()
    looks: tuple[TierLook, ...] = ()
    where = engines = "URL"
    if files:
        if len(files) < len(options.url) or len(files) > 2:
            # A password may stand before the host.
            missing = [f"{place.rpartition('@')[2]!r}: no file" for place in options.url if is_absent(Path(place))]
            text = "give addresses, or one or two saved pages of one engine"
            raise ConfigError((*(name for name in missing if "://" not in name), text))
        bodies = [read_page_body(options, str(path)) for path in files]
        if len(bodies) > len(set(bodies)):
            text = f"{files[0]} and {files[1]} are the same page"
            raise ConfigError((f"{text}: save the second one 15 s after the first; if so, the engine did nothing",))
        if len(bodies) > 1 and seconds > BRIDGE_SECONDS:
            text = "pages that are further apart do not tell what happened when; save two within 5 min"
            raise ConfigError((f"--for {format_duration(seconds)}: {text}",))
        looks = look_at_files(files, bodies, seconds, objectives)
        if len(bodies) > 1:
            print(f"The pages count as {format_duration(seconds)} apart (--for): all rates follow.", file=sys.stderr)
    else:
        pages = find_pages(options.url, cli.ways_in(options))
        problems = pages.problems
        # The query of an address may be a secret.
        where = " ".join(shlex.quote(place_of(url) if "://" in url else url) for url in pages.places)
        engines = " ".join(shlex.quote(place_of(probe.url)) for probe in pages.engines)
        if pages.engines:
            show = partial(tell_progress, note=f"looking for {format_duration(seconds)}")
            looks = look_at_engines(pages, cli.ways_in(options), seconds, objectives, show)
    next_command = f"sizewatch init --run {engines} (a configuration and a plan from these engines)"
    if any(cli.ways_in(options).values()):
        next_command = "sizewatch init with the same options and addresses (a configuration and a plan)"
    diagnosis = EngineDiagnosis(
        looks=looks,
        problems=problems,
        objectives=_describe_objectives(objectives, options, source),
        longer=f"sizewatch doctor {where} --for 5m",
        next_command=next_command,
    )
    cli.print_result(options, diagnosis_json(diagnosis), diagnosis_text(diagnosis))
    if not any(look.signals for look in looks):
        return cli.Exit.CANNOT_JUDGE
    rules = [BY_NAME[verdict.rule] for look in looks for verdict in look.verdicts]
    if any(look.troubles for look in looks) or any(rule.severity is not Severity.REPORT for rule in rules):
        return cli.Exit.FINDING
    # An engine that gave no page may be the one that is in trouble.
    if problems:
        return cli.Exit.CANNOT_JUDGE
    return cli.Exit.FINE


def _describe_objectives(objectives: Objectives, options: SimpleNamespace, source: str) -> str:
    words = []
    for name, seconds in (("TTFT", objectives.ttft), ("TPOT", objectives.tpot)):
        words.append(f"{name} P99 {'none' if seconds is None else number(seconds, 'seconds')}")
    text = f"Objectives: {', '.join(words)}"
    if options.ttft and options.tpot:
        return f"{text}, as given."
    return f"{text}, for {options.archetype} ({source}); others with --archetype, --ttft, --tpot."
