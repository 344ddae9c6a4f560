"""Formats of benchmark result files, detected by content: JSON object, list of objects, JSON lines or YAML.

A new tool is a module with `recognises` and `read`, and a row of FORMATS. Its name is the value of `--from`.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agent.benchmarks import aiperf, guidellm, inference_perf, sglang_bench, vllm_bench
from agent.benchmarks.points import BenchmarkMeasurement, Loads
from agent.benchmarks.typed_fields import CONTRADICTION, ResultFields
from agent.config import files
from agent.errors import BenchmarkError, NotAResultError

MAX_BYTES = 256 * 1024 * 1024
"""Size limit in bytes. A report with every request of a long run has tens of MB; decoding takes ten times its size."""

MAX_YAML_BYTES = 1024 * 1024
"""Size limit of YAML in bytes. The Python parser decodes some 100 kB/s; the C parser crashes on deep nesting."""

AUTO = "auto"

_Numbered = tuple[tuple[str, Any], ...]


def decode_file(path: Path) -> tuple[ResultFields, ...]:
    """Return the objects of a file: one per file, or one per line or list entry with `line` set.

    Raise BenchmarkError if the file is unreadable, too large or truncated, or holds anything but objects.
    """
    text = _text(path)
    try:
        values = (_from_json if text.lstrip()[0] in "{[" else _from_yaml)(path, text)
    except RecursionError:
        raise BenchmarkError(path, "is nested too deeply for a benchmark's result") from None
    # `vllm bench sweep` writes the runs of a setting as one list, summary.json.
    if len(values) == 1 and isinstance(runs := values[0][1], list):
        values = tuple((f"run {number}", run) for number, run in enumerate(runs, start=1))
    for line, value in values:
        if not isinstance(value, dict):
            raise NotAResultError(path, f"{line + ' ' if line else ''}holds no object of keys and values")
    return tuple(ResultFields(source=str(path), line=line, path="", data=value) for line, value in values)


def _text(path: Path) -> str:
    try:
        # No size check by stat: a pipe and a device have no size.
        with path.open("rb") as file:
            # Read in pieces: one large read would allocate the whole limit.
            body = bytearray()
            while len(body) <= MAX_BYTES and (piece := file.read(MAX_YAML_BYTES)):
                if len(body) == MAX_YAML_BYTES and not _may_be_json(body):
                    raise NotAResultError(path, f"is neither JSON nor YAML of less than {MAX_YAML_BYTES >> 20} MiB")
                body += piece
        if len(body) > MAX_BYTES:
            raise BenchmarkError(path, f"is larger than {MAX_BYTES >> 20} MiB; export it without single requests")
        text = body.decode("utf-8-sig")
    except FileNotFoundError:
        raise BenchmarkError(path, "there is no such file") from None
    except IsADirectoryError:
        raise NotAResultError(path, "is a folder") from None
    except OSError as error:
        raise BenchmarkError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotAResultError(path, "is not a text file in UTF-8") from None
    if not text.strip():
        raise BenchmarkError(path, "is empty")
    return text


def _may_be_json(begin: bytearray) -> bool:
    """Return whether a file that begins so may be JSON: the rest of one that may not is not read."""
    return begin.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"["))


def _from_json(path: Path, text: str, line: str = "") -> _Numbered:
    """Return the value of a text, or of each of its lines. `line` is the place of a text that is a line."""
    place = f"{line} " if line else ""
    try:
        return ((line, json.loads(text)),)
    except json.JSONDecodeError as error:
        # A second value after the first is the output of `vllm bench serve --append-result`.
        if not line and error.msg == "Extra data" and "\n" not in text[: error.pos].strip():
            lines = ((f"line {number}", each) for number, each in enumerate(text.splitlines(), start=1) if each.strip())
            return tuple(pair for name, each in lines for pair in _from_json(path, each, name))
        raise BenchmarkError(path, f"{place}{_why(error, text)}") from None
    except ValueError:
        raise BenchmarkError(path, f"{place}holds a number with thousands of digits") from None


def _from_yaml(path: Path, text: str) -> _Numbered:
    try:
        return (("", files.parse_yaml(text)),)
    except (yaml.YAMLError, ValueError):
        raise NotAResultError(path, "is neither JSON nor one YAML document") from None


def _why(error: json.JSONDecodeError, text: str) -> str:
    whole = text.rstrip()
    if error.pos >= len(whole) or whole[-1] not in "}]":
        return "ends in the middle of its JSON: was it cut off?"
    where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
    return f"is no valid JSON ({error.msg} at {where})"


class BenchmarkFormat(NamedTuple):
    """Result format. `name` is the value of `--from`, `title` the tool's own name."""

    name: str
    title: str
    article: str
    recognises: Callable[[ResultFields], bool]
    read: Callable[[ResultFields], Loads]


