"""Formats of benchmark result files, detected by content: JSON object, list of objects, JSON lines or YAML.

A new tool is a module with `recognises` and a model of its run, and a row of FORMATS. Its name is the value of `--from`.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agent.benchmarks import aiperf, guidellm, inference_perf, sglang_bench, vllm_bench
from agent.benchmarks.points import BenchmarkMeasurement, build_measurement
from agent.benchmarks.run_model import CONTRADICTION, BenchmarkRun, ResultPart
from agent.config import files
from agent.errors import BenchmarkError, NotAResultError

MAX_BYTES = 256 * 1024 * 1024
"""Size limit in bytes. A report with every request of a long run has tens of MB; decoding takes ten times its size."""

MAX_YAML_BYTES = 1024 * 1024
"""Size limit of YAML in bytes. The Python parser decodes some 100 kB/s; the C parser crashes on deep nesting."""

AUTO = "auto"


def decode_file(path: Path) -> tuple[ResultPart, ...]:
    """Return the objects of a file: one, or one at a place for each line or list entry.

    Raise BenchmarkError if the file is unreadable, too large or truncated, and NotAResultError if it holds no objects.
    """
    text = _text(path)
    try:
        values = list(_values(path, text))
    except RecursionError:
        raise BenchmarkError(path, "is nested too deeply for a benchmark's result") from None
    # `vllm bench sweep` writes the runs of a setting as one list, summary.json.
    if len(values) == 1 and isinstance(runs := values[0][1], list):
        values = [(f"run {number}", run) for number, run in enumerate(runs, start=1)]
    for place, value in values:
        if not isinstance(value, dict):
            raise NotAResultError(path, f"{place + ' ' if place else ''}holds no object of keys and values")
    return tuple(ResultPart(source=str(path), place=place, data=value) for place, value in values)


def _text(path: Path) -> str:
    try:
        # No size check by stat: a pipe and a device have no size.
        with path.open("rb") as file:
            body = file.read(MAX_YAML_BYTES)
            if len(body) == MAX_YAML_BYTES:
                if not body.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[")):
                    raise NotAResultError(path, f"is neither JSON nor YAML of less than {MAX_YAML_BYTES >> 20} MiB")
                body += file.read(MAX_BYTES - MAX_YAML_BYTES + 1)
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


def _values(path: Path, text: str) -> Iterable[tuple[str, Any]]:
    """Return the values of a text by their place. Several lines of JSON are `vllm bench serve --append-result`."""
    lines = [(f"line {number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if text.lstrip()[0] not in "{[":
        try:
            return [("", files.parse_yaml(text))]
        except (yaml.YAMLError, ValueError):
            raise NotAResultError(path, "is neither JSON nor one YAML document") from None
    # A document of one value has no whole value on its first line.
    several = len(lines) > 1 and lines[0][1].rstrip()[-1] in "}]" and lines[1][1][0] in "{["
    return [(place, _json(path, place, part)) for place, part in (lines if several else [("", text)])]


def _json(path: Path, place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        why = f"is no valid JSON ({error.msg} at {where})"
        if error.pos >= len(text.rstrip()) or text.rstrip()[-1] not in "}]":
            why = "ends in the middle of its JSON: was it cut off?"
        raise BenchmarkError(path, f"{place} {why}".strip()) from None
    except ValueError:
        raise BenchmarkError(path, f"{place} holds a number with thousands of digits".strip()) from None


def _whole(part: ResultPart) -> list[ResultPart]:
    return [part]


def _as_it_is(runs: Sequence[BenchmarkRun]) -> None:
    """Leave the runs of a file as they are."""


class BenchmarkFormat(NamedTuple):
    """Result format. `name` is the value of `--from`, `title` the tool's own name.

    `split` returns the loads of a document, `adjust` changes runs that are in one document.
    """

    name: str
    title: str
    recognises: Callable[[Mapping[str, Any]], bool]
    model: type[BenchmarkRun]
    split: Callable[[ResultPart], Sequence[ResultPart]] = _whole
    adjust: Callable[[Sequence[BenchmarkRun]], None] = _as_it_is


FORMATS = (
    BenchmarkFormat(vllm_bench.NAME, "vllm bench serve", vllm_bench.recognises, vllm_bench.VllmRun),
    BenchmarkFormat(sglang_bench.NAME, "sglang.bench_serving", sglang_bench.recognises, sglang_bench.SglangRun),
    BenchmarkFormat(inference_perf.NAME, "inference-perf", inference_perf.recognises, inference_perf.StageRun),
    BenchmarkFormat(guidellm.NAME, "GuideLLM", guidellm.recognises, guidellm.EntryRun, guidellm.split, guidellm.adjust),
    BenchmarkFormat(aiperf.NAME, "AIPerf", aiperf.recognises, aiperf.ProfileRun),
)

NAMES = tuple(row.name for row in FORMATS)


WARM_UP = re.compile(r"warm[-_ ]?up(?![a-z])", re.IGNORECASE)
"""Begin of a name that a user gives a warm-up run (`--tag warmup`, `--label warm-up`)."""


def read_all_results(
    paths: Sequence[Path], tool: str = AUTO
) -> tuple[list[BenchmarkMeasurement], list[NotAResultError]]:
    """Return all loads of the files, and an error for each file or load without a place in a curve.

    `tool` is a name of FORMATS or "auto". If there is no load, raise all contradictions in one error, or else the first
    error. Raise BenchmarkError with file and reason for an unreadable file or another tool's.
    """
    loads: list[BenchmarkMeasurement] = []
    others: list[NotAResultError] = []
    for path in paths:
        try:
            for part in decode_file(path):
                _read_part(part, tool, loads, others)
        except NotAResultError as error:
            others.append(error)
    if not loads and not others:
        raise BenchmarkError(paths[0], "holds no benchmark")
    if not loads:
        first, *more = [error for error in others if CONTRADICTION in error.text] or others[:1]
        raise NotAResultError(first.path, "; ".join([first.text, *map(str, more)]))
    return loads, others


def _read_part(part: ResultPart, tool: str, loads: list[BenchmarkMeasurement], others: list[NotAResultError]) -> None:
    """Add the loads of a document, and the errors of those that are left out."""
    row = next((row for row in FORMATS if row.recognises(part.data)), None)
    if row is None:
        raise part.left_out(f"is no benchmark result that sizewatch reads ({', '.join(NAMES)})")
    if tool not in (AUTO, row.name):
        title = next(other.title for other in FORMATS if other.name == tool)
        raise BenchmarkError(part.location, f"is a report of {row.title}, not of {title}")
    runs: list[tuple[ResultPart, BenchmarkRun]] = []
    for entry in row.split(part):
        try:
            if mark := _warm_up_mark(entry):
                raise entry.left_out(f"is a warm-up run ({mark})")
            runs.append((entry, entry.read(row.model)))
        except NotAResultError as error:
            others.append(error)
    row.adjust([run for _, run in runs])
    for entry, run in runs:
        try:
            loads.append(build_measurement(entry, row.name, run))
        except NotAResultError as error:
            others.append(error)


def _warm_up_mark(part: ResultPart) -> str:
    """Return the mark of a warm-up run, or "". `vllm bench sweep` numbers it -1; users name it by tag or label."""
    if not isinstance(part.data, Mapping):
        return ""
    number = part.data.get("run_number")
    if isinstance(number, int) and number < 0:
        return f"run_number {number}"
    named = ((key, part.data.get(key)) for key in ("tag", "label", "phase"))
    return next((f"{key} {value[:40]}" for key, value in named if isinstance(value, str) and WARM_UP.match(value)), "")
