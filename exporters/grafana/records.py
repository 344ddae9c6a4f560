"""Records of a dashboard (queries, panels, sections), and Grafana units, threshold colours and value mappings.

`exporters.grafana.dashboard_json` prints the records. Limits come from `rules.catalogue.registry`; an override in the
configuration does not reach the dashboards. A new unit or state is a row here.
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
    Unit.MONEY: "locale",
    Unit.TOKENS_PER_HOUR: "si:tok/h",
    Unit.ADAPTERS: "none",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.JOULES_PER_TOKEN: "joule",
}
"""Grafana unit by sizewatch unit."""

RATIO, SECONDS, COUNT, STATE = "percentunit", "s", "short", "none"
MONEY = UNITS[Unit.MONEY]
"""Unit of money without a unit in Grafana: a plain number. The plan's currency is in the legend or in a column."""

CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "DKK", "ISK", "PLN", "CZK", "UAH", "RUB", "BRL")
"""Currencies (ISO 4217) with a unit `currency...` in every Grafana from 10 on."""

AT_LEAST: Mapping[str, float] = {RATIO: 0.1, COUNT: 1.0, "cps": 0.1, SECONDS: 0.1}
"""Minimum upper end of an axis by unit. Otherwise lines at 0 get an axis up to 100."""

GREEN, AMBER, RED, BLUE, GREY, TEXT = "green", "orange", "red", "blue", "#8e8e8e", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdStep:
    """Colour from `value` on (None: from the bottom). `rule` and `key` name the catalogue threshold."""

    value: float | None
    colour: str
    rule: str = ""
    key: str = ""


Steps = tuple[ThresholdStep, ...]

PLAIN: Steps = (ThresholdStep(value=None, colour=GREEN),)
NEUTRAL: Steps = (ThresholdStep(value=None, colour=TEXT),)
"""Steps of a number that is neither good nor bad."""


def limit(rule: str, key: str) -> float:
    """Return a threshold of the catalogue. Raise KeyError if it does not exist."""
    return RULES[rule].thresholds[key].value


def _step(rule: str, key: str, colour: str) -> ThresholdStep:
    return ThresholdStep(value=limit(rule, key), colour=colour, rule=rule, key=key)


def rising_thresholds(*limits: tuple[str, str, str]) -> Steps:
    """Return green, and a worse colour from each limit (rule, threshold, colour) on."""
    steps = (_step(*one) for one in limits)
    return (*PLAIN, *sorted(steps, key=lambda step: step.value or 0.0))


def falling_thresholds(rule: str, key: str, below: str = AMBER) -> Steps:
    """Return `below` under the limit and green from it on."""
    return ThresholdStep(value=None, colour=below), _step(rule, key, GREEN)


def falling_twice(critical: tuple[str, str], warning: tuple[str, str]) -> Steps:
    """Return red under the first limit, amber up to the second, green from it on."""
    return ThresholdStep(value=None, colour=RED), _step(*critical, AMBER), _step(*warning, GREEN)


def range_thresholds(low: tuple[str, str], high: tuple[str, str]) -> Steps:
    """Return green between two limits, amber below and above."""
    return ThresholdStep(value=None, colour=AMBER), _step(*low, GREEN), _step(*high, AMBER)


PROMISED: Steps = (*PLAIN, ThresholdStep(value=1.0, colour=RED))
"""Steps of a share of an objective, which is broken at 1."""

WORKS: Steps = (ThresholdStep(value=None, colour=RED), ThresholdStep(value=1.0, colour=GREEN))
"""Steps of a state that is 1 if healthy."""

NONE_WANTED: Steps = (*PLAIN, ThresholdStep(value=1.0, colour=AMBER))
"""Steps of a count that should be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMapping:
    """Number shown as a word."""

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
    """Return the description of a signal from the table of signals."""
    return SIGNALS[signal].text + "."


def signal_unit(signal: str) -> str:
    """Return Grafana's unit of a signal."""
    return UNITS[SIGNALS[signal].unit]


def colour_text(steps: Steps) -> str:
    """Return in words the rules whose limits colour a panel, "" if there are none."""
    named = [f"{step.rule} {step.key.replace('_', ' ')} {step.value:g}" for step in steps if step.rule]
    return f"Colours: {', '.join(named)} (the catalogue's defaults)." if named else ""


class PanelType(StrEnum):
    """Panel types of Grafana that are used."""

    LINES = "timeseries"
    STAT = "stat"
    TABLE = "table"
    STATES = "state-timeline"


class LineStyle(StrEnum):
    """Style of a query's series in LINES."""

    SEEN = "seen"  # measured
    PLAN = "plan"  # dashed: planned
    LIMIT = "limit"  # dashed and red: objective or upper limit
    BAND = "band"  # area without a line, down to the series `down_to`
    FAINT = "faint"  # thin and grey, for comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Expression with the legend of its series (in a table: the column title) and its style.

    `unit`, `steps` and `states` apply to a table's column. `down_to` applies to LineStyle.BAND.
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
    """Panel of a dashboard. `width` is in columns of 24. `top` is the fixed upper end of the axis.

    LINES are drawn with the limits of `steps`, except for counts that should be 0. `stacked` stacks the series. For a
    table, `rows` are the labels of a row with their titles. `hidden` labels are equal in all rows. `links` are the data
    links of a column: column title, link title and address.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: PanelType = PanelType.LINES
    width: int = 8
    height: int = 7
    steps: Steps = PLAIN
    states: States = ()
    top: float | None = None
    decimals: int | None = None
    stacked: bool = False
    rows: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Row of a dashboard with its panels in reading order. Panels of a `folded` row load when it is opened."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Template variable filled by `label_values(source, label)`.

    `everything` is the regular expression of All. If empty, All means the values themselves. Without `many` there is no
    All.
    """

    name: str
    title: str
    source: str
    label: str
    many: bool
    everything: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Annotation: times at which an expression is above 0, drawn through all panels."""

    title: str
    expr: str
    colour: str
    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """Dashboard. Its `uid` is public: links and alerts use it."""

    uid: str
    title: str
    description: str
    since: str
    variables: tuple[Variable, ...]
    marks: tuple[Annotation, ...]
    sections: tuple[Section, ...] = field(default=())
