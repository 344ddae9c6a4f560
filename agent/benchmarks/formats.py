"""Formats of benchmark result files, detected by content: a JSON object, a list of them, one a line, or a table.

A new tool is a module with a model of its run, which recognises its files, and a row of FORMATS.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.benchmarks.aiconfigurator import PredictedRun, decode_table, is_table
from agent.benchmarks.aiperf import ProfileRun
from agent.benchmarks.guidellm import EntryRun
from agent.benchmarks.inference_perf import StageRun
from agent.benchmarks.run_model import CONTRADICTION, BenchmarkRun, set_point
from agent.benchmarks.vllm_bench import SglangRun, VllmRun
from agent.errors import BenchmarkError, NotAResultError
from rules.problems import cap_problems

FORMATS: tuple[type[BenchmarkRun], ...] = (VllmRun, SglangRun, StageRun, EntryRun, ProfileRun, PredictedRun)

NAMES = tuple(model.tool for model in FORMATS)


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
                model = next((model for model in FORMATS if model.recognises(data)), None)
                if model is None:
                    raise NotAResultError(location, f"is no benchmark result that sizewatch reads ({', '.join(NAMES)})")
                for run in model.read_all(location, data, errors):
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
        text = path.read_text("utf-8-sig", errors="replace")
    except OSError as error:
        raise BenchmarkError(path, f"cannot be read: {error.strerror}") from None
    if not text.strip():
        raise BenchmarkError(path, "is empty")
    if is_table(text):
        return decode_table(path, text)
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
