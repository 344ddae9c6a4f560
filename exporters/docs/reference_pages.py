"""Generated files of a checkout, by path, and the reference pages: commands, configuration, signals, engines."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from exporters.docs.runbooks import fill_runbooks
from exporters.documents.calibration import calibration_schema
from exporters.grafana.dashboards import FILES as GRAFANA
from exporters.metrics import names
from exporters.prometheus_rules.alerts import alerts_text
from exporters.render.text import table
from exporters.report.records import report_schema
from rules.catalogue.registry import RULES
from rules.engines.registry import ENGINES, EngineTable, SourceRow
from rules.engines.several import TELLING
from rules.plan.schema import plan_schema
from rules.telemetry.families import FAMILIES, Family
from rules.telemetry.signals import SIGNALS, Gap

Schema = Mapping[str, Any]
SECTION = "section"
"""Kind of a key that holds other keys."""

GENERATED = "<!-- Generated from the program's own tables; `sizewatch render` writes it anew. -->"

COMMANDS = """\
From a checkout `python -m agent COMMAND` does the same. bash completes after
`eval "$(_SIZEWATCH_COMPLETE=bash_source sizewatch)"`; `zsh_source` and `fish_source` are for the others."""

CONFIGURATION = """\
`sizewatch` reads the file named with `-c`, else `./sizewatch.yaml`, else `/etc/sizewatch/sizewatch.yaml`; YAML, or JSON
where the name ends in `.json`. A key that is not listed here is an error. All problems of configuration and plan are
reported at once, each with file and path, and nothing starts before there is none. [Install](install.md) has examples.

- A duration is a number with its unit: `500ms`, `15s`, `5m`, `1h`, `7d`.
- A relative file is in the folder of the configuration. The names of `..._file` may hold `${NAME}`, replaced from the
  environment; nothing else is replaced.
