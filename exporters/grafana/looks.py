"""Looks of panels: colours from the catalogue's limits, words of states, styles of lines, options by type of panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters.prometheus_rules.self_monitoring import CYCLE_AGE_SECONDS
from rules.catalogue.registry import BY_NAME as RULES

Json = dict[str, Any]
Step = tuple[float | None, str]

CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "DKK", "ISK", "PLN", "CZK", "UAH", "RUB", "BRL")
"""Currencies (ISO 4217) with a unit `currency...` in every Grafana from 10 on."""

STATES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "verdicts": (("ok", "green"), ("warning", "orange"), ("critical", "red")),
    "certainties": (("likely", "#8e8e8e"), ("certain", "blue")),
    "stages": (
        ("none", "green"),
        ("filling", "yellow"),
        ("evicting", "orange"),
        ("queueing", "red"),
        ("user-visible", "dark-red"),
    ),
    "answers": (("no", "red"), ("yes", "green")),
    "up": (("down", "red"), ("up", "green")),
}
"""Word and colour of the numbers from 0 on."""

LIMITS: Mapping[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "load": ("green", (("NoHeadroom", "above", "orange"), ("DemandExceedsCapacity", "share", "red"))),
    "kv": ("green", (("KvCacheCascade", "filling_level", "yellow"), ("KvCacheNearCeiling", "above", "red"))),
    "gpu": ("orange", (("GpuComputeLow", "below", "green"),)),
    "evictions": ("green", (("KvEviction", "warning", "orange"), ("KvEviction", "critical", "red"))),
    "prefix_hits": ("orange", (("PrefixHitLow", "below", "green"),)),
    "acceptance": (
        "red",
        (("SpeculationAcceptanceLow", "critical_below", "orange"), ("SpeculationAcceptanceLow", "below", "green")),
    ),
    "gpu_memory": ("orange", (("GpuMemoryLow", "below", "green"), ("GpuMemoryHigh", "above", "orange"))),
    "throttling": ("green", (("GpuThrottling", "above", "orange"),)),
    "trap": ("orange", (("UtilizationTrap", "below", "green"), ("NoHeadroom", "above", "red"))),
    "kv_underused": ("orange", (("KvCacheUnderused", "below", "green"),)),
    "coverage": ("orange", (("ForecastDegraded", "coverage", "green"),)),
    "forecast_error": ("green", (("ForecastDegraded", "error_ratio", "red"),)),
}
"""Colour from the bottom, and the colour from each threshold of the catalogue on, rising."""

FIXED: Mapping[str, tuple[Step, ...]] = {
    "": ((None, "green"),),
    "promised": ((None, "green"), (1.0, "red")),
    "none_wanted": ((None, "green"), (1.0, "orange")),
    "cycle": ((None, "green"), (float(CYCLE_AGE_SECONDS), "orange")),
}

_DASHED = {"lineStyle": {"fill": "dash", "dash": [8, 6]}, "fillOpacity": 0}
STYLES: Mapping[str, tuple[str, Json]] = {
    "lines": ("", {}),
    "plan": ("blue", {**_DASHED, "lineWidth": 2}),
    "limit": ("red", _DASHED),
    "band": ("blue", {"lineWidth": 0, "fillOpacity": 18}),
    "faint": ("#8e8e8e", {"fillOpacity": 0}),
}
"""Colour and settings of what is planned, promised, the room above the plan, and for comparison."""

CUSTOM: Mapping[str, Json] = {
    "timeseries": {"lineWidth": 1, "fillOpacity": 6, "showPoints": "auto", "spanNulls": False},
    "table": {"filterable": True},
    "state-timeline": {"fillOpacity": 80, "lineWidth": 0},
}
_LEGEND: Json = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
OPTIONS: Mapping[str, Json] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {"mergeValues": True, "showValue": "auto", "rowHeight": 0.85, "legend": _LEGEND},
}


def steps_of(colours: str, states: str = "") -> tuple[Step, ...]:
    """Return threshold steps, rising; the first value is None."""
    if states:
        return tuple((number or None, colour) for number, (_, colour) in enumerate(STATES[states]))
    if colours in FIXED:
        return FIXED[colours]
    first, limits = LIMITS[colours]
    steps = [(RULES[rule].thresholds[key].value, colour) for rule, key, colour in limits]
    return (None, first), *sorted(steps)


def colour_text(colours: str) -> str:
    """Return in words the rules whose limits colour a panel, "" if there are none."""
    limits = LIMITS[colours][1] if colours in LIMITS else ()
    named = [f"{rule} {key.replace('_', ' ')} {RULES[rule].thresholds[key].value:g}" for rule, key, _ in limits]
    return f"Colours: {', '.join(named)} (the catalogue's defaults)." if named else ""


def list_looks(colours: str, states: str) -> Json:
    """Return thresholds and words."""
    words = {
        str(number): {"text": text, "color": colour} for number, (text, colour) in enumerate(STATES.get(states, ()))
    }
    steps = [{"value": value, "color": colour} for value, colour in steps_of(colours, states)]
    mappings = [{"type": "value", "options": words}] if words else []
    return {"thresholds": {"mode": "absolute", "steps": steps}, "mappings": mappings}
