"""What node agents of many replicas export, written into a real VictoriaMetrics a minute at a time.

The real cycle of role `node` reads recorded pages of an engine and renders its own page; GPUs are rows here. The series of
one replica are multiplied by the thousand: its text is made once for all that behave alike, and names are put in place.
"""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5

import common  # noqa: F401 - finds the project
from stored_recordings import Sample, agent_samples, engine_samples

from rules.plan.schema import Plan

GPU_COUNTERS = {
    "busy_seconds": 24.0,
    "busy_covered_seconds": 60.0,
    "energy_joules": 27_000.0,
    "energy_covered_seconds": 60.0,
    "throttled_power_seconds": 0.6,
    "throttled_thermal_seconds": 0.0,
    "throttled_hardware_seconds": 0.0,
    "throttled_covered_seconds": 60.0,
    "ecc_uncorrectable_errors": 0.0,
    "ecc_correctable_errors": 0.0,
    "fault_events": 0.0,
}
"""What an agent exports of an H100, by minute."""

GPU_GAUGES = {
    "memory_used_bytes": 7.4e10,
    "memory_total_bytes": 8.55e10,
    "memory_reserved_bytes": 5e8,
    "temperature_celsius": 61.0,
    "power_limit_watts": 700.0,
    **dict.fromkeys(("gr_engine_active_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"), 0.4),
    **dict.fromkeys((f"{link}_{way}_bytes_per_second" for link in ("pcie", "nvlink") for way in ("tx", "rx")), 2e9),
}

REPLICA, NODE, CARD = "@REPLICA@", "@NODE", "R" * 27
"""Placeholders of what is a replica's own."""

ADDED_LABELS = {
    "instance": f"10.42.{NODE}:19095",
    "job": "sizewatch/sizewatch-node",
    "namespace": "sizewatch",
    "pod": f"sizewatch-node-{NODE}",
    "container": "sizewatch",
    "endpoint": "http",
}
"""Labels that Prometheus' operator adds to what it scrapes."""

BEHAVIOURS = 16
"""Ways of replicas to behave: each has its load."""

SEEN = "sizewatch_target_last_success_timestamp_seconds"
OF_LOAD = ("_running", "_waiting", "kv_utilization_ratio", "kv_utilization_max_ratio", "_active_ratio")
WHOLE = ("_bucket", "_count", "requests_finished_total", "tokens_total")
OF_COUNTERS = ("_total", "_bucket", "_sum", "_count")
POST_BYTES = 16_000_000


Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series: its name and other labels, its value at the beginning and what a minute adds; `level` of a gauge."""

    name: str
    labels: Labels
    first: float
    a_minute: float
    level: bool


def series_of_an_engine() -> list[Series]:
    """Return the series of a recorded vLLM's own page, with `up`."""
    return _series(engine_samples("steady"))


def series_of_an_agent(plan: Plan, gpus: int) -> list[Series]:
    """Return what the node agent of a recorded vLLM exports about it and its GPUs."""
    exported = _series(agent_samples("steady", plan))
    series = [each for each in exported if dict(each.labels).get("replica")]
    for number in range(gpus):
        labels = (("gpu", f"GPU-{number:08x}-{CARD}"), ("pool", "mixed"))
        for name, rate in GPU_COUNTERS.items():
            name = f"sizewatch_gpu_{name}_total"
            series.append(Series(name=name, labels=labels, first=0.0, a_minute=rate, level=False))
        for name, value in GPU_GAUGES.items():
            series.append(Series(name=f"sizewatch_gpu_{name}", labels=labels, first=value, a_minute=0.0, level=True))
    return series


