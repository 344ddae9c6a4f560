"""Readers of what load generators write: a model of a run for each, whose fields have their places in its file.

- `vllm bench serve` (vllm/benchmarks/serve.py, vLLM 0.6 to 0.32) and SGLang's script derived from it. Keys ending in
  `_ms` are milliseconds; `duration` and the arrays are seconds. `date` is the local time at the end of the run.
- inference-perf (`stage_N_lifecycle_metrics.json`, kubernetes-sigs, 0.1 to 0.6). All times are in seconds. TTFT and TPOT
  are per request, `inter_token_latency` is per gap, without gaps inside a chunk. The file has no time of day.
- GuideLLM's report in JSON: the shape of 0.3 and of `metadata.version` 2 (0.8). Keys ending in `_ms` are milliseconds;
  `request_latency` is in seconds. `inter_token_latency_ms` is (last - first) / (n - 1) of a request, which is TPOT. The
  report has no gap between two tokens. `time_per_output_token_ms` changed its meaning between the versions (PEERS 3.2,
  item 5a). Requests per second are the mean: their percentiles are of single intervals (item 4).
- AIPerf's `profile_export_aiperf.json` (ai-dynamo/aiperf, export schema 1.0 to 1.5). Every metric is an object whose unit
  the schema fixes: times of requests are milliseconds. `inter_token_latency` is TPOT here too, `inter_chunk_latency` is
  per gap (item 5a).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, model_validator

from agent.benchmarks.run_model import (
    NOTHING,
    TRACE,
    BenchmarkRun,
    Count,
    Distribution,
    Measured,
    Numbers,
    Statistics,
    Tally,
    Text,
    file_places,
    look_up,
)
from agent.errors import NotAResultError

SETUP = {
    "engine_version": ("engine_version", "vllm_version", "sglang_version", "version"),
    "tensor_parallel": ("tp", "tp_size", "tensor_parallel"),
    "pipeline_parallel": ("pp", "pp_size", "pipeline_parallel"),
    "data_parallel": ("dp", "dp_size", "data_parallel"),
    "max_num_seqs": ("max_num_seqs", "max_running_requests"),
}
"""Keys of the user's `--metadata`, by field of a curve's `measured`."""

TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "latency": "e2el"}
"""Word in the keys of the file by field of a run."""


class VllmRun(BenchmarkRun):
    """One run. `request_rate: "inf"` with `max_concurrency` is a closed loop, without it a burst.

    A rate with `max_concurrency` is an open loop; if the limit binds, the point is `censored`.
    """

    model_config = file_places(
        # The two arrays are of `--save-detailed`.
        *(*TIMES, "num_prompts", "burst", "setup", "start_times", "latencies"),
        completed_rps="request_throughput",
        requests="completed",
        reported_failed="failed",
        clients="max_concurrency",
        requested_rps="request_rate",
        duration_seconds="duration",
        at_once="mean_concurrency",
        output_tokens_per_second="output_throughput",
        ended_at="date",
        model="model_id",
        input_tokens="total_input_tokens",
        output_tokens="total_output_tokens",
    )
    local_times: ClassVar[bool] = True
    milliseconds: ClassVar[tuple[str, ...]] = tuple(TIMES)

    reported_failed: Count | None = None
    num_prompts: Tally = 0
    input_tokens: Measured = None
    output_tokens: Measured = None
    start_times: Numbers = []
    latencies: Numbers = []

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, data: Any) -> Any:
        """Return the data with the statistics of each time together, the setup, and whether all was sent at once.

        Refuse a warm-up run, which `vllm bench sweep` numbers -1.
        """
        if data.get("run_number") == -1:
            raise ValueError("is a warm-up run (run_number -1)")
        if data.get("ramp_up_strategy"):
            raise ValueError("ramps its rate up; a point of a curve is one steady load")
        times = {}
        for field, word in TIMES.items():
            times[field] = {name: data.get(f"{name}_{word}_ms") for name in ("mean", "median", "p99")}
        values = {**data, **times, "setup": _setup_of(data), "burst": False}
        # vLLM writes the word, a YAML writer the number.
        if data.get("request_rate") in ("inf", math.inf):
            values |= {"request_rate": None, "burst": not data.get("max_concurrency")}
        return values

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.reported_failed is None:
            self.failed = max(self.num_prompts - self.requests, 0)
        else:
            self.failed = self.reported_failed
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


def _setup_of(data: Mapping[str, Any]) -> dict[str, str | int]:
    """Return the setup from `--metadata engine_version=0.32.0 tp=4`. What is no release or number there is left out."""
    setup: dict[str, str | int] = {}
    for field, keys in SETUP.items():
        text = next((str(data[key]).strip() for key in keys if data.get(key)), "")
        if field == "engine_version" and re.fullmatch(r"\S{1,60}", text):
            setup[field] = text
        elif field != "engine_version" and re.fullmatch(r"[1-9][0-9]{0,4}", text):
            setup[field] = int(text)
    return setup


class SglangRun(VllmRun):
    """Run of `python -m sglang.bench_serving --output-file` (SGLang 0.3 to 0.5), by vLLM's keys: the script is derived.

    A rate of "trace" repeats the times of a trace, which is no steady rate.
    """

    @model_validator(mode="before")
    @classmethod
    def _as_vllm(cls, data: Any) -> Any:
        server, errors = data.get("server_info"), data.get("errors")
        if not isinstance(server, dict):
            server = {}
        names = (server.get("served_model_name"), server.get("model_path"))
        values = {
            # Written where the server is SGLang. vLLM's reader takes them from metadata.
            **{key: server[key] for keys in SETUP.values() for key in keys if key in server},
            **{key.replace("e2e_latency", "e2el"): value for key, value in data.items()},
            "model_id": next((name for name in names if isinstance(name, str)), ""),
            "mean_concurrency": data.get("concurrency"),
        }
        if values.get("request_rate") == "trace":
            values["request_rate"] = None
        if "failed" not in values and isinstance(errors, list):
            values["failed"] = sum(bool(error) for error in errors)
        return values


class StageRun(BenchmarkRun):
    """One stage. `concurrency` marks a closed loop; its rate is a placeholder that inference-perf requires."""

    model_config = file_places(
        completed_rps="successes/throughput/requests_per_sec",
        requests="successes/count",
        failed="failures/count",
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
        counted_prompt="successes/prompt_len",
        counted_generation="successes/output_len",
        cached="successes/prompt_tokens/cached",
        total="successes/prompt_tokens/total",
    )

    counted_prompt: Distribution = NOTHING
    counted_generation: Distribution = NOTHING
    cached: Measured = None
    total: Measured = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        """Refuse a summary, and the server's file (10,938 requests against 5,531 of the client: PEERS 3.2, item 8)."""
        is_of_server = look_up(data, "successes/throughput") is None and look_up(data, "successes/rate") is not None
        loads = (look_up(data, "load_summary/requested_rate"), look_up(data, "load_summary/concurrency"))
        if is_of_server or loads == (None, None):
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
        kind="config/strategy/type_ config/strategy/kind args/strategy/type_ args/strategy/kind",
        rate="config/strategy/rate args/strategy/rate",
        streams="config/strategy/streams args/strategy/streams",
        max_concurrency="config/strategy/max_concurrency args/strategy/max_concurrency",
    )
    milliseconds: ClassVar[tuple[str, ...]] = ("ttft", "tpot")

    kind: Text = ""
    rate: Measured = None
    streams: Measured = None
    max_concurrency: Measured = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        kind = self.kind
        closed = {"synchronous": 1.0, "concurrent": self.streams, "throughput": self.max_concurrency}
        if kind in ("constant", "poisson"):
            self.requested_rps = self.rate
            if self.requested_rps is None:
                raise ValueError("has a strategy without its rate")
        elif kind in closed:
            self.clients = closed[kind]
            # Throughput without a limit sends all requests at once.
            self.burst = self.clients is None
        elif kind:
            self.remarks.append(TRACE.format(kind=f"of strategy {kind[:40]}"))
        if not self.burst and not self.remarks:
            self.set_loop()
        if self.duration_seconds is None and self.started_at and self.ended_at:
            self.duration_seconds = max(self.ended_at - self.started_at, 0.0) or None
        return self

    @classmethod
    def read_all(cls, location: str, data: Mapping[str, Any], errors: list[NotAResultError]) -> list[Self]:
        """Return the runs of a report. Beside open loops, a closed one has none.

        GuideLLM's sweep begins with one client and then all requests at once, to find the rates between. One client has
        no queue and is the lowest load. More clients are a burst. Neither makes the curve a closed loop.
        """
        runs, entries = [], data["benchmarks"]
        if not isinstance(entries, list):
            raise NotAResultError(location, "has a wrong value: benchmarks: input should be a list")
        for index, entry in enumerate(entries):
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


