"""How values look: Grafana's unit for each of ours, colours with their limits from the catalogue, words for states.

Owns these tables. A limit stands in `rules.catalogue.registry` and is only fetched here; a configuration that overrides it for a
tier does not reach the dashboards. A new unit or state is a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