FORMATS = (
    BenchmarkFormat(vllm_bench.NAME, "vllm bench serve", "a", vllm_bench.recognises, vllm_bench.read),
    BenchmarkFormat(sglang_bench.NAME, "sglang.bench_serving", "an", sglang_bench.recognises, sglang_bench.read),
    BenchmarkFormat(inference_perf.NAME, "inference-perf", "an", inference_perf.recognises, inference_perf.read),
    BenchmarkFormat(guidellm.NAME, "GuideLLM", "a", guidellm.recognises, guidellm.read),
    BenchmarkFormat(aiperf.NAME, "AIPerf", "an", aiperf.recognises, aiperf.read),
)

NAMES = tuple(row.name for row in FORMATS)


WARM_UP = re.compile(r"warm[-_ ]?up(?![a-z])", re.IGNORECASE)
"""Begin of a name that a user gives a warm-up run (`--tag warmup`, `--label warm-up`)."""


def read_all_results(
    paths: Sequence[Path], tool: str = AUTO
) -> tuple[list[BenchmarkMeasurement], list[NotAResultError]]:
    """Return all loads of the files, and an error for each file or load without a place in a curve.

    `tool` is a name of FORMATS or "auto", else a ValueError. If there is no load, raise all contradictions in one error,
    or else the first error. Raise BenchmarkError with file, place and reason for an unreadable file, another tool or
    impossible values.
    """
    loads: list[BenchmarkMeasurement | NotAResultError] = []
    for path in paths:
        try:
            loads += _read_loads(path, tool)
        except NotAResultError as error:
            loads.append(error)
    found = [load for load in loads if isinstance(load, BenchmarkMeasurement)]
    others = [load for load in loads if isinstance(load, NotAResultError)]
    if not found:
        first, *more = [error for error in others if CONTRADICTION in error.text] or others[:1]
        raise NotAResultError(first.path, "; ".join([first.text, *map(str, more)]))
    return found, others


def _read_loads(path: Path, tool: str) -> Loads:
    wanted = next((row for row in FORMATS if row.name == tool), None)
    if wanted is None and tool != AUTO:
        raise ValueError(f"{tool} is no format: {', '.join(NAMES)}")
    found: list[BenchmarkMeasurement | NotAResultError] = []
    for part in decode_file(path):
        row = next((row for row in FORMATS if row.recognises(part)), None)
        if row is None:
            text = f"is no benchmark result that sizewatch reads ({', '.join(NAMES)})"
            raise part.bad(text, kind=NotAResultError)
        if wanted is not None and row is not wanted:
            raise part.bad(f"is {row.article} {row.title} report, not {wanted.title}'s")
        if mark := _warm_up_mark(part):
            found.append(part.left_out(f"is a warm-up run ({mark})"))
            continue
        try:
            found += row.read(part)
        except NotAResultError as error:
            found.append(error)
    if not found:
        raise BenchmarkError(path, "holds no benchmark")
    return tuple(found)


def _warm_up_mark(part: ResultFields) -> str:
    """Return the mark of a warm-up run, or "". `vllm bench sweep` numbers it -1; users name it by tag or label."""
    number = part.data.get("run_number")
    if isinstance(number, int) and number < 0:
        return f"run_number {number}"
    named = ((key, part.data.get(key)) for key in ("tag", "label", "phase"))
    return next((f"{key} {value[:40]}" for key, value in named if isinstance(value, str) and WARM_UP.match(value)), "")
