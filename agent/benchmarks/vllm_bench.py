"""Reader of `vllm bench serve --save-result` and `--append-result` (vllm/benchmarks/serve.py, vLLM 0.6 to 0.32).

Keys ending in `_ms` are milliseconds; `duration` and the arrays are seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import fmean
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from agent.benchmarks.run_model import (
    LOCAL_CLOCK,
    BenchmarkRun,
    Count,
    Measured,
    Moment,
    Number,
    Numbers,
    Setup,
    Statistics,
    Tally,
    Text,
    file_places,
    percentile,
    unusable,
)
from rules.sizing import acceptance_from_mean_accepted

WHOLE_DRAFT = 0.01
"""Relative distance from a whole number within which all drafts had that mean length."""

WARM_UP = re.compile(r"warm[-_ ]?up(?![a-z])", re.IGNORECASE)

LONGEST_DRAFT = 128
"""Longest plausible draft in tokens."""

SETUP = {
    "gpu": ("gpu", "gpu_type", "gpu_product", "gpu_name", "accelerator", "hw"),
    "engine": ("engine", "framework", "backend"),
    "engine_version": ("engine_version", "vllm_version", "sglang_version", "version"),
    "tensor_parallel": ("tp", "tp_size", "tensor_parallel_size", "tensor_parallel"),
    "pipeline_parallel": ("pp", "pp_size", "pipeline_parallel_size", "pipeline_parallel"),
    "data_parallel": ("dp", "dp_size", "data_parallel_size", "data_parallel"),
    "max_num_seqs": ("max_num_seqs", "max_running_requests", "max_batch_size"),
}
"""Keys of the user's `--metadata`, by field of `Setup`."""

ENGINES = {
    "sglang": "sglang",
    "tgi": "tgi",
    **dict.fromkeys(("tensorrt-llm", "trtllm", "trt"), "trtllm"),
    "llama.cpp": "llamacpp",
}
"""Engine names as used by people and backends. The backends vllm and openai are a protocol and identify none."""

TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "latency": "e2el"}
"""Word in the keys of the file by field of a run."""

ARRAYS = ("input_lens", "output_lens", "ttfts", "start_times", "latencies")


