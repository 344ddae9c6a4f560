"""Replica table, weekly report section and timeline of the status page.

A replica that does not answer shows no other data. All external text is escaped. The list of reports is in
`exporters.status.page`, timeline lines are in `exporters.documents.timeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape

from exporters.documents.timeline import fold_findings, line, place
from exporters.render.text import Tone, format_clock, format_duration, format_rfc3339, sign
from exporters.status.active_findings import list_findings
from exporters.status.records import AgentStatus, DeliveryHealth, GpuStatus, ReplicaStatus, ReportHealth, TierStatus
from rules.replicas.cascade import STAGES
from rules.telemetry.wording import number
from rules.verdicts.finding import LIKELY
from rules.verdicts.verdict import Status

REPLICAS_SHOWN = 16
"""Number of replicas shown unfolded."""

FOLDED = 200
"""Maximum number of folded replicas. A page of thousands is not usable."""

TARGET, CASCADE = "TargetDown", "KvCacheCascade"
"""Rules of a replica whose findings its row shows."""

_Tones = Mapping[tuple[str | None, str], Tone]
"""Tone of the finding about a replica by a rule. Before it is open the row has the tone of a note."""

_COLUMNS = ("Replica", "Scrapes", "Engine", "Running now", "Waiting now", "KV cache now", "GPUs now")


def replicas(tier: TierStatus, now: float) -> str:
    """Return a row per replica: unreachable and cascading replicas first, then configuration order."""
    if not tier.replicas:
        return '<p class="none">No replica is configured or found.</p>'
    findings = list_findings(tier, (TARGET, CASCADE))
    tones = {(finding.verdict.subject.replica, finding.verdict.rule): finding.tone for finding in reversed(findings)}
    ordered = sorted(tier.replicas, key=lambda replica: (replica.up, -replica.cascade_stage))
    shown, rest = ordered[:REPLICAS_SHOWN], ordered[REPLICAS_SHOWN:]
    more = f", {FOLDED} of them here, all in /api/status" if len(rest) > FOLDED else ""
    text = f"<summary>{len(rest)} more replicas{more}</summary>{_table(tones, rest[:FOLDED], now)}"
    folded = f"<details>{text}</details>" if rest else ""
    return _table(tones, shown, now) + folded


def _table(tones: _Tones, parts: list[ReplicaStatus], now: float) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    rows = "".join(_replica(tones, replica, now) for replica in parts)
    return f'<table class="replicas"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _replica(tones: _Tones, replica: ReplicaStatus, now: float) -> str:
    cells = [
        _scrapes(tones, replica, now),
        escape(f"{replica.engine} {replica.versions}".strip() or "not known"),
        *(_gauge(tones, replica, family, unit) for family, unit in _GAUGES),
        _gpus(replica),
    ]
    named = zip(_COLUMNS[1:], cells, strict=True)
    text = "".join(f'<td data-column="{column}">{cell}</td>' for column, cell in named)
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in replica.problems)
    below = f'<ul class="problems">{problems}</ul>' if problems else ""
    pool = f' <span class="pool">{escape(replica.pool)}</span>' if replica.pool not in ("", "mixed") else ""
    name = f'<span title="{escape(replica.url)}">{escape(replica.name)}</span>{pool}{below}'
    return f'<tr class="{"up" if replica.up else "down"}"><th scope="row">{name}</th>{text}</tr>'


_GAUGES = (("requests_running", ""), ("requests_waiting", ""), ("kv_utilization", "ratio"))


def _scrapes(tones: _Tones, replica: ReplicaStatus, now: float) -> str:
    if replica.up:
        return sign(Status.OK, "up")
    missed = f"{replica.misses} missed" if replica.misses else "never seen"
    seen = f", last page {format_duration(now - replica.last_seen)} ago" if replica.last_seen is not None else ""
    return sign(tones.get((replica.name, TARGET), "note"), f"down, {missed}{seen}")


def _gauge(tones: _Tones, replica: ReplicaStatus, family: str, unit: str) -> str:
    if replica.is_gone:
        return "–"
    if family not in replica.gauges:
        return "not exposed"
    text = escape(number(replica.gauges[family], unit))
    if family == "kv_utilization" and replica.cascade_stage:
        tone = tones.get((replica.name, CASCADE), "note")
        likely = f"{LIKELY}, " if tone == "note" else ""
        stage = f"{likely}cascade {replica.cascade_stage}: {STAGES[replica.cascade_stage]}"
        return f"{text} {sign(tone, stage)}"
    return text


def _gpus(replica: ReplicaStatus) -> str:
    if not replica.gpus or replica.is_gone:
        return "–" if replica.is_gone else "not read"
    rows = filter(None, (_of_gpus(replica.gpus, *column) for column in _GPU_COLUMNS))
    gaps = "\n".join(f"{gpu.gpu}: {family}: {why}" for gpu in replica.gpus for family, why in sorted(gpu.gaps.items()))
    return f'<span title="{escape(gaps)}">{len(replica.gpus)}: {escape(", ".join(rows))}</span>'


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
    """Return the range of a number over the GPUs."""
    values = [level for gpu in gpus if (level := value(gpu)) is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    text = f"{high:{form}}" if f"{low:{form}}" == f"{high:{form}}" else f"{low:{form}} to {high:{form}}"
    return f"{name} {text}{unit}".strip()


def notices(report: ReportHealth | None, now: float) -> Iterator[str]:
    """Yield problems of the report and its delivery."""
    if report is None:
        return
    if report.trouble:
        yield f"The weekly report cannot be written: {report.trouble}. Writing is retried."
    for delivery in report.deliveries:
        if delivery.trouble:
            again = (
                f" The next attempt is in {format_duration(max(0.0, delivery.next_at - now))}."
                if delivery.next_at is not None
                else ""
            )
            yield f"The weekly report does not reach {delivery.destination}: {delivery.trouble}.{again}"


def reports(report: ReportHealth | None, now: float) -> str:
    """Return the section, empty if no reports are written."""
    if report is None:
        return ""
    rows = "".join(f"<li>{_delivered(delivery, now)}</li>" for delivery in report.deliveries)
    sent = f'<ul class="past">{rows}</ul>' if rows else ""
    return (
        f'<section class="tier" id="weekly-report"><header><h2>Weekly report</h2></header><p>{_last(report, now)} '
        f'The next is due in {format_duration(report.next_at - now)}. <a href="reports/">All reports</a></p>{sent}</section>'
    )


def _last(report: ReportHealth, now: float) -> str:
    if not report.newest:
        return "No report was written yet."
    name = escape(report.newest)
    age = (
        f", written {format_duration(now - report.made_at)} ago"
        if report.made_at is not None and now > report.made_at
        else ""
    )
    text = f": {escape(report.headline)}" if report.headline else "."
    return f'<a href="reports/{name}/report.html">{name}</a>{age}{text}'


def _delivered(delivery: DeliveryHealth, now: float) -> str:
    name = escape(delivery.destination)
    if delivery.trouble:
        return f"{sign(Status.WARNING, 'not delivered')} {name}: {escape(delivery.trouble)}"
    if delivery.pending:
        return f"{sign(Status.UNKNOWN, 'on its way')} {name}"
    if delivery.last_success_at is not None:
        return f"{sign(Status.OK, 'sent')} {name}, {format_duration(now - delivery.last_success_at)} ago"
    return f"{sign(Status.UNKNOWN, 'nothing sent since the start')} {name}"


SHOWN = 200
"""Maximum number of timeline entries, newest first. A replica may restart every minute for a day."""


def timeline(status: AgentStatus) -> str:
    """Return the folded timeline, empty without entries."""
    if not status.timeline:
        return ""
    entries = fold_findings(status.timeline)
    newest = entries[: -SHOWN - 1 : -1]
    rows = "".join(
        f'<li><time class="since" datetime="{format_rfc3339(entry.t)}">{escape(format_clock(entry.t, status.now))}</time> '
        f"<b>{escape(place(entry))}</b> {escape(line(entry, status.now))}</li>"
        for entry in newest
    )
    number = len(entries)
    title = f"Timeline of the last day: {number} {'entry' if number == 1 else 'entries'}"
    more = f"<p>The newest {SHOWN}; `sizewatch timeline` has all.</p>" if number > SHOWN else ""
    return f'<section class="timeline"><details><summary>{title}</summary><ul class="past">{rows}</ul>{more}</details></section>'
