"""What a page exposes, for a person and for a program: engine, every signal with its value or gap, every family.

Owns the words and the JSON of `sizewatch inspect` for an engine's page. GPU exporters' pages are
`exporters.documents.inspect_gpus`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exporters.documents.replay import reading_json
from rules.engines.coverage import CREATED, FamilyUse, Use
from rules.telemetry.signals import BY_NAME, Missing, SignalValue
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.wording import number, quantity

HEADS = {
    Use.MAPPED: "Families that are read",
    Use.IGNORED: "Families left alone",
    Use.UNKNOWN: "Families not known",
}


def inspect_text(title: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Iterable[FamilyUse]) -> str:
    """The whole text. Values are since the process started: one page holds no change."""
    lines = [title, f"  facts     {_facts(page.facts)}", ""]
    lines.append("Signals (since the process started; one page tells no change)")
    lines.extend(f"  {name:42} {_shown(name, value)}" for name, value in readings.items())
    lines += families_text(uses)
    if page.problems:
        lines += ["", "Problems", *(f"  {problem}" for problem in page.problems)]
    return "\n".join(lines)


def families_text(uses: Iterable[FamilyUse]) -> list[str]:
    """What became of every family, in lines."""
    uses = tuple(uses)
    return [line for use, head in HEADS.items() for line in _families(head, [u for u in uses if u.use is use])]


FACTS = (
    *("model", "engine_versions", "num_gpu_blocks", "num_pages", "block_size", "page_size", "kv_tokens"),
    *("max_model_len", "cache_dtype", "enable_prefix_caching"),
)
"""Facts that are told, where a page has them, in this order."""


def _families(head: str, uses: list[FamilyUse]) -> list[str]:
    """A line a family; those that only tell when another began to count would hide the rest, and share one."""
    if not uses:
        return []
    births = [u for u in uses if u.use is Use.IGNORED and u.name.endswith(CREATED)]
    lines = ["", f"{head} ({len(uses)})"]
    lines.extend(f"  {u.name:58} {u.text}" for u in uses if u not in births)
    if births:
        lines.append(f"  {f'{len(births)} that end in {CREATED}':58} {births[0].text}")
    return lines


def _facts(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {facts[name]}" for name in FACTS if facts.get(name)) or "none"


def _shown(name: str, value: SignalValue) -> str:
    unit = BY_NAME[name].unit.value
    if isinstance(value, Missing):
        return value.gap.value + (f": {value.text}" if value.text else "")
    best = "" if value.value is None or value.low == value.high else f" (about {number(value.value, unit)})"
    return f"{quantity(value, unit)}{best}"


def inspect_json(
    engine: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Iterable[FamilyUse]
) -> dict[str, Any]:
    """The same for a program."""
    return {
        "schema": 1,
        "engine": engine,
        "generation": page.generation,
        "facts": dict(page.facts),
        "signals": {name: reading_json(value) for name, value in readings.items()},
        "families": [{"name": u.name, "use": u.use, "text": u.text} for u in uses],
        "problems": list(page.problems),
    }
