"""Reader of AIPerf's `profile_export_aiperf.json` (ai-dynamo/aiperf, export schema 1.0 to 1.5).

Every metric is an object whose unit the schema fixes: times of requests are milliseconds. `inter_token_latency` is (last
- first) / (n - 1) of a request, which is TPOT. `inter_chunk_latency` is per gap (PEERS 3.2, item 5a).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, model_validator

from agent.benchmarks.run_model import TRACE, BenchmarkRun, Tally, file_places


class ErrorKind(BaseModel):
    """Entry of `error_summary`: a kind of error with its requests."""

    count: Tally = 0


def _load(new: str, old: str) -> tuple[str, ...]:
    """Return the places of a load: in phases, `loadgen` (0.x), or a sweep's values."""
    return (
        f"input_config/phases/profiling/{new}",
        f"input_config/loadgen/{old}",
        f"run_info/variation_values/phases.profiling.{new}",
        f"run_info/variation_values/phases.profiling.{old}",
    )


class ProfileRun(BenchmarkRun):
    """One run. With a rate, concurrency is only its cap. Without both, the loop is not known."""

    model_config = file_places(
        completed_rps="request_throughput/avg",
        requests=("request_count/avg", "request_latency/count"),
        failed="error_request_count/avg",
        clients=_load("concurrency", "concurrency"),
        requested_rps=_load("rate", "request_rate"),
        duration_seconds="benchmark_duration/avg",
        output_tokens_per_second="output_token_throughput/avg",
        started_at="start_time",
        ended_at="end_time",
        prompt_tokens="input_sequence_length",
        generation_tokens="output_sequence_length",
        pattern="input_config/phases/profiling/type",
        errors="error_summary",
        models=tuple(
            f"input_config/{place}" for place in ("endpoint/model_names", "endpoint/model", "model_names", "model")
        ),
        latency="request_latency",
        ttft="time_to_first_token",
        tpot="inter_token_latency",
        itl="inter_chunk_latency",
    )
    tool: ClassVar[str] = "aiperf"
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
        config = data.get("input_config")
        phases = config.get("phases") if isinstance(config, dict) else None
        if isinstance(phases, list):
            measured = [p for p in phases if isinstance(p, dict) and "profiling" in (p.get("name"), p.get("kind"))]
            phases = {"profiling": measured[0]} if measured else {}
            return {**data, "input_config": {**config, "phases": phases}}
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

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the metrics are objects with a unit."""
        blocks = (data.get("request_throughput"), data.get("request_latency"))
        return any(isinstance(block, dict) and "unit" in block for block in blocks)
