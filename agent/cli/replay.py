"""Command `sizewatch replay`: evaluation of a recording, or of the past of a store."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import click

from agent.cli.arguments import CANNOT_JUDGE, FINDING, FINE, FORMAT, PATH, duration
from agent.cli.store_arguments import OF_PROMETHEUS, OF_SERIES, open_store_query, store_options
from agent.config.files import load_plan
from agent.errors import ConfigError
from agent.replay.replay import ReplayResult, replay
from agent.sources.recording import load
from exporters.documents.replay import not_exposed_text, replay_json, replay_text
from rules.catalogue.registry import BY_NAME
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity

OF_A_STORE = ("tier", "since", *OF_SERIES, *OF_PROMETHEUS)


def parameters() -> tuple[click.Parameter, ...]:
    return (
        click.Argument(
            ["recording"],
            required=False,
            type=PATH,
            metavar="[RECORDING]",
            help="folder with recording.yaml and its scrapes; or a store, by --prometheus or -c, and --from",
        ),
        click.Option(
            ["--plan"], type=PATH, metavar="PLAN", help="sizing plan (YAML or JSON); without it nothing is compared"
        ),
        *FORMAT,
        click.Option(
            ["--step"],
            type=duration,
            default="60s",
            metavar="60s",
            help="width of the windows that are shown; the judgement does not depend on it",
        ),
        *store_options(),
    )


def run(options: SimpleNamespace) -> int:
    found = _of_store(options) if options.recording is None else _of_recording(options)
    unseen = found.unseen()
    if unseen and (found.windows or not found.problems):
        found = replace(found, problems=(*found.problems, unseen))
    if options.format == "json":
        shown = [(s.tier, s.replica, s.window) for s in found.windows]
        bases = {tier: context.basis for tier, context in found.contexts.items()}
        document = replay_json(shown, bases, found.ended, found.rule_states, found.problems, found.of_cut_minute)
        print(json.dumps(document, allow_nan=False))
    elif found.windows or options.recording is not None:
        print(
            replay_text(
                found.name,
                found.start,
                found.end,
                found.contexts,
                found.ended,
                found.rule_states,
                seen=not unseen,
                of_cut_minute=found.of_cut_minute,
            )
        )
        if missing := not_exposed_text(found.engines, found.total_by_tier()):
            print(missing)
    for problem in (*found.problems, *(text for text in (found.cut_short,) if text)):
        print(f"sizewatch replay: {problem}", file=sys.stderr)
    return _exit_code(found)


def _of_recording(options: SimpleNamespace) -> ReplayResult:
    given = [name for name in ("prometheus", "config", *OF_A_STORE) if getattr(options, name) is not None]
    if given:
        raise ConfigError((f"{options.recording} is a recording: --{given[0].replace('_', '-')} is for a store",))
    plan = load_plan(options.plan) if options.plan else None
    recording, problems = load(options.recording)
    return replay(recording, plan, options.step, problems)


def _of_store(options: SimpleNamespace) -> ReplayResult:
    if options.prometheus is None and options.config is None:
        raise click.UsageError("give a RECORDING, or a store: --prometheus URL or -c FILE")
    asked = open_store_query(options)
    from agent.replay.replay import replay_store

    with closing(asked.api):
        found = replay_store(asked.loaded, asked.api, asked.since, asked.until, options.step, options.tier)
    begin = datetime.fromtimestamp(asked.since).astimezone()
    return replace(found, name=f"{asked.api.place} from {begin.isoformat(' ', 'seconds')}")


def _exit_code(found: ReplayResult) -> int:
    """Return the exit code. Findings with severity report are not counted."""
    if not found.windows or found.cut_short:
        return CANNOT_JUDGE
    met = [e for e in found.ended if isinstance(e, Finding)] + [s.finding for s in found.rule_states if s.finding]
    if any(BY_NAME[e.rule].loudness is not Severity.REPORT for e in met):
        return FINDING
    return CANNOT_JUDGE if found.unseen() else FINE
