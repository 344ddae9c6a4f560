"""Grafana JSON of dashboards, in the classic schema of Grafana 10 and later.

Panels are laid out on a grid of 24 columns. A new type of panel is a row of OPTIONS and of CUSTOM, a new line style a
row of LINES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exporters.grafana.records import (
    AT_LEAST,
    BLUE,
    CURRENCIES,
    GREY,
    MONEY,
    NONE_WANTED,
    PLAIN,
    RED,
    Annotation,
    Dashboard,
    LineStyle,
    Panel,
    PanelType,
    Query,
    Section,
    States,
    Steps,
    Variable,
    colour_text,
)

Json = dict[str, Any]

SCHEMA_VERSION = 41
COLUMNS = 24
TAG = "sizewatch"
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

SHORTEST_STEP = "30s"
"""Minimum query step. A shorter step exceeds the scraped samples and shrinks the rate window below four scrapes."""

CUSTOM: Mapping[PanelType, Json] = {
    PanelType.LINES: {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 6,
        "showPoints": "auto",
        "pointSize": 4,
        "spanNulls": False,
        "axisPlacement": "auto",
        "thresholdsStyle": {"mode": "off"},
    },
    PanelType.STAT: {},
    PanelType.TABLE: {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True},
    PanelType.STATES: {"fillOpacity": 80, "lineWidth": 0},
}
"""Custom field settings by type of panel."""

_DASHED: Json = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}
_EMPTY: Json = {"id": "custom.fillOpacity", "value": 0}


def _fixed(colour: str) -> Json:
    return {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}


LINES: Mapping[LineStyle, tuple[Json, ...]] = {
    LineStyle.SEEN: (),
    LineStyle.PLAN: (_DASHED, _EMPTY, _fixed(BLUE), {"id": "custom.lineWidth", "value": 2}),
    LineStyle.LIMIT: (_DASHED, _EMPTY, _fixed(RED)),
    LineStyle.BAND: (_fixed(BLUE), {"id": "custom.lineWidth", "value": 0}, {"id": "custom.fillOpacity", "value": 18}),
    LineStyle.FAINT: (_EMPTY, _fixed(GREY)),
}
"""Overrides by line style that distinguish a line from measured values."""


def thresholds(steps: Steps) -> Json:
    """Return thresholds in Grafana's form."""
    return {"mode": "absolute", "steps": [{"value": step.value, "color": step.colour} for step in steps]}


def mappings(states: States) -> list[Json]:
    """Return words and colours for values."""
    if not states:
        return []
    options = {str(one.value): {"text": one.text, "color": one.colour, "index": one.value} for one in states}
    return [{"type": "value", "options": options}]


