"""Reader of `python -m sglang.bench_serving --output-file` (SGLang 0.3 to 0.5): a line per run.

The script is derived from vLLM's, so a run is translated to vLLM's keys and read as such. `server_info` is there where
the server is SGLang. Rules for all tools are in `agent.benchmarks.points`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.benchmarks import vllm_bench
from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.typed_fields import ResultFields

NAME = "sglang-bench"

MARKS = ("request_throughput", "completed", "mean_e2e_latency_ms")

SERVER = ("version", "tp_size", "pp_size", "dp_size", "max_running_requests")
"""Keys of `server_info` that vLLM's reader takes from metadata."""


def recognises(part: ResultFields) -> bool:
    """Return whether the flat keys are SGLang's: the latency of a request has another key than vLLM's."""
    return all(key in part.data for key in MARKS) and "model_id" not in part.data


def read(part: ResultFields) -> tuple[BenchmarkMeasurement, ...]:
    """Return the load of one run. Raise BenchmarkError for a failed run or impossible values.

    A rate of "trace" repeats the times of a trace, which is no steady rate. An infinite rate is written `Infinity`.
    """
    server: Any = part.get("server_info")
    server = server if isinstance(server, dict) else {}
    names = (server.get("served_model_name"), server.get("model_path"))
    values = {
        **{key: server[key] for key in SERVER if key in server},
        "model_id": next((name for name in names if isinstance(name, str)), ""),
        **{key.replace("e2e_latency", "e2el"): value for key, value in part.data.items()},
        "mean_concurrency": part.get("concurrency"),
        "backend": "sglang" if part.text("backend").startswith("sglang") else part.text("backend"),
    }
    if values.get("request_rate") == "trace":
        values["request_rate"] = None
    errors = values.get("errors")
    if "failed" not in values and isinstance(errors, list):
        values["failed"] = sum(bool(error) for error in errors)
    return tuple(replace(run, tool=NAME) for run in vllm_bench.read(replace(part, data=values)))
