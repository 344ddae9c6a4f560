"""Command `sizewatch replay`: evaluation of a recording, or of the past of a store."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import click

from agent.cli.arguments import CANNOT_JUDGE, FINDING, FINE, FORMAT, PATH, duration, option
from agent.cli.store_arguments import OF_PROMETHEUS, OF_SERIES, open_store_query, store_options
from agent.config.files import load_plan
from agent.errors import ConfigError
from agent.replay.replay import ReplayResult, replay
from agent.sources.recording import load
from exporters.documents.replay import not_exposed_text, replay_json, replay_text
from rules.catalogue.registry import BY_NAME
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity

OF_A_STORE = ("prometheus", "config", "tier", "since", *OF_SERIES, *OF_PROMETHEUS)


def parameters() -> tuple[click.Parameter, ...]:
    recording = "folder with recording.yaml and its scrapes; or a store, by --prometheus or -c, and --from"
    plan = "sizing plan (YAML or JSON); without it nothing is compared"
    step = "width of the windows that are shown; the judgement does not depend on it"
    return (
        click.Argument(["recording"], required=False, type=PATH, metavar="[RECORDING]", help=recording),
        click.Option(["--plan"], type=PATH, metavar="PLAN", help=plan),
        *FORMAT,
        click.Option(["--step"], type=duration(), default="60s", metavar="60s", help=step),
        *store_options(),
    )


def run(options: SimpleNamespace) -> int:
    result = _of_store(options) if options.recording is None else _of_recording(options)
    unseen = result.unseen()
    if unseen and (result.windows or not result.problems):
        result = replace(result, problems=(*result.problems, unseen))
    if options.format == "json":
        shown = [(window.tier, window.replica, window.window) for window in result.windows]
        bases = {tier: context.basis for tier, context in result.contexts.items()}
        states, problems, cut = result.rule_states, result.problems, result.of_cut_minute
        print(json.dumps(replay_json(shown, bases, result.ended, states, problems, cut), allow_nan=False))
    elif result.windows or options.recording is not None:
        print(
            replay_text(
                result.name,
                result.start,
                result.end,
                result.contexts,
                result.ended,
                result.rule_states,
                seen=not unseen,
                of_cut_minute=result.of_cut_minute,
            )
        )
        if missing := not_exposed_text(result.engines, result.total_by_tier()):
            print(missing)
    for problem in (*result.problems, result.cut_short):
        if problem:
            print(f"sizewatch replay: {problem}", file=sys.stderr)
    return _exit_code(result)


def _of_recording(options: SimpleNamespace) -> ReplayResult:
    for name in OF_A_STORE:
        if getattr(options, name) is not None:
            raise ConfigError((f"{options.recording} is a recording: {option(name)} is for a store",))
    plan = load_plan(options.plan) if options.plan else None
    recording, problems = load(options.recording)
    return replay(recording, plan, options.step, problems)


def _of_store(options: SimpleNamespace) -> ReplayResult:
    if options.prometheus is None and options.config is None:
        raise click.UsageError("give a RECORDING, or a store: --prometheus URL or -c FILE")
    query = open_store_query(options)
    from agent.replay.replay import replay_store

    with closing(query.api):
        result = replay_store(query.loaded, query.api, query.since, query.until, options.step, options.tier)
    begin = datetime.fromtimestamp(query.since).astimezone()
    return replace(result, name=f"{query.api.place} from {begin.isoformat(' ', 'seconds')}")


def _exit_code(result: ReplayResult) -> int:
    """Return the exit code. Findings with severity report are not counted."""
    if not result.windows or result.cut_short:
        return CANNOT_JUDGE
    findings = [span for span in result.ended if isinstance(span, Finding)]
    findings += [state.finding for state in result.rule_states if state.finding]
    if any(BY_NAME[finding.rule].loudness is not Severity.REPORT for finding in findings):
        return FINDING
    return CANNOT_JUDGE if result.unseen() else FINE
