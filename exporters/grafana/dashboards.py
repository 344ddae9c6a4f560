"""Dashboards: tables of panels in YAML beside this file, printed as Grafana's JSON (the classic schema of Grafana 10 on).

A panel is a row of its dashboard's file, its look is a row of `looks.yaml`. Its expressions may use everything here and
the metrics of `exporters.metrics`. Two agents may export the same replica, so each series counts once. Sums never span
tiers, and pools stay apart where a request passes through both. SCOPE stands for the matchers of the dashboard, OF_TIER
for those of its tiers. Limits are the catalogue's; an override in the configuration does not reach the dashboards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from string import ascii_uppercase
from typing import Any, Literal

import yaml
from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel, ConfigDict, model_validator

from exporters.metrics import names
from exporters.metrics.names import ExportedMetric
from exporters.prometheus_rules.alerts import CYCLE_AGE_SECONDS, NOT_SEEING
from rules.catalogue.registry import BY_NAME as RULES
from rules.verdicts.rule import Severity

SCOPE, OF_TIER, CLUSTER, WINDOW = "@", "#", "cluster", "$__rate_interval"
"""`cluster` is an external label of some installations. Grouping by an absent label is harmless."""

BY_TIER = (CLUSTER, names.TIER)
BY_POOL = (CLUSTER, names.TIER, names.POOL)
BY_REPLICA = (CLUSTER, *names.OF_REPLICA)
BY_ENGINE = (CLUSTER, *names.OF_ENGINE)
BY_GPU = (CLUSTER, *names.OF_GPU)
ON_TIER = f"on ({', '.join(BY_TIER)})"
TO_POOLS = f"{ON_TIER} group_left ()"

WITHOUT_NOTES = f'rule!~"{"|".join(rule.name for rule in RULES.values() if rule.severity is Severity.REPORT)}"'
LOUD = f'{names.SEVERITY}!="{Severity.REPORT}"'
"""Matchers of rules and of incidents that page or make tickets. Findings for the report colour and count nothing."""


def series(name: str, *matchers: str) -> str:
    """Return a selector within the dashboard's scope."""
    return f"{name}{{{', '.join((SCOPE, *matchers))}}}"


def by(operation: str, labels: Iterable[str], expr: str) -> str:
    return f"{operation} by ({', '.join(labels)}) ({expr})"


def per_second(name: str) -> str:
    return f"rate({series(name)}[{WINDOW}])"


def gauge(metric: str | ExportedMetric, *matchers: str, source: str = CLUSTER, is_rate: bool = False) -> str:
    """Return a metric, given by itself or its family's name, once for each of its label sets; a counter per second."""
    if isinstance(metric, str):
        metric = names.metric(metric)
    value = per_second(metric.name) if is_rate else series(metric.name, *matchers)
    return by("max", (source, *metric.labels), value)


rate = partial(gauge, is_rate=True)
own = partial(gauge, source=f"{CLUSTER}, instance")
own_rate = partial(own, is_rate=True)
"""Metrics of the agents themselves, by the label that Prometheus gives each of them."""


def of_tier(metric: ExportedMetric, *matchers: str) -> str:
    """Return a number of the tier, without informative labels (`currency`)."""
    return by("max", BY_TIER, f"{metric.name}{{{', '.join((OF_TIER, *matchers))}}}")


def total(family: str, labels: Iterable[str] = BY_POOL) -> str:
    """Return a counter family per second, summed by `labels`."""
    return by("sum", labels, rate(family))


def quantile(q: float, family: str, labels: tuple[str, ...] = BY_POOL) -> str:
    """Return a quantile (0-1) by `labels` and release. Releases may have different bucket edges."""
    engine = ", ".join(BY_ENGINE)
    buckets = by("max", (*BY_ENGINE, "le"), per_second(names.bucket(family)))
    # Of several agents' series only the first counts: two would fail the whole query.
    release = f"topk by ({engine}) (1, {series(names.REPLICA_INFO.name)})"
    joined = f"{buckets}\n* on ({engine}) group_left ({', '.join(names.RELEASE)})\n{release}"
    # A quantile without requests is NaN, which draws no line and spoils the axis.
    return f"(histogram_quantile({q:g}, {by('sum', (*labels, *names.RELEASE, 'le'), joined)}) >= 0)"


def divide(above: str, below: str, matching: str = "") -> str:
    """Return a quotient without a result for a zero divisor."""
    return f"{above}\n/ {matching}\n({below} > 0)"


