"""Back-fill of the demand of role fleet from the store: a forecast learns from the weeks before the first start.

Only minutes without demand are filled, newest day first: a stop at any moment is safe and the next run continues. A
range query adds up each family of requests and tokens over the replicas. Its rates are means over WIDTH_SECONDS around
each minute, so that a scrape interval of a minute suffices. What arrived is what was finished or refused in that time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.config.store import TierSource
from agent.durations import duration_text
from agent.errors import SizewatchError
from agent.fleet.agent_series import AGENT
from agent.fleet.engine_series import EXPORTED, engines_of, find_layout, source_names_regex
from agent.fleet.stored_pages import GONE_SECONDS
from agent.fleet.sums import quote_value
from agent.fleet.tier_readers import AGENTS
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.prometheus.api import StoreApi
from exporters.metrics import names
from rules.engines.reader import snapshot
from rules.engines.registry import EngineTable
from rules.plan.load_bins import TierContext
from rules.telemetry import arrivals
from rules.telemetry.arrivals import MinuteSums
from rules.telemetry.windows import DAY_SECONDS, MINUTE_SECONDS, Window

SETTLE_SECONDS = 300.0
"""Age in seconds from which the store has every sample of a minute."""

LEAST_MINUTES = 10
"""Fewest missing minutes of a day to query for. Fewer lie between two scrapes or at a restart."""

WIDTH_SECONDS = 300.0
"""Range of a rate in seconds: four scrapes of 60 s and one more, as Prometheus advises."""

EDGE_MINUTES = 5
"""Minutes next to a gap that are left out: the range of their rates reaches into it."""

FAMILIES = frozenset(
    {
        *("requests_arrived", "requests_finished", "requests_failed", "admission_rejections", "http_requests_ok"),
        *("http_requests_failed", "prompt_tokens", "generation_tokens", "prompt_tokens_computed"),
        *("prefix_hit_tokens", "prefix_queried_tokens"),
    }
)
"""Counters that `rules.telemetry.arrivals` reads."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sum."""

_log = logging.getLogger(__name__)


class BackFill:
    """Single fill of the demand before `now` (unix seconds), when the daemon started. `minutes` were filled at its end."""

    def __init__(self, loaded: LoadedConfig, history: HistoryService, now: float) -> None:
        assert loaded.config.store is not None, "role fleet has a store"
        fleet = loaded.config.fleet
        # The first cycle reads the last few minutes itself.
        settled = now - fleet.delay_seconds - GONE_SECONDS - SETTLE_SECONDS
        self._until = settled // MINUTE_SECONDS * MINUTE_SECONDS
        self._begin = self._until - fleet.back_fill_seconds // MINUTE_SECONDS * MINUTE_SECONDS
        self.minutes = 0
        self._loaded = loaded
        self._history = history
        self._ended = threading.Event()
        self._api = StoreApi(loaded.config.store)

    def run(self) -> str:
        """Fill all days and return a summary, or "" if nothing was filled. After an error the next call continues."""
        if self._ended.is_set():
            return ""
        try:
            self.minutes = sum(fill_demand(self._loaded, self._api, self._history.store(), self._begin, self._until))
        except SizewatchError as error:
            if not self._ended.is_set():
                _log.warning('demand back-fill paused error="%s"', error)
            return ""
        self._ended.set()
        span = duration_text(round(self._until - self._begin))
        text = f"demand of the {span} before the start was filled from the store: {self.minutes} min"
        return text if self.minutes else ""

    def close(self) -> None:
        """End the present query and all later ones. Filled days stay."""
        self._ended.set()
        self._api.interrupt()


