"""Dashboards: tables of panels in YAML beside this file, printed as Grafana's JSON (the classic schema of Grafana 10 on).

A panel is a row of its dashboard's file. Its expressions are those of `exporters.grafana.promql`. Limits come from
`rules.catalogue.registry`; an override in the configuration does not reach the dashboards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Literal

import yaml
from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel, ConfigDict

from exporters.grafana import promql
from exporters.grafana.looks import CURRENCIES, CUSTOM, LIMITS, OPTIONS, STYLES, Json, colour_text, list_looks
from exporters.metrics import names, self_metrics

TAG, COLUMNS, CURRENCY_UNIT = "sizewatch", 24, "locale"
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
SHORTEST_STEP = "30s"
"""Minimum query step. A shorter step exceeds the scraped samples and shrinks the rate window below four scrapes."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Row):
    """Column of a table: its expression's newest value."""

    title: str
    expr: str
    unit: str = "short"
    colours: str = ""
    states: str = ""
    decimals: int | None = None


class Panel(_Row):
    """Panel: `lines`, `plan`, `limit`, `band` and `faint` are expressions by legend. A band reaches down to the plan.

    `width` is in columns of 24. `top` is the fixed end of the axis. Of a table, `rows` are the labels of a row with their
    titles, `hidden` labels are equal in all rows, and `links` lead from a column to a dashboard.
    """

    title: str
    text: str
    type: Literal["timeseries", "stat", "table", "state-timeline"] = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 7
    colours: str = ""
    states: str = ""
    top: float | None = None
    decimals: int | None = None
    lines: Mapping[str, str] = {}
    plan: Mapping[str, str] = {}
    limit: Mapping[str, str] = {}
    band: Mapping[str, str] = {}
    faint: Mapping[str, str] = {}
    columns: tuple[Column, ...] = ()
    rows: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()
    links: Mapping[str, str] = {}