def _series(samples: Iterable[Sample]) -> list[Series]:
    """Return the series of the last page, as the first begins and what a minute adds."""
    times: dict[tuple[str, Labels], list[tuple[float, float]]] = {}
    for name, labels, t, value in samples:
        times.setdefault((name, tuple(sorted(labels.items()))), []).append((t, value))
    newest = max(values[-1][0] for values in times.values())
    series = []
    for (name, labels), values in times.items():
        (start, first), (end, last) = values[0], values[-1]
        if end < newest:
            continue
        if name.endswith(OF_COUNTERS) and end > start:
            rate = (last - first) / (end - start) * 60.0
            series.append(Series(name=name, labels=labels, first=first, a_minute=rate, level=False))
        else:
            series.append(Series(name=name, labels=labels, first=last, a_minute=0.0, level=True))
    return series


def pod_name(tier: int, number: int) -> str:
    """Return a name as a Deployment gives it to its pods."""
    hashed = md5(f"{tier}/{number}".encode(), usedforsecurity=False).hexdigest()
    return f"vllm-llama-70b-t{tier}-6c9f7d8b5d-{hashed[:7]}"


class Writer:
    """Writes what every replica exports, a minute at a time; `tiers` are the names of their replicas."""

    def __init__(self, url: str, tiers: Sequence[Sequence[str]], series: Sequence[Series], interval: float) -> None:
        self.samples = 0
        self._url, self._tiers, self._series = url, tiers, series
        self._steps = max(1, round(60.0 / interval))
        self._done = [0.0] * BEHAVIOURS

    def write_minute(self, number: int, end: float) -> None:
        """Write the minute that ends at `end` (unix seconds), the `number`th. Minutes must follow each other."""
        texts = [self._behave(behaviour, number, end) for behaviour in range(BEHAVIOURS)]
        body = bytearray()
        for tier, replicas in enumerate(self._tiers):
            for place, name in enumerate(replicas):
                body += _own_names(texts[place % BEHAVIOURS].replace(b"@TIER@", b"tier-%d" % tier), name)
                if len(body) > POST_BYTES:
                    self._post(bytes(body))
                    body.clear()
        self._post(bytes(body))
        self.samples += self._steps * len(self._series) * sum(map(len, self._tiers))

    def _behave(self, behaviour: int, number: int, end: float) -> bytes:
        """Return the lines of a replica of one behaviour. Its load is a share of the recorded load, and swings."""
        load = (0.3 + 0.11 * behaviour) * (1.0 + 0.25 * math.sin(number / 9.0 + behaviour))
        lines = []
        for step in range(1, self._steps + 1):
            part = step / self._steps
            t = end - 60.0 * (1.0 - part) - 14.0 + 0.8 * behaviour
            done = self._done[behaviour] + load * part
            for series in self._series:
                value = self._value(series, load, done, number + part, t)
                labels = {**dict(series.labels), **ADDED_LABELS, "tier": "@TIER@", "replica": REPLICA}
                text = ",".join(f'{name}="{label}"' for name, label in labels.items())
                lines.append(f"{series.name}{{{text}}} {value!r} {round(t * 1000)}\n")
        self._done[behaviour] += load
        return "".join(lines).encode()

    def _value(self, series: Series, load: float, done: float, minutes: float, t: float) -> float:
        if series.name == SEEN:
            return t - 0.25
        if series.level:
            value = series.first * (load if series.name.endswith(OF_LOAD) else 1.0)
        else:
            value = series.first + series.a_minute * (minutes if "_gpu_" in series.name else done)
        return math.floor(value) if series.name.endswith(WHOLE) else value

    def _post(self, body: bytes) -> None:
        for path, data in (("/api/v1/import/prometheus", body), ("/internal/force_flush", b"")):
            with urllib.request.urlopen(urllib.request.Request(self._url + path, data=data), timeout=300):
                pass


def _own_names(text: bytes, name: str) -> bytes:
    card = md5(name.encode(), usedforsecurity=False).hexdigest()[: len(CARD)]
    named = text.replace(REPLICA.encode(), name.encode())
    return named.replace(NODE.encode(), card[:5].encode()).replace(CARD.encode(), card.encode())
