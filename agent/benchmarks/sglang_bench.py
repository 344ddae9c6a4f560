"""Reader of `python -m sglang.bench_serving --output-file` (SGLang 0.3 to 0.5): a line per run.

The script is derived from vLLM's, so a run is translated to vLLM's keys and read as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from agent.benchmarks.vllm_bench import SETUP, VllmRun


class SglangRun(VllmRun):
    """One run. A rate of "trace" repeats the times of a trace, which is no steady rate."""

    tool: ClassVar[str] = "sglang-bench"

    @model_validator(mode="before")
    @classmethod
    def _as_vllm(cls, data: Any) -> Any:
        """Return the data by vLLM's keys. An infinite rate is written `Infinity`."""
        server, errors = data.get("server_info"), data.get("errors")
        server = server if isinstance(server, dict) else {}
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
