"""Reader of a client stage file of inference-perf (`stage_N_lifecycle_metrics.json`, kubernetes-sigs, 0.1 to 0.6).

All times are in seconds. TTFT and TPOT are per request, `inter_token_latency` is per gap, without gaps inside a chunk.
The file has no time of day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from agent.benchmarks.run_model import (
    NOTHING,
    BenchmarkRun,
    Count,
    Distribution,
    Measured,
    Number,
    Tally,
    at,
    unusable,
)


class StageRun(BenchmarkRun):
    """One stage. `concurrency` marks a closed loop; its rate is a placeholder that inference-perf requires."""

    tool: ClassVar[str] = "inference-perf"
    title: ClassVar[str] = "inference-perf"

    completed_rps: Number = at("successes", "throughput", "requests_per_sec", default=...)
    requests: Count = at("successes", "count", default=...)
    failed: Tally = at("failures", "count", default=0)
    clients: Measured = at("load_summary", "concurrency")
    requested_rps: Measured = at("load_summary", "requested_rate")
    sent_rps: Measured = at("load_summary", "achieved_rate")
    latency: Distribution = at("successes", "latency", "request_latency", default=NOTHING)
    ttft: Distribution = at("successes", "latency", "time_to_first_token", default=NOTHING)
    tpot: Distribution = at("successes", "latency", "time_per_output_token", default=NOTHING)
    itl: Distribution = at("successes", "latency", "inter_token_latency", default=NOTHING)
    output_tokens_per_second: Measured = at("successes", "throughput", "output_tokens_per_sec")
    prompt_tokens: Distribution = at("successes", "prompt_tokens", default=NOTHING)
    generation_tokens: Distribution = at("successes", "output_tokens", default=NOTHING)
    counted_prompt: Distribution = at("successes", "prompt_len", default=NOTHING)
    counted_generation: Distribution = at("successes", "output_len", default=NOTHING)
    cached: Measured = at("successes", "prompt_tokens", "cached")
    total: Measured = at("successes", "prompt_tokens", "total")

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        """Refuse a summary, and the server's file (10,938 requests against 5,531 of the client: PEERS 3.2, item 8)."""
        load, successes = data["load_summary"], data["successes"]
        if successes.get("throughput") is None and successes.get("rate") is not None:
            text = "is the server's side of a stage, which contradicts the client's"
            raise unusable(f"{text}: give stage_N_lifecycle_metrics.json")
        if load.get("requested_rate") is None and load.get("concurrency") is None:
            text = "is a summary of all stages, which have no load in common"
            raise unusable(f"{text}: give stage_N_lifecycle_metrics.json")
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

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether `load_summary` and `successes` exist, which no other tool writes."""
        return isinstance(data.get("load_summary"), dict) and isinstance(data.get("successes"), dict)
