"""Past demand of a tier from a store: one range query adds up each family of requests and tokens over the replicas.

The rates are means over WIDTH_SECONDS around each minute, so that a scrape interval of a minute suffices. Forecasts add
minutes up to bins of that width. The demand of an agent's own cycles is exact (`rules.telemetry.arrivals`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.config.store import TierSource
from agent.fleet.agent_series import AGENT
from agent.fleet.engine_series import EXPORTED, engines_of, source_names_regex
from agent.fleet.sums import quote_value
from agent.prometheus.api import StoreApi
from exporters.metrics import names
from rules.engines.reader import compile_layout, snapshot
from rules.engines.registry import detect_engine
from rules.engines.table import EngineTable
from rules.plan.load_bins import TierContext
from rules.telemetry import arrivals
from rules.telemetry.arrivals import MinuteSums
from rules.telemetry.families import FamilyKind
from rules.telemetry.gauges import IN_SYSTEM, GaugeSum
from rules.telemetry.windows import MINUTE_SECONDS, NET_CHANGE, Window

WIDTH_SECONDS = 300.0
"""Range of a rate in seconds: four scrapes of 60 s and one more, as Prometheus advises."""

EDGE_SECONDS = 300.0
"""Seconds next to a gap that are left out: the range of their rates reaches into it."""

FAMILIES = frozenset(
    {
        *("requests_arrived", "requests_finished", "requests_failed", "admission_rejections", "http_requests_ok"),
        *("http_requests_failed", "prompt_tokens", "generation_tokens", "prompt_tokens_computed"),
        *("prefix_hit_tokens", "prefix_queried_tokens", *IN_SYSTEM),
    }
)
"""Families that `rules.telemetry.arrivals` reads, but histograms."""

NAME = "sizewatch_name"
"""Label with the name of a sum, because a rate has none."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sum."""

Values = Mapping[str, float]
"""Rates of counters (1/s) and means of gauges, by family."""


def read_demand(
    tier: str, source: TierSource, context: TierContext, api: StoreApi, begin: float, end: float
) -> tuple[MinuteSums, ...]:
    """Return the demand of the minutes in [begin, end) (unix seconds, whole minutes). Raise StoreError.

    Requests of a prefill pool are left out: the decode pool counts them again. A tier is of the first engine that the
    store has data of.
    """
    if source.source == "agents":
        matchers = _join(f'{names.TIER}="{quote_value(tier)}"', f'{names.POOL}!="prefill"', source.selector)
        minutes = _query_minutes(api, _agent_queries(matchers), begin, end)
        named = {t: {name: value for (name, _), value in values.items()} for t, values in minutes.items()}
        return tuple(_demand(named, begin, end))
    matchers = _join(f'{source.pool_label}!="prefill"' if source.pool_label else "", source.selector)
    configured = source.engine or (context.plan.engine if context.plan is not None else None)
    candidates = {engine.name for engine in engines_of(configured)}
    # A Dynamo worker passes the series of its engine through.
    for name in sorted(candidates, key=lambda name: (name == "dynamo", name)):
        engines = engines_of(name)
        found = dict(_by_family(_query_minutes(api, _engine_queries(engines, matchers), begin, end), engines))
        if found:
            return tuple(_demand(found, begin, end))
    return ()


def _join(*matchers: str | None) -> str:
    return ",".join(matcher for matcher in matchers if matcher)


def _agent_queries(matchers: str) -> Iterator[str]:
    for family in sorted(FAMILIES & names.FAMILY.keys()):
        metric = names.FAMILY[family]
        # Of two agents with the same replica one counts.
        yield _sum(family, metric.name, matchers, AGENT, (), gauge=metric.kind is FamilyKind.GAUGE)


def _engine_queries(engines: tuple[EngineTable, ...], matchers: str) -> Iterator[str]:
    gauges: dict[str, bool] = {name: True for engine in engines for name in engine.signatures}
    labels = {label for engine in engines for label in (*engine.signature_labels, *engine.signature_without)}
    for row in (row for engine in engines for row in engine.rows if row.family in FAMILIES):
        for name in (row.sample, *row.plus, row.zero_with):
            gauges[name] = row.kind is FamilyKind.GAUGE
        labels |= {row.by, *row.where, *row.unless}
    repeats = sorted({label for engine in engines for label in engine.repeats})
    by = [stored for label in sorted(labels - {""}) for stored in (label, EXPORTED + label)]
    for name, gauge in sorted(gauges.items()):
        if name:
            yield _sum(name, source_names_regex((name,), engines), matchers, repeats, by, gauge=gauge)


