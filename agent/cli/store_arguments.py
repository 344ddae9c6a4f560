"""Options for the past of a Prometheus-compatible store: address, series and time range."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from agent.cli.arguments import CONFIG, Keyword, connection_options, option, tier_option, ways_in
from agent.cli.arguments import NAMES as WAYS_IN
from agent.config.config import Config
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, find, load, parse_config
from agent.durations import parse_duration
from agent.errors import ConfigError

if TYPE_CHECKING:
    from agent.prometheus.api import StoreApi

LONGEST_SECONDS = 91 * 86_400.0
"""Longest range in seconds: the retention of the history."""

TIMEOUT_SECONDS = 60.0
"""Query timeout in seconds. No cycle waits for it, and pieces are large."""

OF_ENGINES = ("engine", "replica_label", "pool_label")
OF_SERIES = ("source", "selector", *OF_ENGINES)
OF_PROMETHEUS = ("org_id", *WAYS_IN)

SERIES = (
    ("selector", "MATCHERS", 'label matchers of the tier\'s series, such as job="vllm"'),
    ("engine", "NAME", "whose series they are, such as vllm; default the plan's"),
    ("replica_label", "LABEL", "the label that tells replicas apart (default instance)"),
    ("pool_label", "LABEL", "a label whose value is mixed, prefill or decode"),
)

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreQuery:
    """Store query: `loaded` holds the tiers, `api` the store. Times are unix seconds with milliseconds."""

    loaded: LoadedConfig
    api: StoreApi
    since: float
    until: float


def moment(text: str) -> float:
    """Parse a time to unix seconds: seconds, ISO 8601 (local without a zone), or a duration before now."""
    for read in (_seconds, _iso, _back):
        t = read(text)
        if t is not None:
            return t
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    raise ValueError(
        f"must be a time such as 2026-11-17T09:00, 2026-11-17T09:00+01:00, unix seconds, now or -7d, not '{shown}'"
    )


def _seconds(text: str) -> float | None:
    return float(text) if _SECONDS.fullmatch(text) else None


def _iso(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _back(text: str) -> float | None:
    try:
        return time.time() - (parse_duration(text.removeprefix("-")) if text != "now" else 0.0)
    except ValueError:
        return None


def store_options(*, to: str = "now") -> tuple[click.Option, ...]:
    """Return `--prometheus`, `-c`, `--from`, `--to`, the series options and the connection options."""
    when = "ISO 8601, unix seconds, or back from now such as -7d"
    sources = "whose series the tier is read from: those of node agents, or the engines' own"
    return (
        click.Option(
            ["--prometheus"],
            metavar="URL",
            help="what the Prometheus API of the store is served under; default store: of -c",
        ),
        CONFIG,
        click.Option(["--from", "since"], type=moment, metavar="TIME", help=f"{when}; required"),
        click.Option(["--to", "until"], type=moment, default=to, metavar="TIME", help=f"the same; default {to}"),
        tier_option("one tier; default all of the plan and of tiers:"),
        click.Option(
            ["--source"],
            type=Keyword(("agents", "engines")),
            help=f"{sources} (default where --engine, --replica-label or --pool-label is given)",
        ),
        *(click.Option([option(name)], metavar=metavar, help=text) for name, metavar, text in SERIES),
        *connection_options("the store"),
        click.Option(["--org-id"], metavar="TENANT", help="of a store of several, sent as X-Scope-OrgID"),
    )


def open_store_query(options: SimpleNamespace) -> StoreQuery:
    """Return the query of these options. Raise ConfigError or PlanError with every problem."""
    problems = tuple(_contradictions(options))
    if problems:
        raise ConfigError(problems)
    loaded = _loaded(options)
    return StoreQuery(
        loaded=loaded, api=_api(options, loaded), since=round(options.since, 3), until=round(options.until, 3)
    )


def _contradictions(options: SimpleNamespace) -> list[str]:
    found = []
    if options.since is None:
        found.append("--from is missing")
    elif not 0 < options.until - options.since <= LONGEST_SECONDS:
        found.append("--to must be after --from, and at most 91d after it")
    if options.prometheus is None:
        found += [
            f"{option(name)} says nothing without --prometheus" for name in OF_PROMETHEUS if getattr(options, name)
        ]
    given = [option(name) for name in OF_SERIES if getattr(options, name) is not None]
    if given and options.tier is None:
        found.append(f"{given[0]} says nothing without --tier")
    if options.source == "agents":
        found += [
            f"{option(name)} is for --source engines" for name in OF_ENGINES if getattr(options, name) is not None
        ]
    return found


def _loaded(options: SimpleNamespace) -> LoadedConfig:
    """Return the configuration of the file, or an empty one, with the options applied."""
    plan = load_plan(Path(options.plan)) if options.plan else None
    if options.config is not None or options.prometheus is None:
        loaded = load(find(options.config))
        if plan is not None:
            loaded = replace(loaded, plan=plan, warnings=(), mistakes=())
    else:
        config = _with_tiers(options)
        loaded = LoadedConfig(path=Path("the command line"), config=config, plan=plan, warnings=())
    if options.tier is not None:
        tiers = {**loaded.config.tiers, **_with_tiers(options).tiers}
        loaded = replace(loaded, config=loaded.config.model_copy(update={"tiers": tiers}), warnings=(), mistakes=())
    known = {*loaded.config.tiers, *(loaded.plan.tiers if loaded.plan else ())}
    if not known:
        raise ConfigError(("there is no tier: give --tier, a plan, or tiers: in the configuration",))
    return loaded


def _with_tiers(options: SimpleNamespace) -> Config:
    """Return a configuration with the tier of the options."""
    keys = {name: getattr(options, name) for name in ("selector", *OF_ENGINES) if getattr(options, name) is not None}
    source = options.source or ("engines" if any(name in keys for name in OF_ENGINES) else None)
    if source is not None or keys:
        keys["from"] = source or "agents"
    tiers = {options.tier: keys} if options.tier is not None and keys else {}
    # The real address is checked later.
    return parse_config({"role": "fleet", "store": {"url": "http://127.0.0.1"}, "tiers": tiers})


def _api(options: SimpleNamespace, loaded: LoadedConfig) -> StoreApi:
    # On demand: it imports the HTTP client, which a command on a recording does not need.
    from agent.prometheus.api import StoreApi
    from agent.prometheus.options import StoreOptions
    from agent.sources.past_store import MOST_SAMPLES

    if options.prometheus is not None:
        url = options.prometheus
        given = StoreOptions(url=url, timeout_seconds=TIMEOUT_SECONDS, org_id=options.org_id, **ways_in(options))
    elif loaded.config.store is not None:
        given = loaded.config.store.options()
    else:
        raise ConfigError((f"{loaded.path}: store: is missing; give --prometheus URL",))
    return StoreApi(replace(given, most_samples=min(given.most_samples, MOST_SAMPLES)))
