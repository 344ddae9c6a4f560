"""Page docs/commands.md from the argument parser, and docs/configuration.md from a JSON Schema.

New commands, options and keys need no change here. The parser's help texts, choices and epilog (exit codes) are
printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exporters.render.text import table

HEAD = """\
# Commands

<!-- Generated from the command line's own parsers; `sizewatch render` writes it anew. -->

`sizewatch COMMAND --help` says the same. From a checkout `python -m agent COMMAND` does too."""

TABLE = "| argument | default | meaning |\n|---|---|---|"


def commands_page(parser: argparse.ArgumentParser) -> str:
    """Return the whole page. `parser` is the whole command line with a subparser per command."""
    every = list_arguments(parser)
    top = [HEAD, _table(parser, every), parser.epilog or ""]
    sections = [part for command in list_commands(parser) for part in _sections(command, "##", every)]
    return "\n\n".join([part for part in (*top, *sections) if part]) + "\n"


def _sections(parser: argparse.ArgumentParser, mark: str, known: Sequence[argparse.Action]) -> Iterator[str]:
    """Yield the section of a command, and of its subcommands below it. Options of every command are `known`."""
    yield f"{mark} {parser.prog}"
    yield parser.description or ""
    parts = list_commands(parser)
    if not parts:
        yield f"```\n{usage(parser, known)}\n```"
    yield _table(parser, list_arguments(parser, known))
    yield parser.epilog or ""
    for part in parts:
        yield from _sections(part, f"{mark}#", known)


def list_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the parsers of the commands below a parser. The short help replaces a missing description."""
    found = []
    for action in parser._actions:
        # argparse has no public way to list subparsers; these names have not changed since Python 2.7.
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, command in action.choices.items():
                short = helps.get(name) or ""
                command.description = command.description or f"{short[:1].upper()}{short[1:]}."
                found.append(command)
    return found


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser, then those of its commands and of theirs."""
    yield parser
    for part in list_commands(parser):
        yield from all_parsers(part)


def list_arguments(parser: argparse.ArgumentParser, known: Sequence[argparse.Action] = ()) -> list[argparse.Action]:
    """Return the arguments of a parser, without options that are `known` from another."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    everywhere = [action.option_strings for action in known if action.option_strings]
    shown = (a for a in parser._actions if not isinstance(a, hidden) and a.help != argparse.SUPPRESS)
    return [action for action in shown if action.option_strings not in everywhere]


def usage(parser: argparse.ArgumentParser, known: Sequence[argparse.Action] = ()) -> str:
    """Return the usage on a single line. argparse's own usage depends on terminal width and Python version."""
    words = [parser.prog]
    for action in list_arguments(parser, known):
        text = spell(action, action.option_strings[0] if action.option_strings else "")
        words.append(text if action.required else f"[{text}]")
    return " ".join(words)


