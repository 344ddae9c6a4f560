"""The table of a tier's replicas on the status page.

Owns what is said of one replica and of its GPUs together. A replica that does not answer says only that.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from exporters.render.html_parts import sign
from exporters.render.time_words import format_duration
from exporters.status.records import GpuStatus, ReplicaStatus, TierStatus
from rules.replicas.cascade import STAGES
from rules.telemetry.wording import number
from rules.verdicts.verdict import Status

REPLICAS_SHOWN = 16
"""Before the rest is folded away."""

FOLDED = 200
"""So many more stand folded below them: a page of thousands is of use to nobody."""

_COLUMNS = ("Replica", "Scrapes", "Engine", "Running", "Waiting", "KV cache", "GPUs")


def replicas(tier: TierStatus, now: float) -> str:
    """One row a replica: those that do not answer and those in a cascade first, else in their own order."""
    if not tier.replicas:
        return '<p class="none">No replica is configured or found.</p>'
    ordered = sorted(tier.replicas, key=lambda replica: (replica.up, -replica.cascade_stage))
    shown, rest = ordered[:REPLICAS_SHOWN], ordered[REPLICAS_SHOWN:]
    more = f", {FOLDED} of them here, all in /api/status" if len(rest) > FOLDED else ""
    told = f"<summary>{len(rest)} more replicas{more}</summary>{_table(rest[:FOLDED], now)}"
    folded = f"<details>{told}</details>" if rest else ""
    return _table(shown, now) + folded


def _table(several: list[ReplicaStatus], now: float) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    rows = "".join(_replica(replica, now) for replica in several)
    return f'<table class="replicas"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _replica(replica: ReplicaStatus, now: float) -> str:
    cells = [
        _scrapes(replica, now),
        escape(f"{replica.engine} {replica.versions}".strip() or "not known"),
        *(_gauge(replica, family, unit) for family, unit in _GAUGES),
        _gpus(replica),
    ]
    named = zip(_COLUMNS[1:], cells, strict=True)
    told = "".join(f'<td data-column="{column}">{cell}</td>' for column, cell in named)
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in replica.problems)
    below = f'<ul class="problems">{problems}</ul>' if problems else ""
    pool = f' <span class="pool">{escape(replica.pool)}</span>' if replica.pool not in ("", "mixed") else ""
    name = f'<span title="{escape(replica.url)}">{escape(replica.name)}</span>{pool}{below}'
    return f'<tr class="{"up" if replica.up else "down"}"><th scope="row">{name}</th>{told}</tr>'


_GAUGES = (("requests_running", ""), ("requests_waiting", ""), ("kv_utilization", "ratio"))


def _scrapes(replica: ReplicaStatus, now: float) -> str:
    if replica.up:
        return sign(Status.OK, "up")
    missed = f"{replica.misses} missed" if replica.misses else "never seen"
    seen = f", last page {format_duration(now - replica.last_seen)} ago" if replica.last_seen is not None else ""
    return sign(Status.CRITICAL if replica.is_gone else Status.WARNING, f"down, {missed}{seen}")


def _gauge(replica: ReplicaStatus, family: str, unit: str) -> str:
    if replica.is_gone:
        return "–"
    if family not in replica.gauges:
        return "not exposed"
    text = escape(number(replica.gauges[family], unit))
    if family == "kv_utilization" and replica.cascade_stage:
        stage = f"cascade {replica.cascade_stage}: {STAGES[replica.cascade_stage]}"
        return f"{text} {sign(Status.CRITICAL if replica.cascade_stage >= 3 else Status.WARNING, stage)}"
    return text


def _gpus(replica: ReplicaStatus) -> str:
    if not replica.gpus or replica.is_gone:
        return "–" if replica.is_gone else "not read"
    said = filter(None, (_of_gpus(replica.gpus, *column) for column in _GPU_COLUMNS))
    gaps = "\n".join(f"{gpu.gpu}: {family}: {why}" for gpu in replica.gpus for family, why in sorted(gpu.gaps.items()))
    return f'<span title="{escape(gaps)}">{len(replica.gpus)}: {escape(", ".join(said))}</span>'


def _share_of_memory(gpu: GpuStatus) -> float | None:
    used, installed = gpu.gauges.get("gpu_memory_used_bytes"), gpu.gauges.get("gpu_memory_total_bytes")
    return used / installed if used is not None and installed else None


def _utilization(gpu: GpuStatus) -> float | None:
    active = gpu.gauges.get("gpu_gr_engine_active")
    return gpu.gauges.get("gpu_utilization_sampled") if active is None else active


_GPU_COLUMNS: tuple[tuple[str, Callable[[GpuStatus], float | None], str, str], ...] = (
    ("busy", _utilization, ".0%", ""),
    ("memory", _share_of_memory, ".0%", ""),
    ("", lambda gpu: gpu.gauges.get("gpu_temperature_celsius"), ".0f", " °C"),
)


def _of_gpus(
    gpus: tuple[GpuStatus, ...], name: str, value: Callable[[GpuStatus], float | None], form: str, unit: str
) -> str:
    """The span over the GPUs of one number."""
    values = [found for gpu in gpus if (found := value(gpu)) is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    text = f"{high:{form}}" if f"{low:{form}}" == f"{high:{form}}" else f"{low:{form}} to {high:{form}}"
    return f"{name} {text}{unit}".strip()
