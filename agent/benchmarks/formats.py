"""Formats of benchmark result files, detected by content: a JSON object, a list of them, one a line, or a table.

A new tool is a model of its run, whose fields have their places in its file, and a row of FORMATS. docs/plan-import.md
has the releases, files and units.

- vLLM and SGLang's script derived from it: `date` is the local time at the end of the run.
- inference-perf: `inter_token_latency` is per gap.
- GuideLLM, of 0.3 and of `metadata.version` 2: `inter_token_latency_ms` is TPOT, `time_per_output_token_ms` changed its
  meaning (PEERS 3.2, item 5a). Percentiles of requests per second are of single intervals (item 4): the mean is read.
- AIPerf and GenAI-Perf: `inter_token_latency` is TPOT, `inter_chunk_latency` is per gap (item 5a).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, model_validator

from agent.benchmarks.aiconfigurator import PredictedRun, decode_table
from agent.benchmarks.run_model import (
    CONTRADICTION,
    NOTHING,
    BenchmarkRun,
    Count,
    Distribution,
    Measured,
    Numbers,
    Statistics,
    Tally,
    Text,
    at_places,
    file_places,
    look_up,
    set_point,
)
from agent.errors import BenchmarkError, NotAResultError
from rules.problems import cap_problems

SETUP = {
    "engine_version": ("engine_version", "vllm_version", "sglang_version", "version"),
    "tensor_parallel": ("tp", "tp_size", "tensor_parallel", "tensor_parallel_size"),
    "pipeline_parallel": ("pp", "pp_size", "pipeline_parallel", "pipeline_parallel_size"),
    "data_parallel": ("dp", "dp_size", "data_parallel", "data_parallel_size"),
    "max_num_seqs": ("max_num_seqs", "max_running_requests"),
}
"""Keys of `--metadata` and of a sweep, by field of a curve's `measured`. What is no release or number is left out."""

TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "latency": "e2el"}
"""Word in the keys of the file by field of a run."""
STATISTICS = ("mean", "median", "p90", "p95", "p99")


class VllmRun(BenchmarkRun):
    """One run. `request_rate: "inf"` with `max_concurrency` is a closed loop, without it a burst.

    A rate with `max_concurrency` is an open loop; if the limit binds, the point is `censored`. "trace" is no steady rate.
    """

    model_config = file_places(
        *(*TIMES, "burst", "setup", "at_once"),
        completed_rps="request_throughput",
        requests="completed",
        clients="max_concurrency",
        requested_rps="request_rate",
        duration_seconds="duration",
        output_tokens_per_second="output_throughput",
        ended_at="date",
        model="model_id served_model_name model_path",
    )
    milliseconds: ClassVar[tuple[str, ...]] = tuple(TIMES)

    reported_failed: Count | None = at_places("failed")
    # -1 is all of a data set.
    num_prompts: Annotated[Tally, BeforeValidator(lambda v: 0 if v == -1 else v)] = at_places("num_prompts", 0)
    input_tokens: Measured = at_places("total_input_tokens")
    output_tokens: Measured = at_places("total_output_tokens")
    start_times: Numbers = at_places("start_times", [])
    latencies: Numbers = at_places("latencies", [])

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, data: Any) -> Any:
        if data.get("ramp_up_strategy"):
            raise ValueError("ramps its rate up; a point of a curve is one steady load")
        run = {key.replace("e2e_latency", "e2el"): value for key, value in data.items()}
        if isinstance(server := data.get("server_info"), dict):
            run = server | run
        errors, rate = run.get("errors"), run.get("request_rate")
        if "failed" not in run and isinstance(errors, list):
            run["failed"] = sum(map(bool, errors))
        for field, word in TIMES.items():
            run[field] = {name: run.get(f"{name}_{word}_ms") for name in STATISTICS}
        setup: dict[str, Any] = {}
        for field, keys in SETUP.items():
            text = next((str(run[key]).strip() for key in keys if run.get(key)), "")
            if field == "engine_version" and re.fullmatch(r"\S{1,60}", text):
                setup[field] = text
            elif field != "engine_version" and re.fullmatch(r"[1-9][0-9]{0,4}", text):
                setup[field] = int(text)
        run |= {"setup": setup, "burst": False, "at_once": None}
        if "mean_e2e_latency_ms" in data:
            run["at_once"] = data.get("concurrency")
        # vLLM writes the word, a YAML writer the number.
        if rate in ("inf", math.inf):
            run["burst"] = not run.get("max_concurrency")
        if rate in ("inf", math.inf, "trace"):
            run["request_rate"] = None
        return run

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.failed = self.reported_failed or 0
        if self.reported_failed is None:
            self.failed = max(self.num_prompts - self.requests, 0)
        # A data set may hold fewer.
        self.request_total = min(self.num_prompts, self.sent)
        if not self.burst:
            self.set_loop()
        if self.ended_at:
            begin = self.ended_at - (self.duration_seconds or self.ended_at)
            self.started_at = begin if begin > 0 else None
        span = max(self.start_times) - min(self.start_times) if self.start_times else 0.0
        self.sent_rps = len(self.start_times) / span if span > 0 else None
        answered = sorted(value for value in self.latencies if value > 0)
        if answered:
            # The array of 0.32 and newer, where the file has no statistics of it.
            self.latency = Statistics(
                mean=self.latency.mean or fmean(answered),
                p99=self.latency.p99 or answered[math.ceil(0.99 * len(answered)) - 1],
                max=answered[-1],
            )
        if self.requests:
            self.prompt_tokens = Statistics(mean=(self.input_tokens or 0.0) / self.requests)
            self.generation_tokens = Statistics(mean=(self.output_tokens or 0.0) / self.requests)
        return self


