"""Dashboard of sizewatch itself: scrapes, evaluation, storage and delivery of the agents.

A tier appears only if agents have its targets. `instance` is the label that Prometheus gives each agent. A new panel is
a function call in SECTIONS.
"""

from __future__ import annotations

from exporters.grafana import plan_panels
from exporters.grafana import queries as q
from exporters.grafana.queries import AGENTS as W
from exporters.grafana.queries import INSTANCE, ITSELF_UID
from exporters.grafana.records import (
    AMBER,
    ANSWERS,
    COUNT,
    NONE_WANTED,
    PLAIN,
    SECONDS,
    STATE,
    UPS,
    WORKS,
    Dashboard,
    Panel,
    PanelType,
    Query,
    Section,
    States,
    Steps,
    ThresholdStep,
)
from exporters.metrics import names
from exporters.metrics.names import ExportedMetric
from exporters.prometheus_rules.self_monitoring import TURN_AGE_SECONDS

AGENT = "{{instance}}"
EVERY_TIER = q.SeriesScope(matchers=())
OLD: Steps = (*PLAIN, ThresholdStep(value=float(TURN_AGE_SECONDS), colour=AMBER))


def _own(metric: ExportedMetric) -> str:
    return q.aggregate("max", ("instance", *metric.labels), W.selector(metric.name))


def _own_rate(metric: ExportedMetric) -> str:
    return q.aggregate("max", ("instance", *metric.labels), f"rate({W.selector(metric.name)}[{q.WINDOW}])")


def _legend(metric: ExportedMetric) -> str:
    return " ".join((AGENT, *(f"{{{{{label}}}}}" for label in metric.labels)))


def _gauge(title: str, metric: ExportedMetric, unit: str, steps: Steps = PLAIN, width: int = 8) -> Panel:
    return Panel(
        title=title,
        description=f"{metric.text}.",
        unit=unit,
        queries=(Query(expr=_own(metric), legend=_legend(metric)),),
        steps=steps,
        width=width,
    )


def _rate(title: str, *metrics: tuple[str, ExportedMetric]) -> Panel:
    return Panel(
        title=title,
        description="Per second. " + " ".join(f"{metric.text}." for _, metric in metrics),
        unit="cps",
        queries=tuple(
            Query(expr=_own_rate(metric), legend=f"{word} {_legend(metric)}".strip()) for word, metric in metrics
        ),
    )


def _states(title: str, metric: ExportedMetric, states: States = ANSWERS, width: int = 8) -> Panel:
    return Panel(
        title=title,
        description=f"{metric.text}.",
        kind=PanelType.STATES,
        unit=STATE,
        queries=(Query(expr=_own(metric), legend=_legend(metric)),),
        states=states,
        steps=WORKS,
        width=width,
    )


def _age(title: str, metric: ExportedMetric, text: str, steps: Steps = PLAIN) -> Panel:
    return Panel(
        title=title,
        description=text,
        unit=SECONDS,
        queries=(Query(expr=f"time() - {_own(metric)}", legend=_legend(metric)),),
        steps=steps,
    )


def _agents() -> Panel:
    info = q.aggregate("max", ("instance", *names.BUILD_INFO.labels), W.selector(names.BUILD_INFO.name))
    started = f"time() - {_own(names.START_TIME)}"
    return Panel(
        title="Agents",
        description="Every agent that Prometheus scrapes, and how long it has been running.",
        kind=PanelType.TABLE,
        unit=COUNT,
        queries=(
            Query(expr=info, legend="Scraped", unit=STATE, states=UPS),
            Query(expr=started, legend="Running for", unit="dtdurations", decimals=0),
            Query(expr=_own(names.GPU_PROBLEMS), legend="Troubles with GPUs", steps=NONE_WANTED, decimals=0),
        ),
        rows=(("instance", "Agent"), ("version", "Version"), ("role", "Role")),
        width=12,
    )


