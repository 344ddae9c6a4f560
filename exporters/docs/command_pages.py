"""Page docs/commands.md from click's commands, and docs/configuration.md from a JSON Schema.

New commands, options and keys need no change here. Help texts, choices and epilog (exit codes) are printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from exporters.render.text import table

HEAD = """\
# Commands

<!-- Generated from the command line itself; `sizewatch render` writes it anew. -->

`sizewatch COMMAND --help` says the same. From a checkout `python -m agent COMMAND` does too.
bash completes after `eval "$(_SIZEWATCH_COMPLETE=bash_source sizewatch)"`; `zsh_source` and `fish_source` are for the others."""

TABLE = "| argument | default | meaning |\n|---|---|---|"


def commands_page(command_line: click.Group) -> str:
    """Return the whole page: the options of every command, then a section per command."""
    top, *commands = list_contexts(command_line)
    sections = (part for context in commands for part in _section(context))
    page = [HEAD, _table(top, list_parameters(top)), top.command.epilog or "", *sections]
    return "\n\n".join(part for part in page if part) + "\n"


def _section(context: click.Context) -> Iterator[str]:
    """Yield the parts of a command's section. Options of every command stand at the top of the page."""
    yield f"{'#' * len(context.command_path.split())} {context.command_path}"
    yield context.command.help or ""
    parameters = list_parameters(context)
    if not isinstance(context.command, click.Group):
        yield f"```\n{' '.join([context.command_path, *(_usage(context, parameter) for parameter in parameters)])}\n```"
    yield _table(context, parameters)
    yield context.command.epilog or ""


def list_contexts(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context of the command, then those of its commands and of theirs, which are loaded."""
    context = click.Context(command, info_name=command.name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            if part is not None:
                yield from list_contexts(part, context)


def list_parameters(context: click.Context) -> list[click.Parameter]:
    """Return the parameters of a command, without those that the command line has for every command."""
    root = context.find_root()
    parameters = root.command.get_params(root)
    if context is root:
        return parameters
    return [
        parameter
        for parameter in context.command.params
        if all(parameter.opts != candidate.opts for candidate in parameters)
    ]


def _usage(context: click.Context, parameter: click.Parameter) -> str:
    text = _spell(context, parameter, parameter.opts[0])
    return f"[{text}]" if isinstance(parameter, click.Option) and not parameter.required else text


def _spell(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Return an option with its value, or an argument."""
    if isinstance(parameter, click.Option):
        return name if parameter.is_flag else f"{name} {parameter.make_metavar(context).strip('[]')}"
    return parameter.make_metavar(context)


def _table(context: click.Context, parameters: Sequence[click.Parameter]) -> str:
    return "\n".join([TABLE, *(_row(context, parameter) for parameter in parameters)]) if parameters else ""


def _row(context: click.Context, parameter: click.Parameter) -> str:
    shown = parameter.to_info_dict()
    default = "required" if parameter.required else ""
    if not default and isinstance(shown["default"], str | int) and not isinstance(shown["default"], bool):
        default = f"`{shown['default']}`"
    names = ", ".join(f"`{_spell(context, parameter, name)}`" for name in parameter.opts)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (names, default, shown["help"])) + " |"


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
told at once, each with file and path, and nothing starts before there is none.

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
