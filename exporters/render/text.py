"""Text helpers: Markdown tables, times, readings, status signs for HTML, and YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote
from zoneinfo import ZoneInfo

import yaml
from pydantic_core import to_jsonable_python

from rules.catalogue.registry import BY_NAME
from rules.plan.money import amount
from rules.telemetry.signals import Gap, Missing, SignalValue
from rules.telemetry.wording import format_duration, join_range, number
from rules.verdicts.verdict import Status


def copy_fields(record: object, *names: str) -> dict[str, Any]:
    """Return these fields of a record by their name, for a JSON object or another record."""
    return {name: getattr(record, name) for name in names}


def json_fields(record: Any, *properties: str) -> Any:
    """Return a record as JSON, with these computed properties. None stays."""
    if record is None:
        return None
    return {**to_jsonable_python(record), **copy_fields(record, *properties)}


RUNBOOKS = "docs/runbooks.md"
"""Path of the repository, for alerts and texts of a program that serves no runbooks itself."""


QUANTITIES: Mapping[str, tuple[str, str]] = {
    "ttft_p50_seconds": ("TTFT P50", "seconds"),
    "ttft_p99_seconds": ("TTFT P99", "seconds"),
    "tpot_p50_seconds": ("TPOT P50", "seconds"),
    "tpot_p99_seconds": ("TPOT P99", "seconds"),
    "itl_p99_seconds": ("ITL P99", "seconds"),
    "e2e_p99_seconds": ("E2E P99", "seconds"),
    "mean_seconds_in_system": ("in system", "seconds"),
    "requests_in_system": ("in the system", "requests"),
    "gpu_utilization": ("GPU", "ratio"),
    "kv_utilization": ("KV cache", "ratio"),
    "prefix_hit_ratio": ("prefix hits", "ratio"),
    "prompt_tokens_mean": ("prompts", "tokens"),
    "generation_tokens_mean": ("outputs", "tokens"),
}
"""Words and unit of a number of a curve, by signal."""


def alert_name(rule: str) -> str:
    """Return the alertname of a rule: other rule files have a TargetDown, too."""
    if rule.startswith("Sizewatch"):
        return rule
    return f"Sizewatch{rule}"


def runbook_url(rule: str, runbooks: str = RUNBOOKS) -> str:
    """Return the address of a rule's section on a page with all runbooks."""
    return f"{runbooks}#{rule.lower()}"


def rule_title(rule: str) -> str:
    """Return the title of a rule, the name of one that is gone."""
    if rule in BY_NAME:
        return BY_NAME[rule].title
    return rule


def tier_anchor(tier: str) -> str:
    """Return the anchor of a tier's card on the status page, as an id and as the fragment of an address."""
    return f"tier-{quote(tier, safe='', errors='replace')}"


def lower_first(text: str) -> str:
    """Return a sentence as a part of another."""
    return f"{text[:1].lower()}{text[1:]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. A bar inside a cell does not end the cell."""
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {line} |" for line in cells)])


def format_clock(t: float, now: float) -> str:
    """Return unix seconds as "14:27 UTC", with the day if it is not today."""
    instant, today = datetime.fromtimestamp(t, UTC), datetime.fromtimestamp(now, UTC)
    if instant.date() == today.date():
        return instant.strftime("%H:%M UTC")
    return instant.strftime("%d %b %H:%M UTC")


def format_local(t: float, zone: str, pattern: str) -> str:
    """Return unix seconds in a time zone by a `strftime` pattern."""
    return datetime.fromtimestamp(t, ZoneInfo(zone)).strftime(pattern)


def format_rfc3339(t: float) -> str:
    """Return unix seconds as RFC 3339, to the second."""
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Tone = Status | Literal["note"]
"""Colour of a statement: that of a status, or the neutral one of a note, which alarms nobody."""

SIGNS: Mapping[str, str] = {
    Status.OK: "✓",
    Status.WARNING: "▲",
    Status.CRITICAL: "■",
    Status.UNKNOWN: "?",
    "note": "◆",
}
"""Shape of each tone, for readers and printers without colour."""


def describe_gap(gap: Gap, text: str, form: str = "{gap}: {text}") -> str:
    """Return a gap and its text in words.

    What has too few requests may lack time instead: its text says what was seen and what is needed, and stands alone.
    """
    if text and gap is Gap.TOO_FEW_REQUESTS:
        return text
    words = gap.value.replace("_", " ")
    if text:
        return form.format(gap=words, text=text)
    return words


