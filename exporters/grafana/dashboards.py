"""Dashboards: tables of panels in YAML beside this file, printed as Grafana's JSON (the classic schema of Grafana 10 on).

A panel is a row of its dashboard's file. Its expressions are those of `exporters.grafana.promql`, its look is a row of
`exporters.grafana.looks`. Limits are the catalogue's; an override in the configuration does not reach the dashboards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from string import ascii_uppercase
from typing import Literal

import yaml
from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel, ConfigDict, model_validator

from exporters.grafana import promql
from exporters.grafana.looks import CURRENCIES, CUSTOM, LOOKS, MONEY, OPTIONS, STYLES, Json
from exporters.metrics import names, self_metrics

TAG, COLUMNS = "sizewatch", 24
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
FOLDER = "sizewatch"
"""Folder in Grafana."""

SETTINGS: Json = {"schemaVersion": 41, "editable": True, "graphTooltip": 1, "timezone": "utc", "refresh": "30s"}
SHORTEST_STEP = "30s"
"""Minimum query step. A shorter step exceeds the scraped samples and shrinks the rate window below four scrapes."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Panel(_Row):
    """Panel: a mapping, or a row of title, look, text and lines.

    `lines`, `plan`, `limit`, `band` and `faint` are expressions by legend. A band reaches down to the plan. `width` is in
    columns of 24. A table has `columns`: look and expression by title. `rows` are the labels of a row with their titles,
    labels without a title are equal in all rows, and `links` lead from a column to a dashboard.
    """

    title: str
    text: str
    look: str = "number"
    tile: bool = False
    width: int = 8
    height: int = 7
    lines: Mapping[str, str] = {}
    plan: Mapping[str, str] = {}
    limit: Mapping[str, str] = {}
    band: Mapping[str, str] = {}
    faint: Mapping[str, str] = {}
    columns: Mapping[str, tuple[str, str]] = {}
    rows: Mapping[str, str] = {}
    links: Mapping[str, str] = {}

    @property
    def type(self) -> str:
        """Return the type of Grafana's panel."""
        if self.columns:
            return "table"
        if self.tile:
            return "stat"
        return "state-timeline" if LOOKS[self.look].states else "timeseries"

    @model_validator(mode="before")
    @classmethod
    def _read_row(cls, row: object) -> object:
        return dict(zip(("title", "look", "text", "lines"), row, strict=True)) if isinstance(row, list) else row

    def list_queries(self) -> list[tuple[str, str, str, str]]:
        """Return letter, style, legend and expression of each query. Columns of a table have no legend."""
        queries = [("columns", "", expr) for _, expr in self.columns.values()]
        queries += [(style, legend, expr) for style in STYLES for legend, expr in getattr(self, style).items()]
        return [(letter, *query) for letter, query in zip(ascii_uppercase, queries, strict=False)]


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


def _load_dashboard(name: str) -> Dashboard:
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return Dashboard.model_validate(yaml.safe_load(text))


DASHBOARDS = tuple(_load_dashboard(name) for name in ("fleet", "tier", "forecast", "itself"))

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
    link = {"type": "dashboards", "title": TAG, "tags": [TAG]}
    source = {"name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1}
    marks = [] if dashboard.scope == "agents" else list(_annotations(SCOPES[dashboard.scope]))
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": [TAG],
        **SETTINGS,
        "time": {"from": f"now-{dashboard.since}", "to": "now"},
        "links": [{**link, "asDropdown": True, "includeVars": True, "keepTime": True}],
        "templating": {"list": [source, *(_variable(name) for name in dashboard.variables)]},
        "annotations": {"list": marks},
        "panels": list(_place_panels(dashboard)),
    }


def dashboard_text(dashboard: Dashboard, indent: int | None = 2) -> str:
    """Return a dashboard for file provisioning, the API and the import page. Its data source is a variable."""
    return json.dumps(dashboard_json(dashboard), indent=indent, ensure_ascii=False) + "\n"


def _variable(name: str) -> Json:
    title, source, label, everything = VARIABLES[name]
    query, is_multiple = f"label_values({source}, {label})", everything is not None
    variable: Json = {"name": label, "type": "query", "label": title, "datasource": DATASOURCE, "definition": query}
    variable |= {"query": {"query": query, "refId": label}, "refresh": 2, "sort": 1, "current": {}}
    variable |= {"multi": is_multiple, "includeAll": is_multiple}
    if is_multiple:
        variable["current"] = {"text": ["All"], "value": ["$__all"]}
    if everything:
        variable["allValue"] = everything
    return variable


