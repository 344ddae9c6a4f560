"""What a dashboard is made of: queries, panels, sections. Records only.

Owns the types and the few words for how a line is drawn. Rows of panels stand in the module of their dashboard;
`exporters.grafana.dashboard_json` prints them as Grafana's JSON.

How values look: Grafana's unit for each of ours, colours with their limits from the catalogue, words for states.

Owns these tables. A limit stands in `rules.catalogue.registry` and is only fetched here; a configuration that overrides it for a
tier does not reach the dashboards. A new unit or state is a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rules.catalogue.registry import BY_NAME as RULES
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Unit

UNITS: Mapping[str, str] = {
    Unit.SECONDS: "s",
    Unit.RATIO: "percentunit",
    Unit.PER_SECOND: "reqps",
    Unit.TOKENS_PER_SECOND: "si:tok/s",
    Unit.EVENTS_PER_SECOND: "cps",
    Unit.TOKENS: "si:tok",
    Unit.REQUESTS: "short",
    Unit.WATTS: "watt",
    Unit.CELSIUS: "celsius",
    Unit.MONEY: "none",
    Unit.TOKENS_PER_HOUR: "si:tok/h",
    Unit.ADAPTERS: "none",
}
"""By our unit."""

RATIO, SECONDS, COUNT, STATE = "percentunit", "s", "short", "none"
MONEY = "none"
"""The currency is the plan's; it stands in the legend."""

AT_LEAST: Mapping[str, float] = {RATIO: 0.1, COUNT: 1.0, "cps": 0.1, SECONDS: 0.1}
"""Up to where an axis of a unit reaches at least: without it, lines at 0 stand on an axis up to 100."""

GREEN, AMBER, RED, BLUE, GREY, TEXT = "green", "orange", "red", "blue", "#8e8e8e", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdStep:
    """From `value` on this colour (None: from the bottom). `rule` and `key` say where in the catalogue it stands."""

    value: float | None
    colour: str
    rule: str = ""
    key: str = ""


Steps = tuple[ThresholdStep, ...]

PLAIN: Steps = (ThresholdStep(value=None, colour=GREEN),)
NEUTRAL: Steps = (ThresholdStep(value=None, colour=TEXT),)
"""Of a number that is neither good nor bad."""


def limit(rule: str, key: str) -> float:
    """A threshold of the catalogue; KeyError where there is none of that name."""
    return RULES[rule].thresholds[key].value


def _step(rule: str, key: str, colour: str) -> ThresholdStep:
    return ThresholdStep(value=limit(rule, key), colour=colour, rule=rule, key=key)


def rising_thresholds(*limits: tuple[str, str, str]) -> Steps:
    """Green, and from each limit (rule, threshold, colour) on worse."""
    steps = (_step(*one) for one in limits)
    return (*PLAIN, *sorted(steps, key=lambda step: step.value or 0.0))


def falling_thresholds(rule: str, key: str, below: str = AMBER) -> Steps:
    """`below` under the limit, green from it on."""
    return ThresholdStep(value=None, colour=below), _step(rule, key, GREEN)


def falling_twice(critical: tuple[str, str], warning: tuple[str, str]) -> Steps:
    """Red under the first limit, amber up to the second, green from it on."""
    return ThresholdStep(value=None, colour=RED), _step(*critical, AMBER), _step(*warning, GREEN)


def range_thresholds(low: tuple[str, str], high: tuple[str, str]) -> Steps:
    """Green between two limits, amber below and above."""
    return ThresholdStep(value=None, colour=AMBER), _step(*low, GREEN), _step(*high, AMBER)


PROMISED: Steps = (*PLAIN, ThresholdStep(value=1.0, colour=RED))
"""Of a share of what was promised: at 1 it is broken."""

WORKS: Steps = (ThresholdStep(value=None, colour=RED), ThresholdStep(value=1.0, colour=GREEN))
"""Of what is 1 while all is well."""

NONE_WANTED: Steps = (*PLAIN, ThresholdStep(value=1.0, colour=AMBER))
"""Of a count that should be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMapping:
    """A number that stands for a word."""

    value: int
    text: str
    colour: str


States = tuple[ValueMapping, ...]


def _states(*rows: tuple[str, str]) -> States:
    return tuple(ValueMapping(value=value, text=text, colour=colour) for value, (text, colour) in enumerate(rows))


VERDICTS = _states(("ok", GREEN), ("warning", AMBER), ("critical", RED))
CERTAINTIES = _states(("likely", GREY), ("certain", BLUE))
STAGES = _states(
    ("none", GREEN), ("filling", "yellow"), ("evicting", AMBER), ("queueing", RED), ("user-visible", "dark-red")
)
ANSWERS = _states(("no", RED), ("yes", GREEN))
UPS = _states(("down", RED), ("up", GREEN))


def signal_text(signal: str) -> str:
    """What a signal is, from the table of signals."""
    return SIGNALS[signal].text + "."


def signal_unit(signal: str) -> str:
    """Grafana's unit of a signal."""
    return UNITS[SIGNALS[signal].unit]


def colour_text(steps: Steps) -> str:
    """Which rules' limits colour a panel, in words; empty where none does."""
    named = [f"{step.rule} {step.key.replace('_', ' ')} {step.value:g}" for step in steps if step.rule]
    return f"Colours: {', '.join(named)} (the catalogue's defaults)." if named else ""


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