class Section(_Row):
    """Row of panels in reading order. Those of a `folded` row load when it is opened, `replicas` are the chosen ones."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False
    replicas: bool = False


class Dashboard(_Row):
    """Dashboard. Its `uid` is public: links and alerts use it."""

    uid: str
    title: str
    text: str
    since: str
    scope: Literal["tiers", "tier", "agents"]
    variables: tuple[str, ...]
    sections: tuple[Section, ...]


def _read(name: str) -> Dashboard:
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return Dashboard.model_validate(yaml.safe_load(text))


DASHBOARDS = tuple(_read(name) for name in ("fleet", "tier", "forecast", "itself"))

_CLUSTERS = 'cluster=~"$cluster"'
SCOPES = {
    "tiers": f'{_CLUSTERS}, tier=~"$tier"',
    "tier": f'{_CLUSTERS}, tier="$tier"',
    "agents": 'instance=~"$instance"',
}
_UP, _INFO = self_metrics.TARGET_UP.name, self_metrics.REPLICA_INFO.name
_OF_MODEL = f'{_INFO}{{{_CLUSTERS}, model=~"$model"}}'
VARIABLES: Mapping[str, tuple[str, str, str, str | None]] = {
    "cluster": ("Cluster", _UP, "cluster", ".*"),
    "model": ("Model", f"{_INFO}{{{_CLUSTERS}}}", "model", ".*"),
    "tiers": ("Tier", _OF_MODEL, "tier", ""),
    "tier": ("Tier", _OF_MODEL, "tier", None),
    "replica": ("Replica", f"{_UP}{{{SCOPES['tier']}}}", "replica", ".*"),
    "instance": ("Agent", self_metrics.BUILD_INFO.name, "instance", ".*"),
}
"""Title, source, label, and what All stands for ("": the values themselves; None: there is no All)."""

_EXPRESSIONS = Environment(undefined=StrictUndefined, autoescape=False)
_WORDS = {**vars(names), **vars(self_metrics), **vars(promql)}


def promql_of(expr: str, scope: str, chosen: str = "") -> str:
    """Return the PromQL of an expression of a table, `chosen` replicas only. Raise jinja2.TemplateError where it cannot be read."""
    text = _EXPRESSIONS.compile_expression(expr, undefined_to_none=False)(**_WORDS)
    return str(text).replace(promql.SCOPE, scope + chosen).replace(promql.OF_TIER, scope)


def dashboard_json(dashboard: Dashboard) -> Json:
    """Return the model that Grafana imports."""
    scope = SCOPES[dashboard.scope]
    link = {
        "type": "dashboards",
        "title": TAG,
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }
    source = {"name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1}
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": [TAG],
        "schemaVersion": 41,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": f"now-{dashboard.since}", "to": "now"},
        "links": [link],
        "templating": {"list": [source, *(_variable(name) for name in dashboard.variables)]},
        "annotations": {"list": [] if dashboard.scope == "agents" else list(_annotations(scope))},
        "panels": list(_place_panels(dashboard)),
    }


def _variable(name: str) -> Json:
    title, source, label, everything = VARIABLES[name]
    query, is_multiple = f"label_values({source}, {label})", everything is not None
    return {
        "name": label,
        "type": "query",
        "label": title,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": is_multiple,
        "includeAll": is_multiple,
        **({"allValue": everything} if everything else {}),
        "current": {"text": ["All"], "value": ["$__all"]} if is_multiple else {},
    }


def _annotations(scope: str) -> Iterator[Json]:
    incidents = "gauge(INCIDENT, 'severity=\"{}\"')".format
    for title, colour, expr, heading in (
        ("Incidents: critical", "red", incidents("critical"), "{{root}}"),
        ("Incidents: warning", "orange", incidents("warning"), "{{root}}"),
        ("Restarts", "blue", "RESTARTS ~ ' > 0'", "Engine restarted: {{replica}}"),
    ):
        yield {
            "name": title,
            "datasource": DATASOURCE,
            "enable": True,
            "iconColor": colour,
            "expr": promql_of(expr, scope),
            "step": "60s",
            "titleFormat": heading,
            "textFormat": "{{tier}}",
        }


def _place_panels(dashboard: Dashboard) -> Iterator[Json]:
    """Yield rows and panels from left to right, each line as high as its highest panel. Ids follow this order."""
    number, y = 0, 0
    for section in dashboard.sections:
        chosen = ', replica=~"$replica"' if section.replicas else ""
        number += 1
        row: Json = {"id": number, "type": "row", "title": section.title, "collapsed": section.folded, "panels": []}
        row["gridPos"] = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        panels, x, y, height = list[Json](), 0, y + 1, 0
        for panel in section.panels:
            width, rows = (4, 4) if panel.type == "stat" else (panel.width, panel.height)
            if x + width > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            place = {"x": x, "y": y, "w": width, "h": rows}
            panels.append({"id": number, "gridPos": place, **_panel(panel, SCOPES[dashboard.scope], chosen)})
            x, height = x + width, max(height, rows)
        y = row["gridPos"]["y"] + 1 if section.folded else y + height
        yield from [{**row, "panels": panels}] if section.folded else [row, *panels]


def _panel(panel: Panel, scope: str, chosen: str) -> Json:
    table = panel.type == "table"
    drawn = [(style, legend, expr) for style in STYLES for legend, expr in getattr(panel, style).items()]
    expressions = [column.expr for column in panel.columns] if table else [expr for _, _, expr in drawn]
    legends = [""] * len(panel.columns) if table else [legend for _, legend, _ in drawn]
    overrides = list(_columns(panel)) if table else [*_styles(panel, drawn), *_currencies(panel)]
    return {
        "type": panel.type,
        "title": panel.title,
        "description": "\n\n".join(filter(None, (panel.text, colour_text(panel.colours)))),
        "datasource": DATASOURCE,
        "interval": SHORTEST_STEP,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": promql_of(expr, scope, chosen),
                "legendFormat": legend,
                "instant": table,
                "range": not table,
                "format": "table" if table else "time_series",
            }
            for place, (expr, legend) in enumerate(zip(expressions, legends, strict=True))
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": overrides},
        "options": OPTIONS[panel.type],
        **({"transformations": _join(panel)} if table else {}),
    }


def _defaults(panel: Panel) -> Json:
    lines = panel.type == "timeseries"
    custom = dict(CUSTOM.get(panel.type, {}))
    if lines and panel.colours in LIMITS:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if lines and panel.top is None:
        custom["axisSoftMax"] = 0.1
    axis = {"min": 0.0 if lines else None, "max": panel.top, "decimals": panel.decimals}
    return {
        "unit": panel.unit,
        **{key: value for key, value in axis.items() if value is not None},
        "color": {"mode": "palette-classic" if lines else "thresholds"},
        **list_looks(panel.colours, panel.states),
        "custom": custom,
    }


def _styles(panel: Panel, drawn: list[tuple[str, str, str]]) -> Iterator[Json]:
    """Yield the looks of series that are not measured values."""
    for place, (style, _, _) in enumerate(drawn):
        colour, settings = STYLES[style]
        if colour:
            down = {"fillBelowTo": next(iter(panel.plan))} if style == "band" else {}
            values = {"color": {"mode": "fixed", "fixedColor": colour}}
            values |= {f"custom.{key}": value for key, value in {**settings, **down}.items()}
            yield _override("byFrameRefID", chr(ord("A") + place), values)


def _override(kind: str, what: str, values: Mapping[str, Any]) -> Json:
    properties = [{"id": key, "value": value} for key, value in values.items()]
    return {"matcher": {"id": kind, "options": what}, "properties": properties}


def _currencies(panel: Panel) -> Iterator[Json]:
    """Yield the unit of the series whose legend ends with a currency."""
    for code in CURRENCIES if panel.unit == CURRENCY_UNIT else ():
        yield _override("byRegexp", f"/\\b{code}$/", {"unit": f"currency{code}"})


def _columns(panel: Panel) -> Iterator[Json]:
    """Yield links, unit, colours and words of each column."""
    for title, target in panel.links.items():
        keep = "${datasource:queryparam}&${cluster:queryparam}&var-tier=${__data.fields.Tier}&${__url_time_range}"
        yield _override("byName", title, {"links": [{"title": target, "url": f"/d/{target}?{keep}"}]})
    for column in panel.columns:
        values: Json = {"unit": column.unit}
        if column.decimals is not None:
            values["decimals"] = column.decimals
        if column.colours or column.states:
            coloured = "color-background" if column.states else "color-text"
            values |= {**list_looks(column.colours, column.states), "custom.cellOptions": {"type": coloured}}
        yield _override("byName", column.title, values)


def _join(panel: Panel) -> list[Json]:
    """Return the join of all query results by labels, with a column per label and query."""
    columns = {f"Value #{chr(ord('A') + place)}": column.title for place, column in enumerate(panel.columns)}
    titles = {**panel.rows, **columns}
    options = {
        "excludeByName": dict.fromkeys(("Time", *panel.hidden), True),
        "indexByName": {name: place for place, name in enumerate(titles)},
        "renameByName": titles,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]