class ProfileRun(BenchmarkRun):
    """One run. With a rate, concurrency is only its cap. Without both, the loop is not known.

    The load is in phases, in `loadgen` (0.x), or in a sweep's values.
    """

    model_config = file_places(
        completed_rps="request_throughput/avg",
        requests="request_count/avg request_latency/count",
        failed="error_request_count/avg",
        clients="input_config/phases/profiling/concurrency input_config/loadgen/concurrency "
        "run_info/variation_values/phases.profiling.concurrency",
        requested_rps="input_config/phases/profiling/rate input_config/loadgen/request_rate "
        "run_info/variation_values/phases.profiling.rate run_info/variation_values/phases.profiling.request_rate",
        duration_seconds="benchmark_duration/avg",
        output_tokens_per_second="output_token_throughput/avg",
        started_at="start_time",
        ended_at="end_time",
        prompt_tokens="input_sequence_length",
        generation_tokens="output_sequence_length",
        pattern="input_config/phases/profiling/type",
        errors="error_summary",
        models="input_config/endpoint/model_names input_config/endpoint/model input_config/model_names input_config/model",
        latency="request_latency",
        ttft="time_to_first_token",
        tpot="inter_token_latency",
        itl="inter_chunk_latency",
    )
    milliseconds: ClassVar[tuple[str, ...]] = ("latency", "ttft", "tpot", "itl")

    pattern: str | None = None
    errors: Annotated[list[ErrorKind], BeforeValidator(lambda v: v or [])] = []
    models: Any = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        """Return the data with phases by name."""
        if data.get("was_cancelled"):
            raise ValueError("is of a run that was cancelled")
        phases = look_up(data, "input_config/phases")
        if isinstance(phases, list):
            measured = (p for p in phases if isinstance(p, dict) and "profiling" in (p.get("name"), p.get("kind")))
            by_name = {"profiling": next(measured, {})}
            return {**data, "input_config": {**data["input_config"], "phases": by_name}}
        return data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = self.models if isinstance(self.models, list) else [self.models]
        self.model = names[0] if len(names) == 1 and isinstance(names[0], str) else ""
        # The list has an entry per kind of error, not per request (PEERS 3.2, item 6).
        self.failed = self.failed or sum(kind.count for kind in self.errors)
        if self.pattern in ("fixed_schedule", "user_centric"):
            # No steady rate of single requests.
            self.requested_rps = self.clients = None
            self.remarks.append(TRACE.format(kind=f"of pattern {self.pattern}"))
        else:
            self.set_loop()
        return self