def line_overrides(panel: Panel, refs: tuple[str, ...]) -> list[Json]:
    """Return the style overrides of series that are not measured values."""
    return [
        {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": [*LINES[query.line], *_down_to(query)]}
        for ref, query in zip(refs, panel.queries, strict=True)
        if query.line is not LineStyle.SEEN
    ]


def _down_to(query: Query) -> Iterator[Json]:
    if query.down_to:
        yield {"id": "custom.fillBelowTo", "value": query.down_to}


def column_overrides(panel: Panel) -> list[Json]:
    """Return unit, colours and words of each column, and the links of a row's labels."""
    linked = [
        {
            "matcher": {"id": "byName", "options": title},
            "properties": [{"id": "links", "value": [{"title": text, "url": address, "targetBlank": False}]}],
        }
        for title, text, address in panel.links
    ]
    return [*linked, *(_column(query) for query in panel.queries)]


def _column(query: Query) -> Json:
    coloured = "color-background" if query.states else "color-text"
    plain = len(query.steps) == 1 and not query.states
    properties: list[Json] = [{"id": "unit", "value": query.unit}]
    if query.decimals is not None:
        properties.append({"id": "decimals", "value": query.decimals})
    if not plain:
        properties += [
            {"id": "thresholds", "value": thresholds(query.steps)},
            {"id": "custom.cellOptions", "value": {"type": coloured}},
        ]
    if query.states:
        properties.append({"id": "mappings", "value": mappings(query.states)})
    return {"matcher": {"id": "byName", "options": query.legend}, "properties": properties}


def dashboard_json(dashboard: Dashboard) -> Json:
    """Return the model that Grafana imports."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": f"now-{dashboard.since}", "to": "now"},
        "links": [_link()],
        "templating": {"list": [_datasource(), *(_variable(one) for one in dashboard.variables)]},
        "annotations": {"list": [_mark(one) for one in dashboard.marks]},
        "panels": list(_placed(dashboard.sections)),
    }


def _link() -> Json:
    """Return the link to the other dashboards, which keeps variables and time range."""
    return {
        "type": "dashboards",
        "title": "sizewatch",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "icon": "external link",
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "type": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.source}, {variable.label})"
    all_of_them: Json = {"allValue": variable.everything} if variable.everything else {}
    return {
        "name": variable.name,
        "type": "query",
        "label": variable.title,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "hide": 0,
        "multi": variable.many,
        "includeAll": variable.many,
        **all_of_them,
        "options": [],
        "current": {"text": ["All"], "value": ["$__all"]} if variable.many else {},
    }


def _mark(mark: Annotation) -> Json:
    return {
        "name": mark.title,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": mark.colour,
        "expr": mark.expr,
        "step": SHORTEST_STEP,
        "titleFormat": mark.heading,
        "textFormat": mark.text,
        "tagKeys": "tier,replica",
        "useValueForTime": False,
    }


def _placed(sections: tuple[Section, ...]) -> Iterator[Json]:
    """Yield rows and panels from left to right, each line as high as its highest panel. Ids follow this order."""
    number, y = 0, 0
    for section in sections:
        number += 1
        row, inside = _row(number, section, y), list[Json]()
        x, y, height = 0, y + 1, 0
        for panel in section.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            inside.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
            x, height = x + panel.width, max(height, panel.height)
        y = row["gridPos"]["y"] + 1 if section.folded else y + height
        yield from [{**row, "panels": inside}] if section.folded else [row, *inside]


def _row(number: int, section: Section, y: int) -> Json:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    head = {"id": number, "type": "row", "title": section.title}
    return {**head, "collapsed": section.folded, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: Json) -> Json:
    moved: Json = {"transformations": _transformations(panel)} if panel.kind is PanelType.TABLE else {}
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": "\n\n".join(filter(None, (panel.description, colour_text(panel.steps)))),
        "gridPos": place,
        "datasource": DATASOURCE,
        "interval": SHORTEST_STEP,
        "targets": [_target(panel.kind, query, ref) for ref, query in zip(refs(panel), panel.queries, strict=True)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": OPTIONS[panel.kind],
        **moved,
    }


def refs(panel: Panel) -> tuple[str, ...]:
    """Return the letters of the queries."""
    return tuple(chr(ord("A") + place) for place in range(len(panel.queries)))


def _target(kind: PanelType, query: Query, ref: str) -> Json:
    once = kind is PanelType.TABLE
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": "" if once else query.legend,
        "instant": once,
        "range": not once,
        "format": "table" if once else "time_series",
    }


def _defaults(panel: Panel) -> Json:
    custom = dict(CUSTOM[panel.kind])
    if panel.kind is PanelType.LINES and panel.top is None and panel.unit in AT_LEAST:
        custom["axisSoftMax"] = AT_LEAST[panel.unit]
    if panel.kind is PanelType.LINES and panel.steps not in (PLAIN, NONE_WANTED):
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
        custom["fillOpacity"] = 40
    axis: Json = {"min": 0} if panel.kind is PanelType.LINES else {}
    if panel.top is not None:
        axis["max"] = panel.top
    if panel.decimals is not None:
        axis["decimals"] = panel.decimals
    return {
        "unit": panel.unit,
        **axis,
        "color": {"mode": "palette-classic" if panel.kind is PanelType.LINES else "thresholds"},
        "thresholds": thresholds(panel.steps),
        "mappings": mappings(panel.states),
        "custom": custom,
    }


def _overrides(panel: Panel) -> list[Json]:
    if panel.kind is PanelType.TABLE:
        return column_overrides(panel)
    return [*(line_overrides(panel, refs(panel)) if panel.kind is PanelType.LINES else ()), *_currencies(panel)]


def _currencies(panel: Panel) -> Iterator[Json]:
    """Yield the unit of the series whose legend ends with a currency."""
    for code in CURRENCIES if panel.unit == MONEY else ():
        unit = {"id": "unit", "value": f"currency{code}"}
        yield {"matcher": {"id": "byRegexp", "options": f"/\\b{code}$/"}, "properties": [unit]}


def _transformations(panel: Panel) -> list[Json]:
    """Return the join of all query results by labels, with a column per label and query."""
    columns = [label for label, _ in panel.rows] + [f"Value #{ref}" for ref in refs(panel)]
    titles = [title for _, title in panel.rows] + [query.legend for query in panel.queries]
    options = {
        "excludeByName": dict.fromkeys(("Time", *panel.hidden), True),
        "indexByName": {column: place for place, column in enumerate(columns)},
        "renameByName": dict(zip(columns, titles, strict=True)),
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]


_LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND: Json = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}

OPTIONS: Mapping[PanelType, Json] = {
    PanelType.LINES: {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    PanelType.STAT: {
        "reduceOptions": _LAST,
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "wideLayout": True,
    },
    PanelType.TABLE: {"showHeader": True, "cellHeight": "sm"},
    PanelType.STATES: {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.85,
        "alignValue": "left",
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    },
}
"""Panel options by type of panel."""