- Secrets are never values here: they are in files of their own, read again when they change.
- `docs/config.schema.json` is the same as JSON Schema, for editors."""

SIGNALS_TEXT = """\
A **family** is what an engine or a GPU exposes, under our name. A **signal** is what is read from families over a
window: it has bounds and a count, or a named gap ([readings](readings.md)). [Engines](engines.md) differ in what they
expose. Units are base units, ratios run from 0 to 1. Families are exported, signals are not: a quantile or a ratio
cannot be added up again. Signals are in `sizewatch replay --format json`, `sizewatch inspect` and `/api/status`."""

FAMILIES_TEXT = """\
Counters and histograms are exported as the agent's own running sums of what it accepted: a restart of the engine does
not set them back. A histogram has `_bucket` (with the engine's own `le`), `_sum` and `_count`. What has no exported name
stays inside."""

ENGINES_TEXT = f"""\
Which family each engine prints, and from or up to which release; *-*: not at all. [Signals](signals.md) lists the
families that a signal needs. Releases are those that were looked at: the true change lies between two of them.
`sizewatch inspect PAGE` prints what one page gives. [GPU signals](gpus.md) do not depend on the engine.

Names are those of the page with `:` written as `_`, without what Ray, KServe or a router puts before them. The first row
of a family that is on the page is used. A page with several engines is several replicas, each named `target/engine`. The
labels {", ".join(f"`{label}`" for label in TELLING)} separate them, else the model or its version. Where no label does, or
where names of two engines are mixed, nothing is evaluated."""


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", GENERATED, *parts]) + "\n"


def commands_page(command_line: click.Group) -> str:
    parts = [COMMANDS]
    for context in list_contexts(command_line):
        level = "#" * max(2, len(context.command_path.split()))
        parts.append(f"{level} {context.command_path}\n\n```text\n{context.get_help()}\n```")
    return _page("Commands", *parts)


def list_contexts(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context of the command, then those of its commands and of theirs, which are loaded."""
    settings = {**command.context_settings, "terminal_width": 100}
    context = click.Context(command, info_name=command.name, parent=parent, **settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            if part is not None:
                yield from list_contexts(part, context)


def configuration_page(schema: Schema) -> str:
    """Return docs/configuration.md: a table of the keys for each part of the file."""
    rows: dict[str, list[tuple[str, ...]]] = {"": []}
    for path, part, required in walk_schema(schema):
        kind, default = _kind(part), "required" if required else ""
        if not required and part.get("default") not in (None, [], {}):
            words = str(part["default"])
            if isinstance(part["default"], bool):
                words = words.lower()
            default = f"`{words}`"
        section = ""
        if "." in path:
            section = path.partition(".")[0]
        if kind != SECTION:
            rows.setdefault(section, []).append((f"`{path}`", kind, default, part.get("description", "")))
    parts = [CONFIGURATION]
    for section, keys in rows.items():
        parts += [f"## {section}"] * bool(section) + [table(("key", "kind", "default", "meaning"), keys)]
    return _page("Configuration", *parts)


def walk_schema(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yield the dotted path of every key of a JSON Schema (without list items), its schema, and whether it is required."""

    def walk(part: Schema, place: str, above: tuple[str, ...]) -> Iterator[tuple[str, Schema, bool]]:
        inner = [*part.get("anyOf", ()), part.get("items"), part.get("additionalProperties")]
        inner += part.get("patternProperties", {}).values()
        for mapping in (part, *(schema_part for schema_part in inner if isinstance(schema_part, dict))):
            name = mapping.get("$ref", "").rpartition("/")[2]
            if name and name not in above:
                yield from walk(schema["$defs"][name], place, (*above, name))
            elif mapping is not part:
                yield from walk(mapping, place, above)
        for name, value in part.get("properties", {}).items():
            yield f"{place}{name}", value, name in part.get("required", ())
            yield from walk(value, f"{place}{name}.", above)

    return walk(schema, "", ())


def _kind(part: Schema) -> str:
    """Return the kind of a key's value. An optional key may also be null, which is not shown."""
    choices = [choice for choice in part.get("anyOf", ()) if choice.get("type") != "null"]
    bare = choices[0] if len(choices) == 1 else part
    if "enum" in bare:
        return " or ".join(f"`{value}`" for value in bare["enum"])
    if "pattern" in bare or "anyOf" in bare or bare.get("title", "").islower():
        return str(bare["title"])
    return str(bare.get("type", SECTION))


def signals_page() -> str:
    """Return docs/signals.md: signals, families with their exported names, and metrics of sizewatch's own."""
    signals = ((f"`{s.name}`", s.unit, s.text, ", ".join(f"`{name}`" for name in s.families)) for s in SIGNALS)
    own = ((f"`{metric.name}`", metric.type, ", ".join(metric.labels), metric.text) for metric in names.OWN)
    return _page(
        "Signals",
        SIGNALS_TEXT,
        table(("signal", "unit", "meaning", "from"), signals),
        f"## Families\n\n{FAMILIES_TEXT}",
        table(("family", "kind", "exported as", "labels", "meaning"), map(_family, FAMILIES)),
        "## Metrics of verdicts, plan and sizewatch itself\n\n`replica` is empty where a verdict is about the whole tier.",
        table(("metric", "kind", "labels", "meaning"), own),
    )


def _family(family: Family) -> tuple[str, ...]:
    metric = names.FAMILY.get(family.name)
    exported = (f"`{metric.name}`", ", ".join(metric.labels)) if metric else ("", "")
    return f"`{family.name}`", family.kind.value, *exported, family.text


def engines_page() -> str:
    printed = {row.family for engine in ENGINES for row in engine.rows}
    rows = ((f"`{f.name}`", *(_printed(engine, f.name) for engine in ENGINES)) for f in FAMILIES if f.name in printed)
    parts = [ENGINES_TEXT, table(("family", *(engine.label for engine in ENGINES)), rows)]
    for engine in ENGINES:
        releases = ", ".join(engine.scanned) or "not known"
        parts.append(f"## {engine.label}\n\n`engine: {engine.name}`; releases {releases}.")
        parts.append(table(("our family", "source", "since", "until", "note"), map(_source_row, engine.rows)))
        if engine.not_exposed:
            reasons = ((f"`{name}`", why) for name, why in engine.not_exposed.items())
            parts.append(table(("not exposed, or not at once", "why"), reasons))
    return _page("Engines", *parts)


def _printed(engine: EngineTable, family: str) -> str:
    rows = [row for row in engine.rows if row.family == family]
    if not rows:
        return "-"
    place = {release: number for number, release in enumerate(engine.scanned)}
    first = min(place.get(row.since, 0) for row in rows)
    last = max(place.get(row.until, len(place)) for row in rows)
    words = [f"from {engine.scanned[first]}"] if first else []
    words += [f"to {engine.scanned[last]}"] if last + 1 < len(engine.scanned) else []
    return " ".join(words) or "yes"


def _source_row(row: SourceRow) -> tuple[str, ...]:
    where = [f'{label}=~"{pattern}"' for label, pattern in row.where.items()]
    where += [f'{label}!~"{pattern}"' for label, pattern in row.unless.items()]
    conditions = ""
    if where:
        conditions = f"{{{','.join(where)}}}"
    return f"`{row.family}`", f"`{row.source}{conditions}`", row.since, row.until, row.note


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """Inputs from the agent: the JSON Schema of the configuration, the whole command line, and the page's address for alerts."""

    config_schema: Mapping[str, Any]
    command_line: click.Group
    external_url: str = ""


Render = Callable[[RenderInputs, str], str]
"""Function from the inputs and the present text of the file ("" if missing) to its new text."""

ARTEFACTS: Mapping[str, Render] = {
    "docs/plan.schema.json": lambda sources, _: schema_text(plan_schema()),
    "docs/calibration.schema.json": lambda sources, _: schema_text(calibration_schema()),
    "docs/report.schema.json": lambda sources, _: schema_text(report_schema()),
    "docs/config.schema.json": lambda sources, _: schema_text(sources.config_schema),
    "docs/public-surface.json": lambda sources, present: surface_text(public_surface(sources), present),
    "docs/configuration.md": lambda sources, _: configuration_page(sources.config_schema),
    "docs/commands.md": lambda sources, _: commands_page(sources.command_line),
    "docs/engines.md": lambda sources, _: engines_page(),
    "docs/signals.md": lambda sources, _: signals_page(),
    "docs/runbooks.md": lambda sources, present: fill_runbooks(present),
    "rules/prometheus/sizewatch-alerts.yaml": lambda sources, _: alerts_text(sources.external_url),
    # Copies: a chart reads only files of its own folder.
    "deploy/chart/sizewatch/files/sizewatch-alerts.yaml": lambda sources, _: alerts_text(sources.external_url),
    **{path: lambda *_, text=text: text() for path, text in GRAFANA.items()},
}
"""Render functions by path from the root of the repository."""


def schema_text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def public_surface(inputs: RenderInputs) -> dict[str, list[str]]:
    """Return every name that other people's programs may rely on, by kind, sorted.

    A metric has its labels, a command its options. Keys are dotted paths. The JSON that commands print is not here:
    a test takes its keys from real output.
    """
    metrics = [f"{metric.name}{{{','.join(metric.labels)}}}" for metric in names.ALL]
    # Every command has --help; it is listed once.
    commands = [f"{inputs.command_line.name} --help"]
    for context in list_contexts(inputs.command_line):
        options = itertools.chain.from_iterable(parameter.opts for parameter in context.command.params)
        commands.append(context.command_path)
        for option in options:
            if option.startswith("--"):
                commands.append(f"{context.command_path} {option}")
    mapping = {
        "calibration": _keys(calibration_schema()),
        "commands": commands,
        "configuration": _keys(inputs.config_schema),
        "gaps": [gap.value for gap in Gap],
        "metrics": metrics,
        "plan": _keys(plan_schema()),
        "report.json": _keys(report_schema()),
        "rules": [rule.name for rule in RULES],
        "signals": [signal.name for signal in SIGNALS],
    }
    return {kind: sorted(set(listed)) for kind, listed in mapping.items()}


def surface_text(current: Mapping[str, list[str]], present: str) -> str:
    """Return docs/public-surface.json with the current names added.

    No name is ever taken away here. Who removes one moves it to `removed` by hand, with the version and what to use.
    """
    kept: dict[str, Any] = json.loads(present) if present else {"removed": {}}
    gone = {name for listed in kept["removed"].values() for name in listed}
    for kind, listed in current.items():
        kept[kind] = sorted({*kept.get(kind, ()), *listed} - gone)
    return schema_text(kept)


def _keys(schema: Mapping[str, Any]) -> list[str]:
    return [path for path, _, _ in walk_schema(schema)]
