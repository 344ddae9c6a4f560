"""Options for the past of a Prometheus-compatible store: address, series and time range."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from agent.cli.arguments import CONFIG, WAYS_IN, Keyword, connection_options, option, tier_option, ways_in
from agent.cli.loading import load_config
from agent.config.config import Config
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.durations import parse_duration
from agent.errors import ConfigError
from agent.prometheus.options import StoreOptions

if TYPE_CHECKING:
    from agent.prometheus.api import StoreApi

LONGEST_SECONDS = 91 * 86_400.0
"""Longest range in seconds: the retention of the history."""

TIMEOUT_SECONDS = 60.0
"""Query timeout in seconds. No cycle waits for it, and pieces are large."""

SERIES = (
    ("selector", "MATCHERS", 'label matchers of the tier\'s series, such as job="vllm"'),
    ("engine", "NAME", "whose series they are, such as vllm; default the plan's"),
    ("replica_label", "LABEL", "the label that tells replicas apart (default instance)"),
    ("pool_label", "LABEL", "a label whose value is mixed, prefill or decode"),
)
OF_ENGINES = ("engine", "replica_label", "pool_label")
OF_SERIES = ("source", "selector", *OF_ENGINES)
OF_PROMETHEUS = ("org_id", *(name for name, _, _ in WAYS_IN))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreQuery:
    """Store query: `loaded` holds the tiers, `api` the store. Times are unix seconds with milliseconds."""

    loaded: LoadedConfig
    api: StoreApi
    since: float
    until: float


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


def store_options(*, to: str = "now") -> tuple[click.Option, ...]:
    """Return `--prometheus`, `-c`, `--from`, `--to`, the series options and the connection options."""
    address = "what the Prometheus API of the store is served under; default store: of -c"
    when = "ISO 8601, unix seconds, or back from now such as -7d"
    source = "whose series the tier is read from: those of node agents, or the engines' own"
    source += " (default where --engine, --replica-label or --pool-label is given)"
    return (
        click.Option(["--prometheus"], metavar="URL", help=address),
        CONFIG,
        click.Option(["--from", "since"], type=moment, metavar="TIME", help=f"{when}; required"),
        click.Option(["--to", "until"], type=moment, default=to, metavar="TIME", help=f"the same; default {to}"),
        tier_option("one tier; default all of the plan and of tiers:"),
        click.Option(["--source"], type=Keyword(("agents", "engines")), help=source),
        *(click.Option([option(name)], metavar=metavar, help=text) for name, metavar, text in SERIES),
        *connection_options("the store"),
        click.Option(["--org-id"], metavar="TENANT", help="of a store of several, sent as X-Scope-OrgID"),
    )


def open_store_query(options: SimpleNamespace) -> StoreQuery:
    """Return the query of these options. Raise ConfigError or PlanError with every problem."""
    # On demand: it imports the HTTP client, which a command on a recording does not need.
    from agent.prometheus.api import StoreApi
    from agent.sources.past_store import MOST_SAMPLES

    problems = tuple(_contradictions(options))
    if problems:
        raise ConfigError(problems)
    loaded = _loaded(options)
    if options.prometheus is not None:
        url, ways = options.prometheus, ways_in(options)
        store = StoreOptions(url=url, timeout_seconds=TIMEOUT_SECONDS, org_id=options.org_id, **ways)
    elif loaded.config.store is not None:
        store = loaded.config.store.options()
    else:
        raise ConfigError((f"{loaded.path}: store: is missing; give --prometheus URL",))
    api = StoreApi(replace(store, most_samples=min(store.most_samples, MOST_SAMPLES)))
    return StoreQuery(loaded=loaded, api=api, since=round(options.since, 3), until=round(options.until, 3))


def _contradictions(options: SimpleNamespace) -> Iterator[str]:
    if options.since is None:
        yield "--from is missing"
    elif not 0 < options.until - options.since <= LONGEST_SECONDS:
        yield "--to must be after --from, and at most 91d after it"
    others = (
        (options.prometheus is None, OF_PROMETHEUS, "says nothing without --prometheus"),
        (options.tier is None, OF_SERIES, "says nothing without --tier"),
        (options.source == "agents", OF_ENGINES, "is for --source engines"),
    )
    for applies, names, text in others:
        yield from (f"{option(name)} {text}" for name in names if applies and getattr(options, name) is not None)


def _loaded(options: SimpleNamespace) -> LoadedConfig:
    """Return the configuration of the file, or an empty one, with the options applied."""
    plan = load_plan(Path(options.plan)) if options.plan else None
    given = _config_of(options)
    if options.config is None and options.prometheus is not None:
        loaded = LoadedConfig(path=Path("the command line"), config=given, plan=plan, warnings=())
    else:
        loaded = load_config(options)
        tiers = {**loaded.config.tiers, **given.tiers}
        config = loaded.config.model_copy(update={"tiers": tiers})
        loaded = replace(loaded, config=config, plan=plan or loaded.plan, warnings=(), mistakes=())
    if not loaded.config.tiers and not (loaded.plan and loaded.plan.tiers):
        raise ConfigError(("there is no tier: give --tier, a plan, or tiers: in the configuration",))
    return loaded


def _config_of(options: SimpleNamespace) -> Config:
    """Return a configuration with the tier of the options. Its address of the store is not used."""
    keys = {name: value for name in OF_SERIES if (value := getattr(options, name)) is not None}
    default = "engines" if any(name in keys for name in OF_ENGINES) else "agents"
    keys["from"] = keys.pop("source", default)
    tiers = {options.tier: keys} if len(keys) > 1 or options.source else {}
    return parse_config({"role": "fleet", "store": {"url": "http://127.0.0.1"}, "tiers": tiers})
