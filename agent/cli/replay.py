"""Command `sizewatch replay`: evaluation of a recording, or of the past of a Prometheus-compatible store."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from agent.cli.arguments import (
    CANNOT_JUDGE,
    CONFIG,
    FINDING,
    FINE,
    FORMAT,
    PATH,
    duration,
    option,
    tier_option,
)
from agent.cli.loading import load_config
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.config.store import StoreConfig
from agent.durations import parse_duration
from agent.errors import ConfigError
from agent.replay.replay import ReplayResult, replay
from agent.sources.recording import load
from exporters.documents.replay import not_exposed_text, replay_json, replay_text
from rules.catalogue.registry import BY_NAME
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity

if TYPE_CHECKING:
    from agent.prometheus.api import StoreApi

LONGEST_SECONDS = 91 * 86_400.0
"""Longest range in seconds: the retention of the history."""

TIMEOUT_SECONDS = 60.0
"""Query timeout in seconds. No cycle waits for it, and pieces are large."""

OF_SERIES = ("selector", "engine")
OF_A_STORE = ("prometheus", "config", "tier", "since", *OF_SERIES)


def parameters() -> tuple[click.Parameter, ...]:
    recording = "folder with recording.yaml and its scrapes; or a store, by --prometheus or -c, and --from"
    step = "width of the windows that are shown; the judgement does not depend on it"
    return (
        click.Argument(["recording"], required=False, type=PATH, metavar="[RECORDING]", help=recording),
        option("--plan", "PLAN", "sizing plan (YAML or JSON); without it nothing is compared", PATH),
        *FORMAT,
        option("--step", "60s", step, duration(), default="60s"),
        *store_options(),
    )


def run(options: SimpleNamespace) -> int:
    result = _of_store(options) if options.recording is None else _of_recording(options)
    unseen = result.unseen()
    if unseen and not result.cut_short and (result.windows or not result.problems):
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
    for problem in (result.cut_short, *result.problems):
        if problem:
            print(f"sizewatch replay: {problem}", file=sys.stderr)
    return _exit_code(result)


def _of_recording(options: SimpleNamespace) -> ReplayResult:
    for name in OF_A_STORE:
        if getattr(options, name) is not None:
            raise ConfigError(
                (f"{options.recording} is a recording: --{'from' if name == 'since' else name} is for a store",)
            )
    plan = load_plan(options.plan) if options.plan else None
    recording, problems = load(options.recording)
    return replay(recording, plan, options.step, problems)


def _of_store(options: SimpleNamespace) -> ReplayResult:
    if options.prometheus is None and options.config is None:
        raise click.UsageError("give a RECORDING, or a store: --prometheus URL or -c FILE")
    from agent.replay.replay import replay_store

    loaded, api = open_store(options)
    since, until = round(options.since, 3), round(options.until, 3)
    with closing(api):
        result = replay_store(loaded, api, since, until, options.step, options.tier)
    begin = datetime.fromtimestamp(since).astimezone()
    return replace(result, name=f"{api.place} from {begin.isoformat(' ', 'seconds')}")


def _exit_code(result: ReplayResult) -> int:
    """Return the exit code. Findings with severity report are not counted."""
    if not result.windows or result.cut_short:
        return CANNOT_JUDGE
    findings = [span for span in result.ended if isinstance(span, Finding)]
    findings += [state.finding for state in result.rule_states if state.finding]
    if any(BY_NAME[finding.rule].loudness is not Severity.REPORT for finding in findings):
        return FINDING
    return CANNOT_JUDGE if result.unseen() else FINE


def moment(text: str) -> float:
    """Parse a time to unix seconds: seconds, ISO 8601 (local without a zone), `now`, or a duration before now."""
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


def store_options() -> tuple[click.Option, ...]:
    """Return `--prometheus`, `-c`, `--from`, `--to` and the options of a tier's series."""
    when = "ISO 8601, unix seconds, or back from now such as -7d"
    engine = "the tier is read from the own series of this engine, such as vllm; default from those of node agents"
    return (
        option("--prometheus", "URL", "what the Prometheus API of a store without a login is served under, not -c"),
        CONFIG,
        option("--from since", "TIME", f"{when}; required", moment),
        option("--to until", "TIME", "the same; default now", moment, default="now"),
        tier_option("one tier; default all of the plan and of tiers:"),
        option("--selector", "MATCHERS", 'label matchers of the tier\'s series, such as job="vllm"'),
        option("--engine", "NAME", engine),
    )


def open_store(options: SimpleNamespace) -> tuple[LoadedConfig, StoreApi]:
    """Return the tiers and the store of these options. Raise ConfigError with every problem."""
    # On demand: it imports the HTTP client, which a command on a recording does not need.
    from agent.prometheus.api import StoreApi
    from agent.sources.past_store import MOST_SAMPLES

    problems = tuple(_contradictions(options))
    if problems:
        raise ConfigError(problems)
    loaded = _loaded(options)
    if options.prometheus is not None:
        store = StoreConfig.of(url=options.prometheus, timeout_seconds=TIMEOUT_SECONDS)
    elif loaded.config.store is not None:
        store = loaded.config.store
    else:
        raise ConfigError((f"{loaded.path}: store: is missing; give --prometheus URL",))
    store = store.model_copy(update={"most_samples": min(store.most_samples, MOST_SAMPLES)})
    return loaded, StoreApi(store)


def _contradictions(options: SimpleNamespace) -> Iterator[str]:
    if options.since is None:
        yield "--from is missing"
    elif not 0 < options.until - options.since <= LONGEST_SECONDS:
        yield "--to must be after --from, and at most 91d after it"
    if options.tier is None:
        yield from (f"--{name} says nothing without --tier" for name in OF_SERIES if getattr(options, name) is not None)


def _loaded(options: SimpleNamespace) -> LoadedConfig:
    """Return the configuration of the file, or one of the options, with the tier of the options."""
    plan = load_plan(Path(options.plan)) if options.plan else None
    keys = {name: value for name in OF_SERIES if (value := getattr(options, name)) is not None}
    if keys or (options.config is None and options.tier is not None):
        keys["from"] = "engines" if options.engine else "agents"
    # The address of the store is not used.
    store = {"url": "http://127.0.0.1"}
    given = parse_config({"role": "fleet", "store": store, "tiers": {options.tier: keys} if keys else {}})
    if options.config is None:
        loaded = LoadedConfig(path=Path("the command line"), config=given, plan=plan, warnings=())
    else:
        loaded = load_config(options)
        config = loaded.config.model_copy(update={"tiers": {**loaded.config.tiers, **given.tiers}})
        loaded = replace(loaded, config=config, plan=plan or loaded.plan, warnings=(), mistakes=())
    if not loaded.config.tiers and not (loaded.plan and loaded.plan.tiers):
        raise ConfigError(("there is no tier: give --tier, a plan, or tiers: in the configuration",))
    return loaded