def _sum(name: str, stored: str, matchers: str, repeats: Iterable[str], by: Iterable[str], *, gauge: bool) -> str:
    """Return the PromQL for the mean or rate of a series over the replicas. `stored` is a pattern of its stored names."""
    function = "avg_over_time" if gauge else "rate"
    selector = _join(f'__name__=~"{stored}"', matchers)
    each = f"{function}({{{selector}}}[{WIDTH_SECONDS:.0f}s])"
    total = f"sum by ({', '.join(by)}) (max without ({', '.join(repeats)}) ({each}))"
    return f'label_replace({total}, "{NAME}", "{name}", "", "")'


def _query_minutes(api: StoreApi, queries: Iterable[str], begin: float, end: float) -> dict[float, dict[Series, float]]:
    """Return the values of each minute by series."""
    late = (MINUTE_SECONDS + WIDTH_SECONDS) / 2
    first, last = begin - EDGE_SECONDS + late, end + EDGE_SECONDS - MINUTE_SECONDS + late
    minutes: dict[float, dict[Series, float]] = {}
    for found in api.query_range(" or ".join(queries), first, last, MINUTE_SECONDS):
        # A label of the page comes after the same label of the scrape.
        ordered = sorted(found.labels.items(), key=lambda label: label[0].startswith(EXPORTED))
        labels = {key.removeprefix(EXPORTED): value for key, value in ordered}
        series = labels.pop(NAME, ""), tuple(sorted(labels.items()))
        for t, value in zip(found.times, found.values, strict=True):
            minutes.setdefault(t - late, {})[series] = value
    return minutes


def _by_family(
    minutes: Mapping[float, Mapping[Series, float]], engines: tuple[EngineTable, ...]
) -> Iterator[tuple[float, Values]]:
    """Yield the values of each minute by family. The table of an engine adds up rates as it does the sums of a page."""
    layouts = {}
    for start, values in minutes.items():
        series = tuple(sorted(values))
        if series not in layouts:
            named = [(name, dict(labels)) for name, labels in series]
            engine = detect_engine(named, engines)
            layouts[series] = compile_layout(named, engine) if engine is not None else None
        layout = layouts[series]
        if layout is not None:
            page = snapshot(layout, [values[name] for name in series], start)
            found = {**page.counters, **page.gauges}
            yield start, {family: value for family, value in found.items() if family in FAMILIES}


def _demand(minutes: Mapping[float, Values], begin: float, end: float) -> Iterator[MinuteSums]:
    """Yield the minutes of [begin, end) that lie in no gap and not beside one."""
    reach = round(EDGE_SECONDS / MINUTE_SECONDS)
    for start, values in sorted(minutes.items()):
        counters = {name: rate * MINUTE_SECONDS for name, rate in values.items() if name not in IN_SYSTEM}
        around = [start + place * MINUTE_SECONDS for place in range(-reach, reach + 1)]
        if not counters or not begin <= start < end or not all(t in minutes for t in around):
            continue
        before, after = minutes[start - MINUTE_SECONDS], minutes[start + MINUTE_SECONDS]
        if all(name in before and name in after for name in IN_SYSTEM):
            counters[NET_CHANGE] = sum(after[name] - before[name] for name in IN_SYSTEM) / 2
        means = {name: mean for name, mean in values.items() if name in IN_SYSTEM}
        gauges = {
            name: GaugeSum(
                integral=mean * MINUTE_SECONDS, seconds=MINUTE_SECONDS, minimum=mean, maximum=mean, samples=1
            )
            for name, mean in means.items()
        }
        minute = Window(
            start=start,
            end=start + MINUTE_SECONDS,
            expected_seconds=MINUTE_SECONDS,
            covered_seconds=MINUTE_SECONDS,
            counters=counters,
            gauges=gauges,
        )
        yield arrivals.minute_from_window(minute)
