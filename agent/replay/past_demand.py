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

Amounts = tuple[dict[str, float], dict[str, float]]
"""Increases of counters in a minute and means of gauges, by family."""


def read_demand(
    tier: str, source: TierSource, context: TierContext, api: StoreApi, begin: float, end: float
) -> tuple[MinuteSums, ...]:
    """Return the demand of the minutes in [begin, end) (unix seconds, whole minutes). Raise StoreError.

    Requests of a prefill pool are left out: the decode pool counts them again. A tier is of the first engine that the
    store has data of.
    """
    if source.source == "agents":
        matchers = _join(f'{names.TIER}="{quote_value(tier)}"', f'{names.POOL}!="prefill"', source.selector)
        return tuple(_demand(dict(_of_agents(_ask(api, _agent_queries(matchers), begin, end))), begin, end))
    matchers = _join(f'{source.pool_label}!="prefill"' if source.pool_label else "", source.selector)
    configured = source.engine or (context.plan.engine if context.plan is not None else None)
    candidates = {engine.name for engine in engines_of(configured)}
    # A Dynamo worker passes the series of its engine through.
    for name in sorted(candidates, key=lambda name: (name == "dynamo", name)):
        engines = engines_of(name)
        minutes = dict(_of_engines(_ask(api, _engine_queries(engines, matchers), begin, end), engines))
        if minutes:
            return tuple(_demand(minutes, begin, end))
    return ()


def _join(*matchers: str | None) -> str:
    return ",".join(one for one in matchers if one)


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


def _ask(api: StoreApi, queries: Iterable[str], begin: float, end: float) -> dict[float, dict[Series, float]]:
    """Return the values of each minute by series."""
    late = (MINUTE_SECONDS + WIDTH_SECONDS) / 2
    first, last = begin - EDGE_SECONDS + late, end + EDGE_SECONDS - MINUTE_SECONDS + late
    minutes: dict[float, dict[Series, float]] = {}
    for one in api.query_range(" or ".join(queries), first, last, MINUTE_SECONDS):
        labels = {key: value for key, value in one.labels.items() if not key.startswith(EXPORTED)}
        labels |= {key.removeprefix(EXPORTED): value for key, value in one.labels.items() if key.startswith(EXPORTED)}
        series = labels.pop(NAME, ""), tuple(sorted(labels.items()))
        for t, value in zip(one.times, one.values, strict=True):
            minutes.setdefault(t - late, {})[series] = value
    return minutes


def _of_agents(minutes: Mapping[float, Mapping[Series, float]]) -> Iterator[tuple[float, Amounts]]:
    for start, values in minutes.items():
        by_family = {name: value for (name, _), value in values.items()}
        counters = {name: rate * MINUTE_SECONDS for name, rate in by_family.items() if name not in IN_SYSTEM}
        yield start, (counters, {name: by_family[name] for name in IN_SYSTEM if name in by_family})


def _of_engines(
    minutes: Mapping[float, Mapping[Series, float]], engines: tuple[EngineTable, ...]
) -> Iterator[tuple[float, Amounts]]:
    layouts = {}
    for start, values in minutes.items():
        series = tuple(sorted(values))
        if series not in layouts:
            named = [(name, dict(labels)) for name, labels in series]
            engine = detect_engine(named, engines)
            layouts[series] = compile_layout(named, engine) if engine is not None else None
        layout = layouts[series]
        if layout is not None:
            # The table adds up the increases as it does the sums of a page.
            page = snapshot(layout, [values[one] for one in series], start)
            counters = {family: rate * MINUTE_SECONDS for family, rate in page.counters.items() if family in FAMILIES}
            yield start, (counters, {name: page.gauges[name] for name in IN_SYSTEM if name in page.gauges})


def _demand(minutes: Mapping[float, Amounts], begin: float, end: float) -> Iterator[MinuteSums]:
    """Yield the minutes of [begin, end) that lie in no gap and not beside one."""
    reach = round(EDGE_SECONDS / MINUTE_SECONDS)
    for start, (counters, gauges) in sorted(minutes.items()):
        around = [start + place * MINUTE_SECONDS for place in range(-reach, reach + 1)]
        if not counters or not begin <= start < end or not all(t in minutes for t in around):
            continue
        before, after = (minutes[start + seconds][1] for seconds in (-MINUTE_SECONDS, MINUTE_SECONDS))
        if all(name in one for one in (before, after) for name in IN_SYSTEM):
            change = sum(after[name] - before[name] for name in IN_SYSTEM) / 2
            counters = {**counters, NET_CHANGE: change}
        yield arrivals.minute_from_window(
            Window(
                start=start,
                end=start + MINUTE_SECONDS,
                expected_seconds=MINUTE_SECONDS,
                covered_seconds=MINUTE_SECONDS,
                counters=counters,
                gauges={
                    name: GaugeSum(
                        integral=mean * MINUTE_SECONDS, seconds=MINUTE_SECONDS, minimum=mean, maximum=mean, samples=1
                    )
                    for name, mean in gauges.items()
                },
            )
        )