def _targets() -> Panel:
    return Panel(
        title="Targets that give a page",
        description="By tier: replicas whose last scrape was good, and all that are known.",
        unit=COUNT,
        queries=(
            Query(expr=q.replicas_up(EVERY_TIER), legend="up {{cluster}} {{tier}}"),
            Query(
                expr=q.aggregate("count", q.BY_TIER, q.metric(EVERY_TIER, names.TARGET_UP)),
                legend="known {{cluster}} {{tier}}",
            ),
        ),
        decimals=0,
        width=12,
    )


def _scrapes() -> Panel:
    slowest = q.aggregate("max", q.BY_TIER, EVERY_TIER.selector(names.SCRAPE_SECONDS.name))
    return Panel(
        title="Slowest scrape of a tier",
        description=f"{names.SCRAPE_SECONDS.text}.",
        unit=SECONDS,
        queries=(Query(expr=slowest, legend="{{cluster}} {{tier}}"),),
    )


def _failures() -> Panel:
    failures = q.aggregate("sum", (*q.BY_TIER, names.KIND), q.metric_rate(EVERY_TIER, names.SCRAPE_FAILURES))
    return Panel(
        title="Failed scrapes per second",
        description=f"{names.SCRAPE_FAILURES.text}.",
        unit="cps",
        queries=(Query(expr=failures, legend="{{cluster}} {{tier}} {{kind}}"),),
    )


SECTIONS = (
    Section(
        title="Do they run",
        panels=(
            _agents(),
            _states("The configuration on disk can be used", names.CONFIG_OK, width=12),
            _age(
                "Time since the last turn",
                names.LAST_TURN,
                "A turn scrapes and judges. It stands still: nothing is judged.",
                OLD,
            ),
            _gauge("Time a turn takes", names.TURN_SECONDS, SECONDS),
            _rate(
                "Turns that go wrong",
                ("overruns", names.TURN_OVERRUNS),
                ("errors", names.TURN_ERRORS),
            ),
        ),
    ),
    Section(
        title="Do they see",
        panels=(
            _targets(),
            plan_panels.blindness(EVERY_TIER),
            _scrapes(),
            _failures(),
            _gauge("Troubles with GPUs", names.GPU_PROBLEMS, COUNT, NONE_WANTED),
        ),
    ),
    Section(
        title="Do they keep",
        panels=(
            _states("History can be written", names.HISTORY_UP),
            _gauge("Minutes that wait to be written", names.HISTORY_UNBOOKED, COUNT),
            _rate("Minutes lost", ("", names.HISTORY_DROPPED)),
        ),
    ),
    Section(
        title="Do they deliver",
        panels=(
            _states("Alertmanagers take alerts", names.ALERTMANAGER_UP),
            _age(
                "Time since the alerts were last posted whole",
                names.ALERTMANAGER_SUCCESS,
                f"{names.ALERTMANAGER_SUCCESS.text.partition(',')[0]}.",
            ),
            _gauge("Alerts refused", names.ALERTS_REFUSED, COUNT, NONE_WANTED),
            _rate(
                "Posts to Alertmanager",
                ("alerts", names.ALERTS_POSTED),
                ("failed rounds", names.ALERT_POST_FAILURES),
            ),
            _rate(
                "Messages of the webhook",
                ("taken", names.WEBHOOK_TAKEN),
                ("refused", names.WEBHOOK_REFUSED),
                ("left out", names.WEBHOOK_LEFT_OUT),
            ),
            _rate("Their own web pages", ("errors", names.WEB_ERRORS), ("refusals", names.WEB_REFUSALS)),
        ),
    ),
)

ITSELF = Dashboard(
    uid=ITSELF_UID,
    title="sizewatch: itself",
    description="Do the agents run, see, keep and deliver? A silent agent is no healthy fleet.",
    since="6h",
    variables=(INSTANCE,),
    marks=(),
    sections=SECTIONS,
)
