"""Field configuration of Grafana panels: thresholds, value mappings, line styles and table columns.

`exporters.grafana.dashboard_json` puts it into panels. A new line style is a row of LINES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exporters.grafana.records import BLUE, GREY, RED, LineStyle, Panel, PanelType, Query, States, Steps

Json = dict[str, Any]

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