class StageRun(BenchmarkRun):
    """One stage. `concurrency` marks a closed loop; its rate is a placeholder that inference-perf requires."""

    model_config = file_places(
        completed_rps="successes/throughput/requests_per_sec",
        requests="successes/count",
        failed="failures/count",
        request_total="load_summary/count",
        clients="load_summary/concurrency",
        requested_rps="load_summary/requested_rate",
        sent_rps="load_summary/achieved_rate",
        latency="successes/latency/request_latency",
        ttft="successes/latency/time_to_first_token",
        tpot="successes/latency/time_per_output_token",
        itl="successes/latency/inter_token_latency",
        output_tokens_per_second="successes/throughput/output_tokens_per_sec",
        prompt_tokens="successes/prompt_tokens",
        generation_tokens="successes/output_tokens",
    )

    counted_prompt: Distribution = at_places("successes/prompt_len", NOTHING)
    counted_generation: Distribution = at_places("successes/output_len", NOTHING)
    cached: Measured = at_places("successes/prompt_tokens/cached")
    total: Measured = at_places("successes/prompt_tokens/total")

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        """Refuse a summary, and the server's file (10,938 requests against 5,531 of the client: PEERS 3.2, item 8)."""
        if not (look_up(data, "load_summary/requested_rate") or look_up(data, "load_summary/concurrency")):
            raise ValueError("is the server's side or a summary of stages: give stage_N_lifecycle_metrics.json")
        return data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.clients:
            self.requested_rps = self.sent_rps = None
        self.set_loop()
        # The server's usage (newer files) before the client's tokenizer. No hits may mean that none were reported.
        self.prompt_tokens = self.prompt_tokens if self.prompt_tokens.mean else self.counted_prompt
        self.generation_tokens = self.generation_tokens if self.generation_tokens.mean else self.counted_generation
        self.prefix_hit_ratio = self.cached / self.total if self.cached and self.total else None
        return self


class EntryRun(BenchmarkRun):
    """One entry of `benchmarks`. Requests in flight at the end are `incomplete`; `set_point` refuses too many."""

    model_config = file_places(
        completed_rps="metrics/requests_per_second/successful/mean",
        requests="metrics/request_totals/successful request_totals/successful",
        failed="metrics/request_totals/errored request_totals/errored",
        cut_off="metrics/request_totals/incomplete request_totals/incomplete",
        request_total="metrics/request_totals/total request_totals/total",
        duration_seconds="duration",
        latency="metrics/request_latency/successful",
        ttft="metrics/time_to_first_token_ms/successful",
        tpot="metrics/inter_token_latency_ms/successful",
        output_tokens_per_second="metrics/output_tokens_per_second/successful/mean",
        started_at="start_time",
        ended_at="end_time",
        model="config/backend/model worker/backend_model",
        prompt_tokens="metrics/prompt_token_count/successful",
        generation_tokens="metrics/output_token_count/successful",
    )
    milliseconds: ClassVar[tuple[str, ...]] = ("ttft", "tpot")

    kind: Text = at_places("config/strategy/type_ config/strategy/kind args/strategy/type_ args/strategy/kind", "")
    rate: Measured = at_places("config/strategy/rate args/strategy/rate")
    streams: Measured = at_places("config/strategy/streams args/strategy/streams")
    max_concurrency: Measured = at_places("config/strategy/max_concurrency args/strategy/max_concurrency")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        closed = {"synchronous": 1.0, "concurrent": self.streams, "throughput": self.max_concurrency}
        if self.kind in ("constant", "poisson"):
            self.requested_rps = self.rate
        elif self.kind in closed:
            self.clients = closed[self.kind]
            # Throughput without a limit sends all requests at once.
            self.burst = self.clients is None
        elif self.kind:
            self.remarks.append(f"arrivals were of strategy {self.kind[:40]}, not a steady rate")
        if not self.burst and not self.remarks:
            self.set_loop()
        return self

    @classmethod
    def read_all(cls, location: str, data: Mapping[str, Any], errors: list[BenchmarkError]) -> list[Self]:
        """Return the runs of a report. A sweep begins with one client, its lowest load, and then a burst of all requests.

        Beside open loops, neither makes the curve a closed loop.
        """
        runs = []
        for index, entry in enumerate(data["benchmarks"]):
            runs += super().read_all(f"{location}: benchmarks[{index}]", entry, errors)
        if any(run.loop == "open" for run in runs):
            for run in runs:
                if run.loop == "closed" and run.clients == 1:
                    run.remarks.append("one client at a time, the lowest load of a sweep whose others are open loops")
                if run.loop == "closed":
                    run.loop, run.burst = None, run.clients != 1
        return runs