def by_gpu(above: str, below: str) -> str:
    """Return the quotient of two counter families for each GPU."""
    return divide(total(above, BY_GPU), total(below, BY_GPU))


def price_of(gpus: str) -> str:
    """Return the hourly cost of a tier's GPUs. The plan's currency stays a label."""
    return f"{gauge(names.PLAN_PRICE)}\n* {TO_POOLS}\n(\n{gpus}\n)"


def verdict_of(metric: ExportedMetric, rule: str, bound: str = "") -> str:
    """Return what a rule of the tier observed or expected."""
    return of_tier(metric, f'rule="{rule}"', f'bound="{bound}"')


def tolerated(rule: str) -> str:
    """Return the benchmark's value at this load with the rule's factor."""
    return f"{RULES[rule].thresholds['factor'].value:g} * {verdict_of(names.EXPECTED, rule)}"


UP_BY_POOL = by("sum", BY_POOL, gauge(names.TARGET_UP))
REPLICAS_UP = by("sum", BY_TIER, gauge(names.TARGET_UP))
GPUS_UP = f"{REPLICAS_UP}\n*\n{of_tier(names.PLAN_GPUS)}"
"""GPUs of running replicas, with the planned GPUs of each."""
USABLE_RPS = f"{UP_BY_POOL}\n* {TO_POOLS}\n{of_tier(names.CAPACITY_RPS)}"
PLANNED_IN_SYSTEM = f"{UP_BY_POOL}\n* {TO_POOLS}\n{of_tier(names.PLAN_C_MAX)}"
FINISHED = by("max", BY_TIER, total("requests_finished"))
"""Requests per second of a tier; where they pass through several pools, those of the busiest."""
GENERATED = total("generation_tokens", BY_TIER)
TTFT = by("max", BY_TIER, quantile(0.99, "ttft_seconds"))
TPOT = by("max", BY_TIER, quantile(0.99, "tpot_seconds"))
TTFT_SHARE = divide(TTFT, of_tier(names.PLAN_TTFT))
TPOT_SHARE = divide(TPOT, of_tier(names.PLAN_TPOT))
"""P99 as a share of its objective, for the worst pool and release."""
RESTARTS = by("max", BY_REPLICA, f"round(increase({series(names.exported('restarts'))}[{WINDOW}]))")

CERTAIN_VERDICTS = f"{gauge(names.VERDICT, WITHOUT_NOTES)}\n*\n{gauge(names.VERDICT_CERTAIN)}"
"""Likely verdicts count as 0."""
WORST_VERDICT = by("max", BY_TIER, CERTAIN_VERDICTS)
FIRING = f"{gauge(names.VERDICT, WITHOUT_NOTES)} > 0"
BLIND = by("count", (*BY_TIER, names.REASON), gauge(names.UNKNOWN, f'reason=~"{"|".join(NOT_SEEING)}"'))
_INCIDENTS = by("sum", BY_TIER, gauge(names.INCIDENT, LOUD))
INCIDENT_COUNT = f"{_INCIDENTS}\nor\n0 * {of_tier(names.VERDICT)}"

MONEY_PER_HOUR = price_of(GPUS_UP)
COST_PER_MILLION = f"1e6 / 3600 * ({MONEY_PER_HOUR} > 0)\n/ {TO_POOLS}\n({GENERATED} > 0)"
"""Money by generated tokens, divided once (DESIGN 3.14)."""
REQUESTS_FOR_MONEY = f"3600 * {FINISHED}\n/ {ON_TIER} group_right ()\n({MONEY_PER_HOUR} > 0)"
_PLANNED_GPUS = of_tier(names.PLAN_GPUS)
SURPLUS_MONEY = price_of(f"{of_tier(names.SURPLUS_REPLICAS)}\n*\n{_PLANNED_GPUS}")
TTFT_PRICE = f"{price_of(_PLANNED_GPUS)}\n* {TO_POOLS}\n({TTFT})"
_PREFILL, _DECODE = (
    by("sum", BY_POOL, by("max", BY_ENGINE, per_second(names.total(family))))
    for family in ("prefill_seconds", "decode_seconds")
)
PREFILL_SHARE = divide(_PREFILL, f"({_PREFILL} + {_DECODE})")


def beside_firing(metric: ExportedMetric) -> str:
    """Return what firing rules observed, expected or how certain they are."""
    return f"{by('max', (*BY_TIER, names.REPLICA, names.RULE), series(metric.name))}\nand\n({FIRING})"


