"""Command `sizewatch replay`: evaluation of a recording, or of the past of a store."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from agent.cli.arguments import CONFIG, FORMAT, PATH, Exit, Parameters, argument, duration, option
from agent.cli.loading import load_config, write_calibration
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.durations import parse_duration
from agent.errors import ConfigError
from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from agent.version import VERSION
from exporters.documents.calibration import CalibrationFile, calibrate, collect_calibrations
from exporters.documents.replay import ReplayResult, replay_json, replay_text
from exporters.render.text import copy_fields
from rules.catalogue.registry import BY_NAME
from rules.plan.load_bins import bin_window, sum_by_bin
from rules.problems import cap_problems
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding

if TYPE_CHECKING:
    from agent.prometheus.api import StoreApi

LONGEST_SECONDS = 91 * 86_400.0
"""Longest range in seconds: the retention of the history."""

TIMEOUT_SECONDS = 60.0
"""Query timeout in seconds. No cycle waits for it."""


def parameters() -> Parameters:
    recording = "folder with recording.yaml and its scrapes; or a store, by --store or -c, and --from"
    when = "ISO 8601, unix seconds, or back from now such as -7d"
    step = "width of the windows that are shown; the judgement does not depend on it"
    return (
        argument("recording", "[RECORDING]", recording, required=False),
        option("--plan", "PLAN", "sizing plan (YAML or JSON); without it nothing is compared", PATH),
        *FORMAT,
        option("--step", "60s", step, duration(), default="60s"),
        option("--store", "URL", "what the Prometheus API of a store without a login is served under, not -c"),
        CONFIG,
        option("--calibration", "FILE", "also write measured / predicted there, by the windows of --step", PATH),
        option("--from since", "TIME", f"{when}; required with a store", moment),
        option("--to until", "TIME", "the same; default now", moment, default="now"),
    )


def run(options: SimpleNamespace) -> int:
    result = _of_store(options) if options.recording is None else _of_recording(options)
    unseen = result.unseen()
    if unseen and not result.cut_short and (result.windows or not result.problems):
        result.problems.append(unseen)
    names = ("name", "start", "end", "contexts", "ended", "rule_states", "windows", "problems", "of_cut_minute")
    shown = ReplayResult(**copy_fields(result, *names), seen=not unseen)
    if options.format == "json":
        print(json.dumps(replay_json(shown), allow_nan=False))
    elif result.windows or options.recording is not None:
        print(replay_text(shown))
    if options.calibration is not None:
        write_calibration(options.calibration, _calibrate(result), "--calibration")
    for problem in cap_problems((result.cut_short, *result.problems)):
        if problem:
            print(f"sizewatch replay: {problem}", file=sys.stderr)
    return _exit_code(result)


def _calibrate(result: Replay) -> CalibrationFile:
    made = []
    for tier, context in result.contexts.items():
        seen = [shown for shown in result.windows if shown.tier == tier and shown.replica is not None]
        bins = sum_by_bin(bin_window(shown.window, context.curve, shown.replica) for shown in seen)
        engine = ""
        if context.plan:
            engine = context.plan.engine
        releases = ", ".join(sorted(set(result.state.of_tier(tier).releases.values())))
        made.append((tier, calibrate(context, f"{engine} {releases}".rstrip(), "", bins)))
    return collect_calibrations(made, time.time(), VERSION)


def _of_recording(options: SimpleNamespace) -> Replay:
    if any(getattr(options, name) is not None for name in ("store", "config", "since")):
        raise ConfigError((f"{options.recording} is a recording: --store, -c and --from are for a store",))
    plan = None
    if options.plan:
        plan = load_plan(options.plan)
    recording, problems = load(options.recording)
    return replay(recording, plan, options.step, problems)


def _of_store(options: SimpleNamespace) -> Replay:
    if (options.store is None) == (options.config is None):
        raise click.UsageError("give a RECORDING, or a store: --store URL or -c FILE")
    from agent.replay.replay import replay_store

    loaded, api = open_store(options)
    since, until = round(options.since, 3), round(options.until, 3)
    with closing(api):
        result = replay_store(loaded, api, since, until, options.step)
    begin = datetime.fromtimestamp(since).astimezone()
    result.name = f"{api.place} from {begin.isoformat(' ', 'seconds')}"
    return result


def _exit_code(result: Replay) -> int:
    if not result.windows or result.cut_short:
        return Exit.CANNOT_JUDGE
    findings = [span for span in result.ended if isinstance(span, Finding)]
    findings += [state.finding for state in result.rule_states if state.finding]
    if any(BY_NAME[finding.rule].severity is not Severity.REPORT for finding in findings):
        return Exit.FINDING
    if result.unseen():
        return Exit.CANNOT_JUDGE
    return Exit.FINE


def moment(text: str) -> float:
    """Return unix seconds: of seconds, ISO 8601 (local without a zone), `now` or a duration ago."""
    try:
        if text.replace(".", "", 1).isdecimal() and len(text) <= 18:
            return float(text)
        if text == "now":
            return time.time()
        if text.endswith(("s", "m", "h", "d", "w")):
            return time.time() - parse_duration(text.removeprefix("-"))
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        example = "2026-11-17T09:00, 2026-11-17T09:00+01:00, unix seconds, now or -7d"
        raise ValueError(f"must be a time such as {example}, not '{text[:40]}'") from None


def open_store(options: SimpleNamespace) -> tuple[LoadedConfig, StoreApi]:
    """Return the tiers and the store of the configuration or of options. Raise ConfigError."""
    # On demand: it imports the HTTP client, which a command on a recording does not need.
    from agent.prometheus.api import StoreApi

    if options.since is None:
        raise ConfigError(("--from is missing",))
    if not 0 < options.until - options.since <= LONGEST_SECONDS:
        raise ConfigError(("--to must be after --from, and at most 91d after it",))
    plan = None
    if options.plan:
        plan = load_plan(options.plan)
    if options.config is None:
        store = {"url": options.store, "timeout": f"{TIMEOUT_SECONDS:g}s"}
        config = parse_config({"role": "fleet", "store": store})
        loaded = LoadedConfig(path=Path("the command line"), config=config, plan=plan, warnings=())
    else:
        loaded = load_config(options)
        loaded = replace(loaded, plan=plan or loaded.plan, warnings=(), mistakes=())
    if loaded.config.store is None:
        raise ConfigError((f"{loaded.path}: store: is missing",))
    if not loaded.config.tiers and not (loaded.plan and loaded.plan.tiers):
        raise ConfigError(("there is no tier: give a plan, or tiers: in the configuration",))
    return loaded, StoreApi(loaded.config.store)
