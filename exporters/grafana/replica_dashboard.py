"""Dashboard Replica: a replica or several side by side, and their GPUs.

Only GPU values of the same replica are summed. A new panel is a function here and an entry below.
"""

from __future__ import annotations

from exporters.grafana import gpu_panels, memory_panels, plan_panels, request_panels
from exporters.grafana import queries as q
from exporters.grafana.queries import ABOUT_A_TIER, REPLICA, REPLICA_UID, marks
from exporters.grafana.queries import REPLICAS as W
from exporters.grafana.records import (
    COUNT,
    RATIO,
    SECONDS,
    STATE,
    UPS,
    VERDICTS,
    WORKS,
    Dashboard,
    LineStyle,
    Panel,
    PanelType,
    Query,
    Section,
    signal_unit,
)
from exporters.metrics import names

EACH = q.BY_REPLICA
NAME = "{{replica}}"


def _engines() -> Panel:
    labels = (*EACH, "model", "engine", "engine_version")
    seen = f"time() - {q.aggregate('max', EACH, W.selector(names.TARGET_SEEN.name))}"
    return Panel(
        title="Engines",
        description="What each replica runs, how long the last scrape took, how long ago the last good page came.",
        kind=PanelType.TABLE,
        unit=COUNT,
        queries=(
            Query(
                expr=q.aggregate("max", labels, W.selector(names.REPLICA_INFO.name)),
                legend="Running",
                unit=STATE,
                states=UPS,
            ),
            Query(expr=q.metric(W, names.SCRAPE_SECONDS), legend="Scrape", unit=SECONDS, decimals=3),
            Query(expr=seen, legend="Last page", unit=SECONDS, decimals=0),
        ),
        rows=(
            ("replica", "Replica"),
            ("pool", "Pool"),
            ("model", "Model"),
            ("engine", "Engine"),
            ("engine_version", "Version"),
            ("cluster", "Cluster"),
        ),
        hidden=("tier",),
        width=12,
    )


def _restarts() -> Panel:
    restarts = W.selector(names.exported("restarts"))
    return Panel(
        title="Restarts",
        description=f"{names.metric('restarts').text}, in each step of the chart.",
        unit=COUNT,
        queries=(Query(expr=q.aggregate("max", EACH, f"round(increase({restarts}[{q.WINDOW}]))"), legend=NAME),),
        decimals=0,
    )


def _verdicts() -> Panel:
    about_one = q.SeriesScope(matchers=(*W.matchers, 'replica!=""'))
    worst = q.aggregate("max", (*q.BY_TIER, names.REPLICA), plan_panels.certain_verdicts(about_one))
    return Panel(
        title="Worst certain finding about a replica",
        description="Of the rules that judge single replicas; the others are on the tier's dashboard.",
        kind=PanelType.STATES,
        unit=STATE,
        queries=(Query(expr=worst, legend=NAME),),
        states=VERDICTS,
        steps=plan_panels.VERDICT_STEPS,
    )


def _rate() -> Panel:
    usable = q.metric_by_tier(q.TIER, names.CAPACITY_RPS)
    return Panel(
        title="Requests per second",
        description="Finished requests of each replica; red: what one carries within the SLO now.",
        unit=signal_unit("completed_rps"),
        queries=(
            Query(expr=q.total(W, "requests_finished", EACH), legend=NAME),
            Query(expr=usable, legend="usable", line=LineStyle.LIMIT),
            Query(
                expr=q.metric_by_tier(q.TIER, names.PLAN_USABLE_RPS), legend="usable by the plan", line=LineStyle.PLAN
            ),
        ),
        width=12,
    )


def _queue() -> Panel:
    words = ("running", "waiting")
    return Panel(
        title="Requests running and waiting",
        description=" ".join(f"{names.metric(f'requests_{word}').text}." for word in words),
        unit=COUNT,
        queries=tuple(Query(expr=q.level(W, f"requests_{word}"), legend=f"{word} {NAME}") for word in words),
    )


def _hits() -> Panel:
    ratio = q.divide(q.total(W, "prefix_hit_tokens", EACH), q.total(W, "prefix_queried_tokens", EACH))
    return Panel(
        title="Prefix cache hits",
        description="Of the tokens looked up. One replica far below the others: routing does not keep prefixes together.",
        unit=RATIO,
        queries=(Query(expr=ratio, legend=NAME),),
        top=1.0,
    )


REPLICA_DASHBOARD = Dashboard(
    uid=REPLICA_UID,
    title="sizewatch: Replica",
    description="Replicas of one tier side by side: is one of them unlike the others?",
    since="3h",
    variables=(*ABOUT_A_TIER, REPLICA),
    marks=marks(W),
    sections=(
        Section(
            title="Is it there",
            panels=(
                Panel(
                    title="Scrapes",
                    description=f"{names.TARGET_UP.text}.",
                    kind=PanelType.STATES,
                    unit=STATE,
                    queries=(Query(expr=q.metric(W, names.TARGET_UP), legend=NAME),),
                    states=UPS,
                    steps=WORKS,
                    width=12,
                ),
                _engines(),
                _verdicts(),
                memory_panels.cascade(W, 8, 7),
                Panel(
                    title="Failed scrapes per second",
                    description=f"{names.SCRAPE_FAILURES.text}.",
                    unit="cps",
                    queries=(Query(expr=q.metric_rate(W, names.SCRAPE_FAILURES), legend="{{replica}} {{kind}}"),),
                ),
            ),
        ),
        Section(
            title="Requests",
            panels=(
                _rate(),
                request_panels.unserved(W, EACH),
                request_panels.errors(W, EACH),
                request_panels.latency(W, "ttft", EACH),
                request_panels.latency(W, "tpot", EACH),
                request_panels.tokens(W, EACH),
            ),
        ),
        Section(
            title="Saturation",
            panels=(
                _queue(),
                Panel(
                    title="KV cache in use",
                    description=f"{names.metric('kv_utilization').text}.",
                    unit=RATIO,
                    queries=(Query(expr=q.level(W, "kv_utilization"), legend=NAME),),
                    steps=memory_panels.KV_STEPS,
                    top=1.0,
                ),
                memory_panels.evictions(W, EACH, legend=NAME, description="Preemptions per finished request."),
                _hits(),
                _restarts(),
            ),
        ),
        Section(title="GPUs", panels=gpu_panels.all_gpu_panels(W, q.BY_GPU)),
    ),
)