def _date(value: Any) -> Any:
    """Return unix seconds of the local time at the end of the run. It has no zone and is read as UTC."""
    if not isinstance(value, str):
        return value
    return datetime.strptime(value, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp() if value else None


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
        acceptance_length="spec_decode_acceptance_length",
        acceptance_percent="spec_decode_acceptance_rate",
        **{name: name for name in (*TIMES, "num_prompts", "unlimited", "setup", "errors", *ARRAYS)},
    )
    tool: ClassVar[str] = "vllm-bench"
    milliseconds: ClassVar[tuple[str, ...]] = tuple(TIMES)

    reported_failed: Count | None = None
    num_prompts: Tally = 0
    unlimited: bool = False
    ramp: Text = ""
    ended_at: Annotated[Moment, BeforeValidator(_date)] = None
    input_tokens: Measured = None
    output_tokens: Measured = None
    input_lens: Numbers = []
    output_lens: Numbers = []
    ttfts: Numbers = []
    start_times: Numbers = []
    latencies: Numbers = []
    errors: Any = None
    acceptance_length: Measured = None
    acceptance_percent: Annotated[Number, Field(le=100)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, data: Any) -> Any:
        """Return the data with the statistics of each time together, the setup, and an unlimited rate told apart.

        Refuse a warm-up run. `vllm bench sweep` numbers it -1; users name it by tag or label.
        """
        number, names = data.get("run_number"), [data.get(key) for key in ("tag", "label", "phase")]
        if isinstance(number, int) and number < 0:
            raise unusable(f"is a warm-up run (run_number {number})")
        if named := next((name for name in names if isinstance(name, str) and WARM_UP.match(name)), ""):
            raise unusable(f"is a warm-up run ({named[:40]})")
        times = {
            field: {name: data.get(f"{name}_{word}_ms") for name in ("mean", "median", "p99")}
            for field, word in TIMES.items()
        }
        # vLLM writes the word, a YAML writer the number.
        unlimited = data.get("request_rate") in ("inf", math.inf)
        rate = None if unlimited else data.get("request_rate")
        return {**data, **times, "setup": setup_of(data), "request_rate": rate, "unlimited": unlimited}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.ramp:
            raise unusable("ramps its rate up; a point of a curve is one steady load")
        self.failed = max(self.num_prompts - self.requests, 0)
        if self.reported_failed is not None:
            self.failed = self.reported_failed
        self.burst = self.unlimited and not self.clients
        if not self.burst:
            self.set_loop()
        if self.ended_at:
            begin = self.ended_at - (self.duration_seconds or self.ended_at)
            self.started_at = begin if begin > 0 else None
            self.remarks.append(LOCAL_CLOCK)
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
        self._leave_out_start()
        self.prompt_tokens = self._lengths(self.input_tokens, self.input_lens)
        self.generation_tokens = self._lengths(self.output_tokens, self.output_lens)
        self.speculative_acceptance = self._acceptance()
        return self

    def _succeeded(self, values: list[float]) -> list[float]:
        """Return the values of the requests with an empty error text."""
        if not isinstance(self.errors, list) or len(self.errors) != len(values):
            return values
        return [value for value, error in zip(values, self.errors, strict=True) if not error]

    def _leave_out_start(self) -> None:
        """Take the TTFT without the start burst of a closed loop.

        The first `clients` requests are sent at once. Their TTFT includes a queue that no steady load has (PEERS 3.2,
        item 11). Only `--save-detailed` lists single requests. At least as many must remain as are removed.
        """
        if self.loop != "closed" or (self.clients or 0) <= 1 or len(self.start_times) != len(self.ttfts):
            return
        clients = math.ceil(self.clients or 0)
        first = set(sorted(range(len(self.ttfts)), key=lambda place: self.start_times[place])[:clients])
        kept = [0.0 if place in first else ttft for place, ttft in enumerate(self.ttfts)]
        steady = [ttft for ttft in self._succeeded(kept) if ttft > 0]
        if len(steady) >= clients:
            self.ttft = Statistics(mean=self.ttft.mean, p50=percentile(steady, 0.5), p99=percentile(steady, 0.99))
            self.ttft_requests = len(steady)

    def _lengths(self, tokens: float | None, each: list[float]) -> Statistics:
        """Return tokens per request: the mean from the total, percentiles if `--save-detailed` wrote each request."""
        values = self._succeeded(each)
        p50, p95, p99 = (percentile(values, share) for share in (0.5, 0.95, 0.99))
        return Statistics(mean=tokens / self.requests if tokens and self.requests else None, p50=p50, p95=p95, p99=p99)

    def _acceptance(self) -> float | None:
        """Return the acceptance per drafted token, None where it does not follow.

        `spec_decode_acceptance_rate` is accepted / drafted in percent: after the first rejected token the rest of a
        draft is discarded (DESIGN 3.7). `spec_decode_acceptance_length` is 1 + accepted / drafts, so the drafts had
        (length - 1) / rate tokens. Both give the acceptance per token if all drafts had the same length, which n-gram
        drafts do not.
        """
        if not self.acceptance_length or self.acceptance_percent is None:
            return None
        accepted = max(self.acceptance_length - 1, 0.0)
        if not accepted or not self.acceptance_percent:
            return None if accepted else 0.0
        drafts = min(accepted / (self.acceptance_percent / 100), 2.0 * LONGEST_DRAFT)
        whole = round(drafts)
        if not 1 <= whole <= LONGEST_DRAFT or abs(drafts - whole) > WHOLE_DRAFT * whole:
            return None
        return acceptance_from_mean_accepted(min(accepted, whole), whole)

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the flat keys are vLLM's. SGLang's bench_serving, derived from it, has no model_id."""
        flat = all(key in data for key in ("request_throughput", "completed", "model_id"))
        return (
            flat and ("backend" in data or "endpoint_type" in data) and not isinstance(data["request_throughput"], dict)
        )


def setup_of(data: Mapping[str, Any]) -> Setup:
    """Return the setup from `--metadata gpu=h100 tp=4`, or from a backend specific to one engine."""
    told = {field: next((str(data[key]).strip() for key in keys if data.get(key)), "") for field, keys in SETUP.items()}
    gpu, engine, version = told.pop("gpu"), told.pop("engine"), told.pop("engine_version")
    known: dict[str, Any] = {
        field: int(text) for field, text in told.items() if re.fullmatch(r"[0-9]{1,5}", text) and int(text)
    }
    if re.fullmatch(r"\S{1,60}", version):
        known["engine_version"] = version
    return Setup(engine=ENGINES.get(engine.casefold(), ""), gpu=gpu, **known)