class ErrorKind(BaseModel):
    """Entry of `error_summary`: a kind of error with its requests."""

    count: Tally = 0


UNITS = {
    **dict.fromkeys(("request_latency", "time_to_first_token", "inter_token_latency", "inter_chunk_latency"), "ms"),
    "request_throughput": "requests/sec",
    "output_token_throughput": "tokens/sec",
    "benchmark_duration": "sec",
}


class ProfileRun(BenchmarkRun):
    """One run. Its load is in phases, in `loadgen` (0.x) or a sweep's values. With a rate, concurrency is only its cap."""

    model_config = file_places(
        completed_rps="request_throughput/avg",
        requests="request_count/avg request_latency/count",
        failed="error_request_count/avg",
        clients="input_config/phases/profiling/concurrency input_config/loadgen/concurrency "
        "run_info/variation_values/phases.profiling.concurrency "
        "input_config/perf_analyzer/stimulus/concurrency input_config/concurrency",
        requested_rps="input_config/phases/profiling/rate input_config/loadgen/request_rate "
        "run_info/variation_values/phases.profiling.rate run_info/variation_values/phases.profiling.request_rate "
        "input_config/perf_analyzer/stimulus/request_rate input_config/request_rate",
        duration_seconds="benchmark_duration/avg",
        output_tokens_per_second="output_token_throughput/avg",
        started_at="start_time",
        ended_at="end_time",
        model="input_config/endpoint/model_names/0 input_config/endpoint/model input_config/model_names/0 "
        "input_config/model/0 input_config/model",
        prompt_tokens="input_sequence_length",
        generation_tokens="output_sequence_length",
        latency="request_latency",
        ttft="time_to_first_token",
        tpot="inter_token_latency",
        itl="inter_chunk_latency",
    )
    milliseconds: ClassVar[tuple[str, ...]] = ("latency", "ttft", "tpot", "itl")

    pattern: str | None = at_places("input_config/phases/profiling/type")
    errors: Annotated[list[ErrorKind], BeforeValidator(lambda v: v or [])] = at_places("error_summary", [])

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        if data.get("was_cancelled"):
            raise ValueError("is of a run that was cancelled")
        if look_up(data, "input_config/endpoint/model_names/1"):
            raise ValueError("is of several models")
        if isinstance(data.get("records"), dict):
            data = {**data, **data["records"]}
        for metric, usual in UNITS.items():
            if (unit := look_up(data, f"{metric}/unit")) not in (None, usual, usual.replace("sec", "s")):
                raise ValueError(f"has {metric} in the unit {str(unit)[:20]!r}, not {usual}")
        phases = look_up(data, "input_config/phases")
        if isinstance(phases, list):
            measured = (p for p in phases if isinstance(p, dict) and "profiling" in (p.get("name"), p.get("kind")))
            by_name = {"profiling": next(measured, {})}
            return {**data, "input_config": {**data["input_config"], "phases": by_name}}
        return data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        # The list has an entry per kind of error, not per request (PEERS 3.2, item 6).
        self.failed = self.failed or sum(kind.count for kind in self.errors)
        if self.pattern in ("fixed_schedule", "user_centric"):
            # No steady rate of single requests.
            self.requested_rps = self.clients = None
            self.remarks.append(f"arrivals were of pattern {self.pattern}, not a steady rate")
        else:
            self.set_loop()
        return self