def _annotations(scope: str) -> Iterator[Json]:
    for title, colour, expr, heading in (
        ("Incidents: critical", "red", "gauge(INCIDENT, 'severity=\"critical\"')", "{{root}}"),
        ("Incidents: warning", "orange", "gauge(INCIDENT, 'severity=\"warning\"')", "{{root}}"),
        ("Restarts", "blue", "RESTARTS ~ ' > 0'", "Engine restarted: {{replica}}"),
    ):
        mark: Json = {"name": title, "datasource": DATASOURCE, "enable": True, "iconColor": colour, "step": "60s"}
        yield {**mark, "expr": promql_of(expr, scope), "titleFormat": heading, "textFormat": "{{tier}}"}


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
        if section.folded:
            y = row["gridPos"]["y"] + 1
            yield {**row, "panels": panels}
        else:
            y += height
            yield from (row, *panels)


def _panel(panel: Panel, scope: str, chosen: str) -> Json:
    look = LOOKS[panel.look]
    limits = [look.describe_limits(), *(LOOKS[name].describe_limits() for name, _ in panel.columns.values())]
    lines = panel.type == "timeseries"
    custom = dict(CUSTOM[panel.type])
    if lines and look.limits:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if lines and look.top is None:
        custom["axisSoftMax"] = 0.1
    defaults: Json = {**look.field_config(), "custom": custom, "color": {"mode": "thresholds"}}
    if lines:
        defaults |= {"min": 0.0, "color": {"mode": "palette-classic"}}
    model = {
        "type": panel.type,
        "title": panel.title,
        "description": "\n\n".join([panel.text, *filter(None, limits)]),
        "datasource": DATASOURCE,
        "interval": SHORTEST_STEP,
        "targets": list(_targets(panel, scope, chosen)),
        "fieldConfig": {"defaults": defaults, "overrides": [*_styles(panel), *_columns(panel)]},
        "options": OPTIONS[panel.type],
    }
    return {**model, "transformations": _join(panel)} if panel.columns else model


def _targets(panel: Panel, scope: str, chosen: str) -> Iterator[Json]:
    table = panel.type == "table"
    shape = {"instant": table, "range": not table, "format": "table" if table else "time_series"}
    for letter, _, legend, expr in panel.list_queries():
        target: Json = {"refId": letter, "datasource": DATASOURCE, "editorMode": "code", "legendFormat": legend}
        yield {**target, **shape, "expr": promql_of(expr, scope, chosen)}


def _override(kind: str, target: str, values: Mapping[str, object]) -> Json:
    properties = [{"id": key, "value": value} for key, value in values.items()]
    return {"matcher": {"id": kind, "options": target}, "properties": properties}


def _styles(panel: Panel) -> Iterator[Json]:
    """Yield the looks of series that are not measured values, and the unit of series whose legend ends with a currency."""
    for letter, style, _, _ in panel.list_queries():
        colour, settings = STYLES.get(style, ("", {}))
        if colour:
            values: Json = {"color": {"mode": "fixed", "fixedColor": colour}}
            values |= {f"custom.{key}": value for key, value in settings.items()}
            if style == "band":
                values["custom.fillBelowTo"] = next(iter(panel.plan))
            yield _override("byFrameRefID", letter, values)
    for code in CURRENCIES if LOOKS[panel.look].unit == MONEY else ():
        yield _override("byRegexp", f"/\\b{code}$/", {"unit": f"currency{code}"})


def _columns(panel: Panel) -> Iterator[Json]:
    """Yield links, unit, colours and words of each column."""
    for title, target in panel.links.items():
        keep = "${datasource:queryparam}&${cluster:queryparam}&var-tier=${__data.fields.Tier}&${__url_time_range}"
        yield _override("byName", title, {"links": [{"title": target, "url": f"/d/{target}?{keep}"}]})
    for title, (name, _) in panel.columns.items():
        look, values = LOOKS[name], LOOKS[name].field_config()
        if look.states or len(look.list_steps()) > 1:
            values["custom.cellOptions"] = {"type": "color-background" if look.states else "color-text"}
        yield _override("byName", title, values)


def _join(panel: Panel) -> list[Json]:
    """Return the join of all query results by labels, with a column per label and query."""
    titles = {label: title for label, title in panel.rows.items() if title}
    titles |= {f"Value #{letter}": title for letter, title in zip(ascii_uppercase, panel.columns, strict=False)}
    options = {
        "excludeByName": dict.fromkeys(("Time", *(panel.rows.keys() - titles.keys())), True),
        "indexByName": {name: place for place, name in enumerate(titles)},
        "renameByName": titles,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]


FILES: Mapping[str, Callable[[], str]] = {
    f"{folder}/{board.uid}.json": partial(dashboard_text, board, indent)
    for folder, indent in (("grafana/dashboards", 2), ("deploy/chart/sizewatch/files", None))
    for board in DASHBOARDS
}
"""Render functions by path from the root of the repository. A chart reads only files of its own folder."""