def format_reading(value: SignalValue, unit: str) -> str:
    """Return the best estimate of a reading with its bounds, or the gap's name: "503 ms (389 to 628 ms)"."""
    if isinstance(value, Missing):
        return value.gap.value
    low, high = (number(end, unit) if end else "" for end in (value.low, value.high))
    bounds = join_range(low, high) if low else f"at most {high}"
    if not high:
        bounds = "not bounded"
        if low:
            bounds = f"at least {low}"
    if value.value is None:
        return bounds
    best = number(value.value, unit)
    if (low or high) and not low == high == best:
        return f"{best} ({bounds})"
    return best


_ICONS: Mapping[str, str] = {
    Status.OK: '<circle cx="16" cy="16" r="13" fill="#1f883d"/>',
    Status.WARNING: '<path d="M16 2 31 29H1z" fill="#d29922"/>',
    Status.CRITICAL: '<rect x="3" y="3" width="26" height="26" fill="#cf222e"/>',
    Status.UNKNOWN: '<circle cx="16" cy="16" r="11" fill="none" stroke="#8b949e" stroke-width="5"/>',
    "note": '<path d="M16 2 30 16 16 30 2 16z" fill="#2f5f9e"/>',
}


def icon(tone: Tone) -> str:
    """Return the icon of the browser tab as a `data:` address."""
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">{_ICONS[tone]}</svg>'
    return f"data:image/svg+xml,{quote(svg)}"


class Block(str):
    """Text printed as a literal block."""

    __slots__ = ()


class Dumper(yaml.SafeDumper):
    """PyYAML dumper with literal blocks, with lists indented below their key and without anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_float(dumper: Dumper, value: float) -> yaml.Node:
    """Write a whole number as people do: 2341 in place of 2341.0."""
    if value.is_integer():
        return dumper.represent_int(int(value))
    return yaml.SafeDumper.represent_float(dumper, value)


Dumper.add_representer(float, _represent_float)
Dumper.add_representer(Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def dump_object(data: Any, **options: Any) -> str:
    """Return YAML in key order without folded lines. By default, escape characters other than ASCII."""
    layout: dict[str, Any] = {"sort_keys": False, "width": 10**6, "default_flow_style": False, **options}
    return str(yaml.dump(data, Dumper=Dumper, **layout))


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML as `dump_object` does, with an empty line between rules and groups for readability."""
    apart = re.sub(r"\n(?= *- (?:name|alert|record): )", "\n\n", dump_object(data, allow_unicode=True))
    return re.sub(r"((?:groups|rules|receivers|time_intervals):\n)\n", r"\1", apart)


def comment_lines(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.strip().splitlines())


DASH = "–"

SIMULATED = "Simulated: none of this traffic is real, and no GPU served it."

FLEET_USE = "fleet utilisation, on average"
"""Column title of fleet shares: work by capacity over the period, neither at the peak nor of the GPUs."""

STATUS = {"unknown": "not known", "not_judged": DASH}
"""Words of a status that are not its own name."""


def best(reading: SignalValue, unit: str) -> str:
    """Return the best estimate alone, else the bounds or the gap."""
    if isinstance(reading, Missing) or reading.value is None:
        return format_reading(reading, unit).replace("_", " ")
    return number(reading.value, unit)


def number_text(value: float | None, unit: str = "") -> str:
    """Return a number with its unit, or a dash for None."""
    return DASH if value is None else number(value, unit)


def money(value: float | None, currency: str) -> str:
    """Return an amount in a currency, or a dash for None."""
    if value is None:
        return DASH
    return amount(value, currency)


def instant(t: float, zone: str = "UTC") -> str:
    """Return unix seconds as "Mon 17 Nov 14:05 UTC"."""
    return format_local(t, zone, "%a %d %b %H:%M %Z")


def verdict_words(status: str, certainty: str) -> str:
    text = STATUS.get(status, status)
    if certainty:
        return f"{text}, {certainty}"
    return text


def seen_words(seen: float, hours: float) -> str:
    """Return "5 of 7 hours", and "12 of 20 minutes" of an hour or less."""
    if hours <= 1:
        return f"{seen * 60:.0f} of {hours * 60:.0f} minutes"
    # Of a day or less, 98 % can round to all of it.
    return f"{round(seen, 1 if hours <= 25 else 0):g} of {hours:.0f} hours"


def days_words(days: float) -> str:
    """Return "7 days" or "1 day", and shorter times to the hour."""
    if days < 1:
        return format_duration(days * 86_400.0)
    return f"{days:.3g} day{'' if days == 1 else 's'}"
