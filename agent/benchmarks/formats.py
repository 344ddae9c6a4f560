"""Formats of benchmark result files, detected by content: a JSON object, a list of them, one a line, or a table.

A new tool is a model of its run and a row of FORMATS.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.benchmarks.aiconfigurator import PredictedRun, decode_table
from agent.benchmarks.load_generators import EntryRun, ProfileRun, SglangRun, StageRun, VllmRun
from agent.benchmarks.run_model import CONTRADICTION, BenchmarkRun, look_up, set_point
from agent.errors import BenchmarkError, NotAResultError
from rules.problems import cap_problems

FORMATS: tuple[tuple[str, type[BenchmarkRun], str], ...] = (
    ("vllm-bench", VllmRun, "request_throughput completed model_id backend"),
    ("vllm-bench", VllmRun, "request_throughput completed model_id endpoint_type"),
    ("sglang-bench", SglangRun, "request_throughput completed mean_e2e_latency_ms"),
    ("inference-perf", StageRun, "load_summary successes"),
    ("guidellm", EntryRun, "metadata/guidellm_version benchmarks"),
    ("guidellm", EntryRun, "benchmarks/0/metrics/requests_per_second"),
    ("aiperf", ProfileRun, "request_throughput/unit"),
    ("aiperf", ProfileRun, "request_latency/unit"),
    ("aiconfigurator", PredictedRun, "isl osl ttft tpot concurrency"),
    ("aiconfigurator", PredictedRun, "prefill_isl"),
    ("aiconfigurator", PredictedRun, "z_itl"),
)
"""Places that only the files of a tool have, all of a row. The first row that fits counts."""

NAMES = tuple(dict.fromkeys(name for name, _, _ in FORMATS))


def read_all_results(paths: Sequence[Path]) -> tuple[list[BenchmarkRun], list[NotAResultError]]:
    """Return all runs of the files, and an error for each file or run without a place in a curve.

    Raise one BenchmarkError with every unreadable file and its reason, or, if there is no run, with all contradictions
    or else with every error.
    """
    runs: list[BenchmarkRun] = []
    errors: list[NotAResultError] = []
    unreadable: list[BenchmarkError] = []
    for path in paths:
        try:
            for location, data in decode_file(path):
                for run in _find_model(location, data).read_all(location, data, errors):
                    run.source = str(path)
                    try:
                        set_point(run)
                        runs.append(run)
                    except NotAResultError as error:
                        errors.append(error)
        except NotAResultError as error:
            errors.append(error)
        except BenchmarkError as error:
            unreadable.append(error)
    if unreadable:
        raise _join(unreadable)
    if not runs and not errors:
        raise BenchmarkError(paths[0], "holds no benchmark")
    if not runs:
        raise _join([error for error in errors if CONTRADICTION in error.text] or errors)
    return runs, errors


def _find_model(location: str, data: Mapping[str, Any]) -> type[BenchmarkRun]:
    """Return the model of the tool that wrote a document. Raise NotAResultError where it is no tool's."""
    for _, model, places in FORMATS:
        if all(look_up(data, place, ...) is not ... for place in places.split()):
            return model
    raise NotAResultError(location, f"is no benchmark result that sizewatch reads ({', '.join(NAMES)})")


def _join(errors: Sequence[BenchmarkError]) -> BenchmarkError:
    """Return one error, of the class of the first, that names all places."""
    first, *more = errors
    return type(first)(first.path, "; ".join(cap_problems([first.text, *map(str, more)])))


def decode_file(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of a file with their locations: one, or one for each line, list entry or row.

    Lines are runs of `vllm bench serve --append-result` and SGLang, a list is summary.json of `vllm bench sweep`. Raise
    BenchmarkError if the file is unreadable or truncated, and NotAResultError if it holds no objects.
    """
    if os.path.isdir(path):
        raise NotAResultError(path, "is a folder")
    try:
        # A pipe that nobody writes to is empty, in place of a wait without end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8-sig", errors="replace") as file:
            os.set_blocking(file.fileno(), True)
            text = file.read()
    except OSError as error:
        raise BenchmarkError(path, f"cannot be read: {error.strerror}") from None
    if not text.strip():
        raise BenchmarkError(path, "is empty")
    table = decode_table(path, text)
    if table is not None:
        return table
    if text.startswith("PK"):
        raise NotAResultError(path, "is an archive, such as raw_data.npz of Dynamo's profiler: not imported")
    if not text.lstrip().startswith(("{", "[")):
        raise NotAResultError(path, "is no JSON")
    lines = [(f"{path}: line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) == 1 or not lines[0][1].rstrip().endswith("}"):
        lines = [(str(path), text)]
    values: list[tuple[str, Any]] = []
    for location, line in lines:
        try:
            values.append((location, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise BenchmarkError(location, f"is no valid JSON ({error}): was it cut off?") from None
    if len(values) == 1 and isinstance(runs := values[0][1], list):
        values = [(f"{path}: run {number}", run) for number, run in enumerate(runs, 1)]
    for location, value in values:
        if not isinstance(value, dict):
            raise NotAResultError(location, "holds no object of keys and values")
    return values