def fill_demand(loaded: LoadedConfig, api: StoreApi, history: HistoryStore, begin: float, end: float) -> Iterator[int]:
    """Fill the demand of all tiers in [begin, end) (unix seconds, whole minutes), day by day, newest first.

    Yield the minutes that were filled after each query. Raise StoreError or HistoryError; filled days stay.
    """
    while begin < end:
        start = max(begin, (end - 1) // DAY_SECONDS * DAY_SECONDS)
        for tier, context in build_tier_contexts(loaded).items():
            missing = (end - start) / MINUTE_SECONDS - len(history.requests(tier, start, end))
            if missing >= LEAST_MINUTES:
                rates = _read_rates(tier, loaded.config.tiers.get(tier, AGENTS), context, api, start, end)
                yield history.fill_demand(tier, _find_whole_minutes(rates, start, end))
        end = start


def _find_whole_minutes(rates: Mapping[float, Mapping[str, float]], begin: float, end: float) -> Iterator[MinuteSums]:
    for start in sorted(rates):
        around = (start + place * MINUTE_SECONDS for place in range(-EDGE_MINUTES, EDGE_MINUTES + 1))
        if begin <= start < end and all(t in rates for t in around):
            window = Window(
                start=start,
                end=start + MINUTE_SECONDS,
                expected_seconds=MINUTE_SECONDS,
                covered_seconds=MINUTE_SECONDS,
                counters={family: rate * MINUTE_SECONDS for family, rate in rates[start].items()},
            )
            yield arrivals.minute_from_window(window)


def _read_rates(
    tier: str, source: TierSource, context: TierContext, api: StoreApi, begin: float, end: float
) -> dict[float, dict[str, float]]:
    """Return the rates (1/s) of a tier by minute from `begin` to `end` and around, and by family. Raise StoreError.

    Requests of a prefill pool are left out: the decode pool counts them again.
    """
    if source.source == "agents":
        matchers = f'{names.TIER}="{quote_value(tier)}",{names.POOL}!="prefill",{source.selector or ""}'
        families = sorted(FAMILIES & names.FAMILY.keys())
        # Of two agents with the same replica one counts.
        queries = {family: _rate_query(names.FAMILY[family].name, matchers, AGENT, ()) for family in families}
        minutes = _query_minutes(api, queries, begin, end)
        return {t: {name: value for (name, _), value in values.items()} for t, values in minutes.items()}
    pools = f'{source.pool_label}!="prefill",' if source.pool_label else ""
    matchers = f"{pools}{source.selector or ''}"
    engines = engines_of(source.engine or (context.plan.engine if context.plan is not None else None))
    return _rates_by_family(_query_minutes(api, _engine_queries(engines, matchers), begin, end), engines)


def _engine_queries(engines: tuple[EngineTable, ...], matchers: str) -> dict[str, str]:
    rows = [row for engine in engines for row in engine.rows if row.family in FAMILIES]
    labels = {label for row in rows for label in (row.by, *row.where, *row.unless)}
    samples = {name for row in rows for name in (row.sample, *row.plus, row.zero_with)}
    for engine in engines:
        labels |= {*engine.signature_labels}
        samples |= {*engine.signatures, *engine.unique_names}
    repeats = sorted({label for engine in engines for label in engine.repeats})
    by = [stored for label in sorted(labels - {""}) for stored in (label, EXPORTED + label)]
    stored_names = {name: source_names_regex((name,), engines) for name in sorted(samples - {""})}
    return {name: _rate_query(stored, matchers, repeats, by) for name, stored in stored_names.items()}


def _rate_query(stored: str, matchers: str, repeats: Iterable[str], by: Iterable[str]) -> str:
    """Return the PromQL for the rate of a series over the replicas. `stored` is a pattern of its stored names."""
    each = f'rate({{__name__=~"{stored}",{matchers}}}[{WIDTH_SECONDS:.0f}s])'
    return f"sum by ({', '.join(by)}) (max without ({', '.join(repeats)}) ({each}))"


def _query_minutes(
    api: StoreApi, queries: Mapping[str, str], begin: float, end: float
) -> dict[float, dict[Series, float]]:
    late, edge = (MINUTE_SECONDS + WIDTH_SECONDS) / 2, EDGE_MINUTES * MINUTE_SECONDS
    first, last = begin - edge + late, end + edge - MINUTE_SECONDS + late
    minutes: dict[float, dict[Series, float]] = {}
    for name, query in queries.items():
        for series in api.query_range(query, first, last, MINUTE_SECONDS):
            for t, value in zip(series.times, series.values, strict=True):
                minutes.setdefault(t - late, {})[name, tuple(sorted(series.labels.items()))] = value
    return minutes


def _rates_by_family(
    minutes: Mapping[float, Mapping[Series, float]], engines: tuple[EngineTable, ...]
) -> dict[float, dict[str, float]]:
    layout_of = cache(partial(find_layout, engines=engines))
    rates: dict[float, dict[str, float]] = {}
    for start, values in minutes.items():
        series = tuple(sorted(values))
        if not isinstance(layout := layout_of(series), str):
            counters = snapshot(layout, [values[name] for name in series], start).counters
            rates[start] = {family: rate for family, rate in counters.items() if family in FAMILIES}
    return rates
