"""Reader of a client stage file of inference-perf (`stage_N_lifecycle_metrics.json`, kubernetes-sigs, 0.1 to 0.6).

All times are in seconds. TTFT and TPOT are per request, `inter_token_latency` is per gap, without gaps inside a chunk.
The file has no time of day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from agent.benchmarks.run_model import NOTHING, BenchmarkRun, Distribution, Measured, file_places


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
    tool: ClassVar[str] = "inference-perf"

    counted_prompt: Distribution = NOTHING
    counted_generation: Distribution = NOTHING
    cached: Measured = None
    total: Measured = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        """Refuse a summary, and the server's file (10,938 requests against 5,531 of the client: PEERS 3.2, item 8)."""
        load, successes = data["load_summary"], data["successes"]
        of_server = successes.get("throughput") is None and successes.get("rate") is not None
        if of_server or (load.get("requested_rate") is None and load.get("concurrency") is None):
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

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether `load_summary` and `successes` exist, which no other tool writes."""
        return isinstance(data.get("load_summary"), dict) and isinstance(data.get("successes"), dict)
