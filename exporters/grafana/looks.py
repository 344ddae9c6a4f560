"""Looks of panels and columns: unit, end of the axis, and colours from the catalogue's limits or of states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporters.prometheus_rules.self_monitoring import CYCLE_AGE_SECONDS
from rules.catalogue.registry import BY_NAME as RULES

Json = dict[str, Any]
Step = tuple[float | None, str]
Limit = tuple[str, str, str]
"""Rule, name of its threshold, and colour from there on."""

CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "DKK", "ISK", "PLN", "CZK", "UAH", "RUB", "BRL")
"""Currencies (ISO 4217) with a unit `currency...` in every Grafana from 10 on."""

GREY = "#8e8e8e"
PERCENT, TOKENS, MONEY = "percentunit", "si:tok", "locale"


@dataclass(frozen=True, slots=True)
class Look:
    """Look of a panel: `first` is the colour from the bottom, `states` are words and colours of the numbers from 0 on."""

    unit: str = "short"
    first: str = "green"
    limits: tuple[Limit, ...] = ()
    steps: tuple[Step, ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    top: float | None = None
    decimals: int | None = None

    def list_steps(self) -> list[Step]:
        """Return threshold steps, rising; the first value is None."""
        if self.states:
            return [(number or None, colour) for number, (_, colour) in enumerate(self.states)]
        limits = [(RULES[rule].thresholds[key].value, colour) for rule, key, colour in self.limits]
        return [(None, self.first), *sorted(limits), *self.steps]

    def field_config(self) -> Json:
        """Return unit, axis, thresholds and words for Grafana."""
        words = {str(number): {"text": text, "color": colour} for number, (text, colour) in enumerate(self.states)}
        steps = [{"value": value, "color": colour} for value, colour in self.list_steps()]
        config: Json = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        config["mappings"] = [{"type": "value", "options": words}] if words else []
        if self.decimals is not None:
            config["decimals"] = self.decimals
        if self.top is not None:
            config["max"] = self.top
        return config

    def describe_limits(self) -> str:
        """Return in words the rules whose limits colour a panel, "" if there are none."""
        limits = [
            f"{rule} {key.replace('_', ' ')} {RULES[rule].thresholds[key].value:g}" for rule, key, _ in self.limits
        ]
        return f"Colours: {', '.join(limits)} (the catalogue's defaults)." if limits else ""


_FULL = (("NoHeadroom", "above", "orange"), ("DemandExceedsCapacity", "share", "red"))
_KV = (("KvCacheCascade", "filling_level", "yellow"), ("KvCacheNearCeiling", "above", "red"))
_ACCEPTANCE = (("SpeculationAcceptanceLow", "critical_below", "orange"), ("SpeculationAcceptanceLow", "below", "green"))
_GPU_MEMORY = (("GpuMemoryLow", "below", "green"), ("GpuMemoryHigh", "above", "orange"))
_STAGES = (
    ("none", "green"),
    ("filling", "yellow"),
    ("evicting", "orange"),
    ("queueing", "red"),
    ("user-visible", "dark-red"),
)

LOOKS: Mapping[str, Look] = {
    "number": Look(),
    "count": Look(decimals=0),
    "value": Look(decimals=3),
    "requests": Look("reqps", decimals=2),
    "events": Look("cps"),
    "tokens": Look(TOKENS),
    "tokens_per_second": Look(f"{TOKENS}/s"),
    "seconds": Look("s"),
    "whole_seconds": Look("s", decimals=0),
    "moment": Look("dateTimeAsIso"),
    "duration": Look("dtdurations", decimals=0),
    "money": Look(MONEY, decimals=2),
    "watts": Look("watt"),
    "joules": Look("joule"),
    "celsius": Look("celsius"),
    "bytes_per_second": Look("Bps"),
    "ratio": Look(PERCENT),
    "share": Look(PERCENT, top=1),
    "troubles": Look(steps=((1.0, "orange"),), decimals=0),
    "cycle": Look("s", steps=((float(CYCLE_AGE_SECONDS), "orange"),)),
    "promise": Look(PERCENT, steps=((1.0, "red"),), decimals=0),
    "load": Look(PERCENT, limits=_FULL, decimals=0),
    "load_by_time": Look(PERCENT, "orange", (("UtilizationTrap", "below", "green"), *_FULL)),
    "kv": Look(PERCENT, limits=_KV, top=1),
    "kv_by_time": Look(PERCENT, "orange", (("KvCacheUnderused", "below", "green"), *_KV), top=1),
    "gpu": Look(PERCENT, "orange", (("GpuComputeLow", "below", "green"),), top=1),
    "gpu_memory": Look(PERCENT, "orange", _GPU_MEMORY, top=1),
    "throttling": Look(PERCENT, limits=(("GpuThrottling", "above", "orange"),)),
    "evictions": Look(PERCENT, limits=(("KvEviction", "warning", "orange"), ("KvEviction", "critical", "red"))),
    "prefix_hits": Look(PERCENT, "orange", (("PrefixHitLow", "below", "green"),), top=1),
    "acceptance": Look(PERCENT, "red", _ACCEPTANCE, top=1),
    "coverage": Look(PERCENT, "orange", (("ForecastDegraded", "coverage", "green"),), top=1),
    "forecast_error": Look(limits=(("ForecastDegraded", "error_ratio", "red"),)),
    "verdicts": Look("none", states=(("ok", "green"), ("warning", "orange"), ("critical", "red"))),
    "certainties": Look("none", states=(("likely", GREY), ("certain", "blue"))),
    "stages": Look("none", states=_STAGES),
    "answers": Look("none", states=(("no", "red"), ("yes", "green"))),
    "up": Look("none", states=(("down", "red"), ("up", "green"))),
}

_DASHED = {"lineStyle": {"fill": "dash", "dash": [8, 6]}, "fillOpacity": 0}
STYLES: Mapping[str, tuple[str, Json]] = {
    "lines": ("", {}),
    "plan": ("blue", {**_DASHED, "lineWidth": 2}),
    "limit": ("red", _DASHED),
    "band": ("blue", {"lineWidth": 0, "fillOpacity": 18}),
    "faint": (GREY, {"fillOpacity": 0}),
}
"""Colour and settings of what is planned, promised, the room above the plan, and for comparison."""

CUSTOM: Mapping[str, Json] = {
    "timeseries": {"lineWidth": 1, "fillOpacity": 6, "showPoints": "auto", "spanNulls": False},
    "stat": {},
    "table": {"filterable": True},
    "state-timeline": {"fillOpacity": 80, "lineWidth": 0},
}
_LEGEND: Json = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
OPTIONS: Mapping[str, Json] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "area"},
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {"mergeValues": True, "showValue": "auto", "rowHeight": 0.85, "legend": _LEGEND},
}