Json = dict[str, Any]
COLUMNS = 24
PANEL_ROWS = 8
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
FOLDER = TAG = "sizewatch"
"""Folder in Grafana, and the tag of each dashboard."""

SETTINGS: Json = {"schemaVersion": 41, "editable": True, "graphTooltip": 1, "timezone": "utc", "refresh": "30s"}
SHORTEST_STEP = "30s"
"""Minimum query step. A shorter step exceeds the scraped samples and shrinks the rate window below four scrapes."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Look(_Row):
    """Row of looks.yaml."""

    unit: str = "short"
    first: str = "green"
    limits: tuple[tuple[str, str, str], ...] = ()
    steps: tuple[tuple[float, str], ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    top: int | None = None
    decimals: int | None = None

    def list_steps(self) -> list[tuple[float | None, str]]:
        """Return threshold steps, rising; the first value is None."""
        if self.states:
            return [(number or None, colour) for number, (_, colour) in enumerate(self.states)]
        limits = [(RULES[rule].thresholds[key].value, colour) for rule, key, colour in self.limits]
        return [(None, self.first), *sorted(limits), *self.steps]

    def field_config(self) -> Json:
        words = {}
        for number, (text, colour) in enumerate(self.states):
            words[str(number)] = {"text": text, "color": colour}
        steps = [{"value": value, "color": colour} for value, colour in self.list_steps()]
        config: Json = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        config["mappings"] = [{"type": "value", "options": words}] if words else []
        ends = {"decimals": self.decimals, "max": self.top}
        return config | {key: value for key, value in ends.items() if value is not None}

    def describe_limits(self) -> str:
        """Return in words the rules whose limits colour a panel, "" if there are none."""
        words = []
        for rule, key, _ in self.limits:
            words.append(f"{rule} {key.replace('_', ' ')} {RULES[rule].thresholds[key].value:g}")
        if not words:
            return ""
        return f"Colours: {', '.join(words)} (the catalogue's defaults)."


def _load_table(name: str) -> Any:
    return yaml.safe_load(files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8"))


_TABLE = _load_table("looks")
STYLES, OPTIONS, CUSTOM = _TABLE["styles"], _TABLE["options"], _TABLE["custom"]
CYCLE = Look(unit="s", steps=((float(CYCLE_AGE_SECONDS), "orange"),))
LOOKS: Mapping[str, Look] = {name: Look(**row) for name, row in _TABLE["looks"].items()} | {"cycle": CYCLE}


class Panel(_Row):
    """Panel: a mapping, or a row of title, look, text, lines and perhaps a mapping of the rest.

    `lines`, `plan`, `limit`, `band` and `faint` are expressions by legend. A band reaches down to the plan. `signal` is
    a name that they may use. `width` is in columns of 24. A table has `columns`: look and expression by title. `rows`
    are the labels of a row with their titles (none: equal in all rows). `links` lead from a column to a dashboard.
    """

    title: str
    text: str
    look: str = "number"
    tile: bool = False
    width: int = 8
    signal: str = ""
    lines: Mapping[str, str] = {}
    plan: Mapping[str, str] = {}
    limit: Mapping[str, str] = {}
    band: Mapping[str, str] = {}
    faint: Mapping[str, str] = {}
    columns: Mapping[str, tuple[str, str]] = {}
    rows: Mapping[str, str] = {}
    links: Mapping[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_row(cls, row: object) -> object:
        if not isinstance(row, list):
            return row
        title, look, text, lines, *rest = row
        return {"title": title, "look": look, "text": text, "lines": lines} | dict(*rest)

    @property
    def type(self) -> str:
        if self.columns:
            return "table"
        if self.tile:
            return "stat"
        return "state-timeline" if LOOKS[self.look].states else "timeseries"

    def list_queries(self) -> list[tuple[str, str, str, str]]:
        """Return letter, style, legend and expression of each query. Columns of a table have no legend."""
        queries = [("lines", "", expr) for _, expr in self.columns.values()]
        for style in STYLES:
            for legend, expr in getattr(self, style).items():
                queries.append((style, legend, expr))
        return [(letter, *query) for letter, query in zip(ascii_uppercase, queries, strict=False)]


class Dashboard(_Row):
    """Dashboard with rows of panels in reading order. Its `uid` is public: links and alerts use it.

    Rows that are `folded` load when they are opened, those of `replicas` show the chosen replicas.
    """

    uid: str
    title: str
    text: str
    since: str
    scope: Literal["tiers", "tier", "agents"]
    variables: tuple[str, ...]
    sections: Mapping[str, tuple[Panel, ...]]
    folded: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()


DASHBOARDS = tuple(Dashboard(**_load_table(name)) for name in ("fleet", "tier", "forecast", "itself"))

_CLUSTERS = 'cluster=~"$cluster"'
SCOPES = {
    "tiers": f'{_CLUSTERS}, tier=~"$tier"',
    "tier": f'{_CLUSTERS}, tier="$tier"',
    "agents": 'instance=~"$instance"',
}
_UP, _INFO = names.TARGET_UP.name, names.REPLICA_INFO.name
_OF_MODEL = f'{_INFO}{{{_CLUSTERS}, model=~"$model"}}'
VARIABLES: Mapping[str, tuple[str, str, str, str | None]] = {
    "cluster": ("Cluster", _UP, "cluster", ".*"),
    "model": ("Model", f"{_INFO}{{{_CLUSTERS}}}", "model", ".*"),
    "tiers": ("Tier", _OF_MODEL, "tier", ""),
    "tier": ("Tier", _OF_MODEL, "tier", None),
    "replica": ("Replica", f"{_UP}{{{SCOPES['tier']}}}", "replica", ".*"),
    "instance": ("Agent", names.BUILD_INFO.name, "instance", ".*"),
}
"""Title, source, label, and what All stands for ("": the values themselves; None: there is no All)."""

ANNOTATIONS = (
    ("Incidents: critical", "red", "gauge(INCIDENT, 'severity=\"critical\"')", "{{root}}"),
    ("Incidents: warning", "orange", "gauge(INCIDENT, 'severity=\"warning\"')", "{{root}}"),
    ("Restarts", "blue", "RESTARTS ~ ' > 0'", "Engine restarted: {{replica}}"),
)
"""Title, colour, expression and heading of the marks on every dashboard about tiers."""

_EXPRESSIONS = Environment(undefined=StrictUndefined, autoescape=False)
_WORDS = {**vars(names), **globals()}


def promql_of(expr: str, scope: str, chosen: str = "", signal: str = "") -> str:
    """Return the PromQL of an expression of a table, of `chosen` replicas only. Raise jinja2.TemplateError for another."""
    text = _EXPRESSIONS.compile_expression(expr, undefined_to_none=False)(**_WORDS, signal=signal)
    return str(text).replace(SCOPE, scope + chosen).replace(OF_TIER, scope)


def dashboard_json(dashboard: Dashboard) -> Json:
    """Return the model that Grafana imports."""
    link = {"type": "dashboards", "title": TAG, "tags": [TAG]}
    source = {"name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1}
    marks = [] if dashboard.scope == "agents" else ANNOTATIONS
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": [TAG],
        **SETTINGS,
        "time": {"from": f"now-{dashboard.since}", "to": "now"},
        "links": [{**link, "asDropdown": True, "includeVars": True, "keepTime": True}],
        "templating": {"list": [source, *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_annotation(*mark, SCOPES[dashboard.scope]) for mark in marks]},
        "panels": list(_place_panels(dashboard)),
    }


def _dashboard_text(dashboard: Dashboard, indent: int | None) -> str:
    return json.dumps(dashboard_json(dashboard), indent=indent, ensure_ascii=False) + "\n"


def _variable(name: str) -> Json:
    title, source, label, everything = VARIABLES[name]
    query, is_multiple = f"label_values({source}, {label})", everything is not None
    variable: Json = {
        "name": label,
        "type": "query",
        "label": title,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": is_multiple,
        "includeAll": is_multiple,
    }
    if is_multiple:
        variable["current"] = {"text": ["All"], "value": ["$__all"]}
    if everything:
        variable["allValue"] = everything
    return variable


def _annotation(title: str, colour: str, expr: str, heading: str, scope: str) -> Json:
    mark: Json = {"name": title, "datasource": DATASOURCE, "enable": True, "iconColor": colour, "step": "60s"}
    return {**mark, "expr": promql_of(expr, scope), "titleFormat": heading, "textFormat": "{{tier}}"}


def _place_panels(dashboard: Dashboard) -> Iterator[Json]:
    """Yield rows and panels from left to right, each line as high as its highest panel. Ids follow this order."""
    number, y = 0, 0
    for title, panels in dashboard.sections.items():
        number, place = number + 1, {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        row: Json = {"id": number, "type": "row", "title": title, "collapsed": title in dashboard.folded, "panels": []}
        row["gridPos"] = place
        chosen = ', replica=~"$replica"' if title in dashboard.replicas else ""
        models, x, y, height = list[Json](), 0, y + 1, 0
        for panel in panels:
            width, rows = (4, 4) if panel.tile else (panel.width, PANEL_ROWS)
            if x + width > COLUMNS:
                x, y, height = 0, y + height, 0
            number, place = number + 1, {"x": x, "y": y, "w": width, "h": rows}
            models.append({"id": number, "gridPos": place, **_panel(panel, SCOPES[dashboard.scope], chosen)})
            x, height = x + width, max(height, rows)
        if row["collapsed"]:
            y = row["gridPos"]["y"] + 1
            yield {**row, "panels": models}
        else:
            y += height
            yield from (row, *models)


def _panel(panel: Panel, scope: str, chosen: str) -> Json:
    is_table, look = panel.type == "table", LOOKS[panel.look]
    shape = {"instant": is_table, "range": not is_table, "format": "table" if is_table else "time_series"}
    targets, overrides = [], []
    for letter, style, legend, expr in panel.list_queries():
        target = {"refId": letter, "datasource": DATASOURCE, "editorMode": "code", "legendFormat": legend, **shape}
        targets.append({**target, "expr": promql_of(expr, scope, chosen, panel.signal)})
        values = STYLES[style]
        if style == "band":
            values = {**values, "custom.fillBelowTo": next(iter(panel.plan))}
        if values:
            overrides.append(_override("byFrameRefID", letter, values))
    custom: Json = dict(CUSTOM.get(panel.type, {}))
    colours: Json = {"color": {"mode": "thresholds"}}
    if panel.type == "timeseries":
        colours = {"color": {"mode": "palette-classic"}, "min": 0.0}
        if look.limits:
            custom["thresholdsStyle"] = {"mode": "dashed"}
        if look.top is None:
            custom["axisSoftMax"] = 0.1
    limits = (LOOKS[name].describe_limits() for name in (panel.look, *(name for name, _ in panel.columns.values())))
    model: Json = {
        "type": panel.type,
        "title": panel.title,
        "description": "\n\n".join([panel.text, *filter(None, limits)]),
        "datasource": DATASOURCE,
        "interval": SHORTEST_STEP,
        "targets": targets,
        "fieldConfig": {"defaults": look.field_config() | {"custom": custom} | colours, "overrides": overrides},
        "options": OPTIONS.get(panel.type, {}),
    }
    if is_table:
        overrides += _columns(panel)
        model["transformations"] = _join(panel)
    return model


def _override(kind: str, target: str, values: Mapping[str, object]) -> Json:
    properties = [{"id": key, "value": value} for key, value in values.items()]
    return {"matcher": {"id": kind, "options": target}, "properties": properties}


def _columns(panel: Panel) -> Iterator[Json]:
    for title, target in panel.links.items():
        keep = "${datasource:queryparam}&${cluster:queryparam}&var-tier=${__data.fields.Tier}&${__url_time_range}"
        yield _override("byName", title, {"links": [{"title": target, "url": f"/d/{target}?{keep}"}]})
    for title, (name, _) in panel.columns.items():
        look, values = LOOKS[name], LOOKS[name].field_config()
        if look.states or len(look.list_steps()) > 1:
            values["custom.cellOptions"] = {"type": "color-background" if look.states else "color-text"}
        yield _override("byName", title, values)


def _join(panel: Panel) -> list[Json]:
    titles = {label: title for label, title in panel.rows.items() if title}
    titles |= {f"Value #{letter}": title for letter, title in zip(ascii_uppercase, panel.columns, strict=False)}
    options = {
        "excludeByName": dict.fromkeys(("Time", *(panel.rows.keys() - titles.keys())), True),
        "indexByName": {name: place for place, name in enumerate(titles)},
        "renameByName": titles,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]


FILES: Mapping[str, Callable[[], str]] = {
    f"{folder}/{board.uid}.json": partial(_dashboard_text, board, indent)
    for folder, indent in (("grafana/dashboards", 2), ("deploy/chart/sizewatch/files", None))
    for board in DASHBOARDS
}
"""Render functions by path from the root of the repository. A chart reads only files of its own folder."""
