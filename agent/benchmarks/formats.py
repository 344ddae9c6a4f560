"""Formats of benchmark result files, detected by content: a JSON object, a list of them, or one a line.

A new tool is a module with a model of its run, which recognises its files, and a row of FORMATS.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.benchmarks.aiperf import ProfileRun
from agent.benchmarks.guidellm import EntryRun
from agent.benchmarks.inference_perf import StageRun
from agent.benchmarks.points import BenchmarkMeasurement, build_measurement
from agent.benchmarks.run_model import CONTRADICTION, BenchmarkRun, ResultPart
from agent.benchmarks.sglang_bench import SglangRun
from agent.benchmarks.vllm_bench import VllmRun
from agent.errors import BenchmarkError, NotAResultError

MAX_BYTES = 256 * 1024 * 1024
"""Size limit in bytes. A report with every request of a long run has tens of MB; decoding takes ten times its size."""

FORMATS: tuple[type[BenchmarkRun], ...] = (VllmRun, SglangRun, StageRun, EntryRun, ProfileRun)

NAMES = tuple(model.tool for model in FORMATS)


def read_all_results(paths: Sequence[Path]) -> tuple[list[BenchmarkMeasurement], list[NotAResultError]]:
    """Return all loads of the files, and an error for each file or load without a place in a curve.

    If there is no load, raise all contradictions in one error, or else the first error. Raise BenchmarkError with file
    and reason for an unreadable file.
    """
    loads: list[BenchmarkMeasurement] = []
    others: list[NotAResultError] = []
    for path in paths:
        try:
            for part in decode_file(path):
                for entry, run in _format_of(part).read_all(part, others):
                    try:
                        loads.append(build_measurement(entry, run))
                    except NotAResultError as error:
                        others.append(error)
        except NotAResultError as error:
            others.append(error)
    if not loads and not others:
        raise BenchmarkError(paths[0], "holds no benchmark")
    if not loads:
        first, *more = [error for error in others if CONTRADICTION in error.text] or others[:1]
        raise NotAResultError(first.path, "; ".join([first.text, *map(str, more)]))
    return loads, others


def _format_of(part: ResultPart) -> type[BenchmarkRun]:
    model = next((model for model in FORMATS if model.recognises(part.data)), None)
    if model is None:
        raise part.left_out(f"is no benchmark result that sizewatch reads ({', '.join(NAMES)})")
    return model


def decode_file(path: Path) -> tuple[ResultPart, ...]:
    """Return the objects of a file: one, or one for each line or list entry with its place.

    Lines are runs of `vllm bench serve --append-result` and SGLang, a list is summary.json of `vllm bench sweep`. Raise
    BenchmarkError if the file is unreadable, too large or truncated, and NotAResultError if it holds no objects.
    """
    try:
        # No size check by stat: a pipe and a device have no size.
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise NotAResultError(path, "is a folder") from None
    except OSError as error:
        raise BenchmarkError(path, f"cannot be read: {error.strerror}") from None
    if len(body) > MAX_BYTES:
        raise BenchmarkError(path, f"is larger than {MAX_BYTES >> 20} MiB; export it without single requests")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotAResultError(path, "is not a text file in UTF-8") from None
    lines = [(f"line {number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise BenchmarkError(path, "is empty")
    if text.lstrip()[0] not in "{[":
        raise NotAResultError(path, "is no JSON")
    if len(lines) == 1 or not lines[0][1].rstrip().endswith("}"):
        lines = [("", text)]
    values = [(place, _decode(path, place, line)) for place, line in lines]
    if len(values) == 1 and isinstance(runs := values[0][1], list):
        values = [(f"run {number}", run) for number, run in enumerate(runs, start=1)]
    for place, value in values:
        if not isinstance(value, dict):
            raise NotAResultError(path, f"{place} holds no object of keys and values".strip())
    return tuple(ResultPart(source=str(path), place=place, data=value) for place, value in values)


def _decode(path: Path, place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BenchmarkError(path, f"{place} is no valid JSON ({error}): was it cut off?".strip()) from None
    except RecursionError:
        raise BenchmarkError(path, "is nested too deeply for a benchmark's result") from None
