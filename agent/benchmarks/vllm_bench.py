"""Readers of `vllm bench serve` (vllm/benchmarks/serve.py, vLLM 0.6 to 0.32) and of SGLang's script derived from it.

Keys ending in `_ms` are milliseconds; `duration` and the arrays are seconds. `date` is the local time at the end of the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any, ClassVar, Self

from pydantic import model_validator

from agent.benchmarks.run_model import BenchmarkRun, Count, Measured, Numbers, Statistics, Tally, file_places

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
        completed_rps="request_throughput",
        requests="completed",
        reported_failed="failed",
        clients="max_concurrency",
        requested_rps="request_rate",
        ramp="ramp_up_strategy",
        duration_seconds="duration",
        at_once="mean_concurrency",
        output_tokens_per_second="output_throughput",
        ended_at="date",
        model="model_id",
        input_tokens="total_input_tokens",
        output_tokens="total_output_tokens",
        # The two arrays are of `--save-detailed`.
        **{name: name for name in (*TIMES, "num_prompts", "unlimited", "setup", "start_times", "latencies")},
    )
    tool: ClassVar[str] = "vllm-bench"
    local_times: ClassVar[bool] = True
    milliseconds: ClassVar[tuple[str, ...]] = tuple(TIMES)

    reported_failed: Count | None = None
    num_prompts: Tally = 0
    unlimited: bool = False
    ramp: str | None = None
    input_tokens: Measured = None
    output_tokens: Measured = None
    start_times: Numbers = []
    latencies: Numbers = []

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, data: Any) -> Any:
        """Return the data with the statistics of each time together, the setup, and an unlimited rate told apart.

        Refuse a warm-up run, which `vllm bench sweep` numbers -1.
        """
        if data.get("run_number") == -1:
            raise ValueError("is a warm-up run (run_number -1)")
        times = {}
        for field, word in TIMES.items():
            times[field] = {name: data.get(f"{name}_{word}_ms") for name in ("mean", "median", "p99")}
        # vLLM writes the word, a YAML writer the number.
        unlimited = data.get("request_rate") in ("inf", math.inf)
        rate = None if unlimited else data.get("request_rate")
        return {**data, **times, "setup": setup_of(data), "request_rate": rate, "unlimited": unlimited}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.ramp:
            raise ValueError("ramps its rate up; a point of a curve is one steady load")
        if self.reported_failed is None:
            self.failed = max(self.num_prompts - self.requests, 0)
        else:
            self.failed = self.reported_failed
        self.burst = self.unlimited and not self.clients
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

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the flat keys are vLLM's. SGLang's bench_serving, derived from it, has no model_id."""
        flat = all(key in data for key in ("request_throughput", "completed", "model_id"))
        marked = "backend" in data or "endpoint_type" in data
        return flat and marked and not isinstance(data["request_throughput"], dict)


def setup_of(data: Mapping[str, Any]) -> dict[str, str | int]:
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

    tool: ClassVar[str] = "sglang-bench"

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

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the flat keys are SGLang's: the latency of a request has another key than vLLM's."""
        marks = ("request_throughput", "completed", "mean_e2e_latency_ms")
        return all(key in data for key in marks) and "model_id" not in data