FORMATS: tuple[tuple[str, type[BenchmarkRun], str], ...] = (
    ("vllm-bench", VllmRun, "request_throughput completed model_id"),
    ("sglang-bench", VllmRun, "request_throughput completed mean_e2e_latency_ms"),
    ("inference-perf", StageRun, "load_summary successes"),
    ("guidellm", EntryRun, "metadata/guidellm_version benchmarks/0"),
    ("guidellm", EntryRun, "benchmarks/0/metrics/requests_per_second"),
    ("aiperf", ProfileRun, "request_throughput/avg"),
    ("aiperf", ProfileRun, "records/request_throughput/avg"),
    ("aiconfigurator", PredictedRun, "isl osl ttft tpot concurrency"),
)
"""Places that only the files of a tool have, all of a row. The first row that fits counts."""

NAMES = tuple(dict.fromkeys(name for name, _, _ in FORMATS))

NAMED_BY = ("run_number", "tag", "label", "phase", "stage", "name", "run_name", "_benchmark_name", "file name")
WARM_UP = re.compile(r"-\d+$|warm[-_ ]?up(?![a-z])", re.IGNORECASE)
"""Begin of the name of a warm-up run, or its number: `vllm bench sweep` gives it -1."""

MOST_CHARACTERS = 256 << 20
"""Far above a report with every request of a long run: a file named by mistake must not fill the memory."""


def read_all_results(paths: Sequence[Path]) -> tuple[list[BenchmarkRun], list[BenchmarkError]]:
    """Return all runs of the files, and an error for each file or run without a place in a curve.

    Raise one BenchmarkError with every unreadable file, or, if there is no run, with all contradictions, else all errors.
    """
    runs: list[BenchmarkRun] = []
    errors: list[BenchmarkError] = []
    for path in paths:
        try:
            documents = decode_file(path)
        except BenchmarkError as error:
            errors.append(error)
            continue
        foreign: list[str] = []
        for location, data in documents:
            model = find_model(data)
            named = {"file name": path.name, **data}
            mark = next((key for key in NAMED_BY if WARM_UP.match(str(named.get(key)))), None)
            if model is None:
                foreign.append(location)
            elif mark is not None:
                errors.append(NotAResultError(location, f"is a warm-up run (by its {mark})"))
            else:
                for run in model.read_all(location, data, errors):
                    run.source = str(path)
                    try:
                        set_point(run)
                        runs.append(run)
                    except NotAResultError as error:
                        errors.append(error)
        if foreign:
            nor_others = f", nor are {len(foreign) - 1} others of this file" if foreign[1:] else ""
            text = f"is no benchmark result that sizewatch reads ({', '.join(NAMES)}){nor_others}"
            errors.append(NotAResultError(foreign[0], text))
    fatal = [error for error in errors if not isinstance(error, NotAResultError)]
    if not runs and not fatal:
        fatal = [error for error in errors if CONTRADICTION in error.text] or errors
        fatal = fatal or [BenchmarkError(paths[0], "holds no benchmark")]
    if fatal:
        first, *more = fatal
        raise type(first)(first.path, "; ".join(cap_problems([first.text, *map(str, more)])))
    return runs, errors


def find_model(data: Mapping[str, Any]) -> type[BenchmarkRun] | None:
    """Return the model of the tool that wrote a document, None where it is no tool's."""
    for _, model, places in FORMATS:
        if all(look_up(data, place, ...) is not ... for place in places.split()):
            return model
    return None


def decode_file(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of a file with their locations: one, or several one after the other, in a list or in rows.

    Raise BenchmarkError if the file is unreadable or truncated, and NotAResultError if it holds no objects.
    """
    if os.path.isdir(path):
        raise NotAResultError(path, "is a folder")
    try:
        # A pipe that nobody writes to is empty, in place of a wait without end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8-sig") as file:
            os.set_blocking(file.fileno(), True)
            text = file.read(MOST_CHARACTERS)
    except OSError as error:
        raise BenchmarkError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotAResultError(path, "is no text in UTF-8") from None
    if not text.strip():
        raise BenchmarkError(path, "is empty")
    table = decode_table(path, text)
    if table is not None:
        return table
    if not text.lstrip().startswith(("{", "[")):
        raise NotAResultError(path, "is no JSON")
    values: list[tuple[str, Any]] = []
    line, end = 1, 0
    while begin := re.compile(r"\S").search(text, end):
        line += text.count("\n", end, begin.start())
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin.start())
        except (ValueError, RecursionError) as error:
            raise BenchmarkError(path, f"is no valid JSON ({error}): was it cut off?") from None
        values.append((f"{path}: line {line}", value))
        line += text.count("\n", begin.start(), end)
    if len(values) == 1:
        values = [(str(path), values[0][1])]
        if isinstance(runs := values[0][1], list):
            values = [(f"{path}: run {number}", run) for number, run in enumerate(runs, 1)]
    for location, value in values:
        if not isinstance(value, dict):
            raise NotAResultError(location, "holds no object of keys and values")
    return values
