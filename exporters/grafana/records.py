"""What a dashboard is made of: queries, panels, sections. Records only.

Owns the types and the few words for how a line is drawn. Rows of panels stand in the module of their dashboard;
`exporters.grafana.dashboard_json` prints them as Grafana's JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from exporters.grafana.looks import PLAIN, States, Steps


class PanelType(StrEnum):
    """Grafana's panel types that are used, by its own names."""

    LINES = "timeseries"
    STAT = "stat"
    TABLE = "table"
    STATES = "state-timeline"


class LineStyle(StrEnum):
    """How a query's series are drawn in LINES."""

    SEEN = "seen"  # what is measured
    PLAN = "plan"  # dashed: what was planned
    LIMIT = "limit"  # dashed and red: what was promised, or the most that is allowed
    BAND = "band"  # no line of its own: the area down to the series named by `down_to`
    FAINT = "faint"  # thin and grey, to compare with


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression, the legend of its series (in a table: its column's title), how they look.

    `unit`, `steps` and `states` are those of a table's column; `down_to` is for Line.BAND.
    """

    expr: str
    legend: str
    line: LineStyle = LineStyle.SEEN
    down_to: str = ""
    unit: str = "short"
    steps: Steps = PLAIN
    states: States = ()
    decimals: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `width` is of 24 columns. `top` is the largest value of the axis where there is one.

    `lines_at_steps` draws the limits into LINES; `stacked` puts its series on top of each other. Of a table `rows` are the
    labels that make a row with their titles, `hidden` those that are the same in all rows, and `links` the data links of a
    column: its title, what the link is called, and the address.
    """

    title: str
    description: str
    kind: PanelType
    unit: str
    queries: tuple[Query, ...]
    width: int = 8
    height: int = 7
    steps: Steps = PLAIN
    states: States = ()
    top: float | None = None
    decimals: int | None = None
    lines_at_steps: bool = False
    stacked: bool = False
    rows: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A row of a dashboard with its panels, in reading order."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A template variable filled from the data: `label_values(source, label)`.

    `everything` is the regular expression that All stands for; empty: the values themselves, or no All where `many` is
    False.
    """

    name: str
    title: str
    source: str
    label: str
    many: bool
    everything: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """An annotation: times at which an expression is above 0, drawn through all panels."""

    title: str
    expr: str
    colour: str
    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard. Its `uid` is public: links and alerts name it."""

    uid: str
    title: str
    description: str
    since: str
    variables: tuple[Variable, ...]
    marks: tuple[Annotation, ...]
    sections: tuple[Section, ...] = field(default=())