def spell(action: argparse.Action, option: str) -> str:
    """Return an option with its value, or a positional argument (`option` is then empty)."""
    return option if action.nargs == 0 else f"{option} {_value(action)}".lstrip()


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _table(parser: argparse.ArgumentParser, arguments: Sequence[argparse.Action]) -> str:
    rows = [_row(parser, action) for action in arguments]
    return "\n".join([TABLE, *rows]) if rows else ""


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    names = [spell(action, option) for option in action.option_strings] or [_value(action)]
    default = "required" if action.required else _argument_default(action)
    meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
    cells = (", ".join(f"`{name}`" for name in names), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _argument_default(action: argparse.Action) -> str:
    """Return the default or "". A duration is in seconds, or as written in its metavar ("7d")."""
    value, metavar = action.default, action.metavar
    if isinstance(value, float) and isinstance(metavar, str) and metavar[:1].isdigit():
        return f"`{metavar}`"
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == argparse.SUPPRESS:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


Schema = Mapping[str, Any]
Row = tuple[str, str, str, str]

_KINDS = {"string": "text", "number": "number", "integer": "whole number", "boolean": "true or false", "array": "list"}
_HEAD = ("key", "kind", "default", "meaning")


def configuration_page(schema: Schema) -> str:
    """Return docs/configuration.md: a table of the top-level keys, then a table for each part of the file."""
    plain = {key: part for key, part in schema["properties"].items() if not _is_part(schema, part)}
    sections = [_TOP, table(_HEAD, _rows(schema, {**schema, "properties": plain}, ""))]
    for key, part in schema["properties"].items():
        if _is_part(schema, part):
            record, suffix = _record(schema, part)
            words = [text for text in (part.get("description"), record.get("description")) if text]
            sections += [
                f"## {key}\n\n{' '.join(words)}".rstrip(),
                table(_HEAD, _rows(schema, record, f"{key}{suffix}.")),
            ]
    return "\n\n".join([*sections, _EXAMPLE]) + "\n"


def _rows(schema: Schema, record: Schema, prefix: str) -> Iterator[Row]:
    required = record.get("required", ())
    for key, part in record["properties"].items():
        if _is_part(schema, part):
            inner, suffix = _record(schema, part)
            yield from _rows(schema, inner, f"{prefix}{key}{suffix}.")
            continue
        default = "required" if key in required else _schema_default(part.get("default"))
        yield f"`{prefix}{key}`", _kind(schema, part), default, part.get("description", "")


def _schema_default(value: object) -> str:
    if value is None or value in ([], {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bare(part: Schema) -> Schema:
    """Return the schema without the null of an optional key."""
    choices = [choice for choice in part.get("anyOf", ()) if choice.get("type") != "null"]
    return choices[0] if len(choices) == 1 else part


def _is_part(schema: Schema, part: Schema) -> bool:
    return "$ref" in _inner(_bare(part))[0]


def _record(schema: Schema, part: Schema) -> tuple[Schema, str]:
    inner, suffix = _inner(_bare(part))
    record: Schema = schema["$defs"][inner["$ref"].rpartition("/")[2]]
    return record, suffix


def _inner(bare: Schema) -> tuple[Schema, str]:
    """Return the schema of the entries of a list or mapping, and the notation of an entry."""
    if bare.get("type") == "array":
        return bare.get("items", {}), "[]"
    more = bare.get("additionalProperties")
    return (more, ".NAME") if isinstance(more, dict) and "$ref" in more else (bare, "")


def _kind(schema: Schema, part: Schema) -> str:
    bare = _bare(part)
    if "enum" in bare:
        return " or ".join(f"`{value}`" for value in bare["enum"])
    if bare.get("type") == "object":
        return "mapping"
    if "pattern" in bare or "anyOf" in bare or bare.get("title", "").islower():
        return str(bare["title"])
    return _KINDS[bare["type"]]


_TOP = """\
# Configuration

<!-- Generated from the program's own keys; `sizewatch render` writes it anew. -->

`sizewatch` reads the file named with `-c`, else `./sizewatch.yaml`, else `/etc/sizewatch/sizewatch.yaml`; YAML, or JSON
where the name ends in `.json`. A key that is not listed here is an error. All problems of configuration and plan are
told at once, each with file, line and path, and nothing starts before there is none.

- A duration is a number with its unit: `500ms`, `15s`, `5m`, `1h`, `7d`.
- A relative file stands in the folder of the configuration. The names of `..._file` may hold `${NAME}`, replaced from
  the environment; nothing else is replaced.
- Secrets are never values here: they stand in files of their own, read again when they change.
- `docs/config.schema.json` is the same as JSON Schema, for editors."""

_EXAMPLE = """\
## An example

```yaml
plan: plan.yaml
targets:
  - url: http://127.0.0.1:8000/metrics
    tier: h100-llama70b-fp8
    replica: gpu-node-1-0
    gpus: [0, 1, 2, 3]
  - url: https://10.0.3.17:8000/metrics
    tier: h100-llama70b-fp8
    bearer_token_file: ${CREDENTIALS_DIRECTORY}/metrics-token
    tls: {ca_file: /etc/ssl/fleet-ca.pem}
thresholds:
  h100-llama70b-fp8:
    TtftDivergence: {factor: 1.5}
```"""
