"""Decodes a benchmark's result file: one JSON object, JSON lines (an object a line), or YAML.

Owns reading, decoding and what is said of a file that is none of them. It knows no tool and no key: the files of the
tools do, through the parts that come from here (`agent.benchmarks.typed_fields`). Another encoding is a function here that
`decoded` chooses by how the text begins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from agent.benchmarks.typed_fields import ResultFields
from agent.config import yaml_size
from agent.errors import BenchmarkError

MAX_BYTES = 256 * 1024 * 1024
"""A report with every request of a long run in it is tens of megabytes; decoding takes some ten times its size."""

MAX_YAML_BYTES = 1024 * 1024
"""YAML is decoded at some hundred kilobytes a second (by the parser in Python: the one in C crashes on deep nesting)."""

_Numbered = tuple[tuple[str, Any], ...]


def decode_file(path: Path) -> tuple[ResultFields, ...]:
    """The objects in a file: one, or one a line where it is JSON lines; `line` of a part names which.

    Raises BadBenchmark, one sentence, where the file cannot be read, is too large, is cut off, or holds something else
    than objects.
    """
    text = _text(path)
    try:
        values = (_from_json if text.lstrip()[0] in "{[" else _from_yaml)(path, text)
    except RecursionError:
        raise BenchmarkError(path, "is nested too deeply for a benchmark's result") from None
    for line, value in values:
        if not isinstance(value, dict):
            raise BenchmarkError(path, f"{line + ' ' if line else ''}holds no object of keys and values")
    return tuple(ResultFields(source=str(path), line=line, path="", data=value) for line, value in values)


def _text(path: Path) -> str:
    try:
        # Not its size: a pipe and a device have none.
        with path.open("rb") as file:
            # Piece by piece: a read of so much makes room for all of it first.
            body = bytearray()
            while len(body) <= MAX_BYTES and (piece := file.read(1 << 20)):
                body += piece
        if len(body) > MAX_BYTES:
            raise BenchmarkError(path, f"is larger than {MAX_BYTES >> 20} MiB; export it without single requests")
        text = body.decode("utf-8-sig")
    except FileNotFoundError:
        raise BenchmarkError(path, "there is no such file") from None
    except OSError as error:
        raise BenchmarkError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BenchmarkError(path, "is not a text file in UTF-8") from None
    if not text.strip():
        raise BenchmarkError(path, "is empty")
    return text


def _from_json(path: Path, text: str) -> _Numbered:
    try:
        return (("", json.loads(text)),)
    except json.JSONDecodeError as error:
        # A second value after the first: what `vllm bench serve --append-result` writes.
        if error.msg == "Extra data" and "\n" not in text[: error.pos].strip():
            return _from_lines(path, text)
        raise BenchmarkError(path, _why(error, text)) from None
    except ValueError:
        raise BenchmarkError(path, "holds a number with thousands of digits") from None


def _from_lines(path: Path, text: str) -> _Numbered:
    values = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values.append((f"line {number}", json.loads(line)))
        except json.JSONDecodeError as error:
            raise BenchmarkError(path, f"line {number} {_why(error, line)}") from None
        except ValueError:
            raise BenchmarkError(path, f"line {number} holds a number with thousands of digits") from None
    return tuple(values)


def _from_yaml(path: Path, text: str) -> _Numbered:
    if len(text) > MAX_YAML_BYTES:
        raise BenchmarkError(path, f"is neither JSON nor YAML of less than {MAX_YAML_BYTES >> 20} MiB")
    try:
        return (("", yaml_size.loaded(text)),)
    except (yaml.YAMLError, ValueError):
        raise BenchmarkError(path, "is neither JSON nor one YAML document") from None


def _why(error: json.JSONDecodeError, text: str) -> str:
    whole = text.rstrip()
    if error.pos >= len(whole) or whole[-1] not in "}]":
        return "ends in the middle of its JSON: was it cut off?"
    where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
    return f"is no valid JSON ({error.msg} at {where})"
