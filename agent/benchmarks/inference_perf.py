"""Reader of a client stage file of inference-perf (`stage_N_lifecycle_metrics.json`, kubernetes-sigs, 0.1 to 0.6).

All times are in seconds. Two related files are recognised and refused: the server's `stage_N_prometheus_metrics.json`
contradicts the client, and a summary averages the stages. Rules for all tools are in `agent.benchmarks.points`.
"""

from __future__ import annotations

from agent.benchmarks.points import BenchmarkMeasurement, BenchmarkRun, LengthQuantiles, build_measurement
from agent.benchmarks.typed_fields import ResultFields
from agent.errors import NotAResultError

NAME = "inference-perf"


def recognises(part: ResultFields) -> bool:
    """Return whether `load_summary` and `successes` exist, which no other tool writes."""
    return isinstance(part.data.get("load_summary"), dict) and isinstance(part.data.get("successes"), dict)


def read(part: ResultFields) -> tuple[BenchmarkMeasurement, ...]:
    """Return the load of one stage. Raise BenchmarkError for a server file, a summary, a failed stage or a bad value.

    `concurrency` marks a closed loop; its rate is a placeholder that inference-perf requires. TTFT and TPOT are per
    request ((last - first) / (n - 1), as vLLM's TPOT). `inter_token_latency` is per gap, without gaps inside a chunk.
    The file has no time of day, so times are None.
    """
    _refuse_others(part)
    load, successes = ("load_summary",), ("successes",)
    clients = part.positive_number(*load, "concurrency")
    latency = (*successes, "latency")
    run = BenchmarkRun(
        completed_rps=part.needed(*successes, "throughput", "requests_per_sec"),
        requests=part.needed_count(*successes, "count"),
        failed=part.count("failures", "count") or 0,
        loop="closed" if clients else "open",
        clients=clients,
        requested_rps=None if clients else part.needed(*load, "requested_rate"),
        sent_rps=None if clients else part.positive_number(*load, "achieved_rate"),
        latency_mean_seconds=part.positive_number(*latency, "request_latency", "mean"),
        latency_max_seconds=part.positive_number(*latency, "request_latency", "max"),
        ttft_mean_seconds=part.positive_number(*latency, "time_to_first_token", "mean"),
        ttft_p50_seconds=part.positive_number(*latency, "time_to_first_token", "median"),
        ttft_p99_seconds=part.positive_number(*latency, "time_to_first_token", "p99"),
        tpot_mean_seconds=part.positive_number(*latency, "time_per_output_token", "mean"),
        tpot_p50_seconds=part.positive_number(*latency, "time_per_output_token", "median"),
        tpot_p99_seconds=part.positive_number(*latency, "time_per_output_token", "p99"),
        itl_p50_seconds=part.number(*latency, "inter_token_latency", "median"),
        itl_p99_seconds=part.positive_number(*latency, "inter_token_latency", "p99"),
        e2e_p99_seconds=part.positive_number(*latency, "request_latency", "p99"),
        output_tokens_per_second=part.positive_number(*successes, "throughput", "output_tokens_per_sec"),
        prefix_hit_ratio=_prefix_hits(part),
        prompt_tokens=_lengths(part, "prompt_tokens", "prompt_len"),
        generation_tokens=_lengths(part, "output_tokens", "output_len"),
    )
    return (build_measurement(part, NAME, run),)


def _refuse_others(part: ResultFields) -> None:
    """Refuse summaries and the server's file (10,938 requests against 5,531 of the client: PEERS 3.2, item 8)."""
    if part.get("successes", "throughput") is None and part.get("successes", "rate") is not None:
        text = "is the server's side of a stage, which contradicts the client's: give stage_N_lifecycle_metrics.json"
        raise part.bad(text, kind=NotAResultError)
    if part.get("load_summary", "requested_rate") is None and part.get("load_summary", "concurrency") is None:
        text = "is a summary of all stages, which have no load in common: give stage_N_lifecycle_metrics.json"
        raise part.bad(text, kind=NotAResultError)


def _lengths(part: ResultFields, reported: str, counted: str) -> LengthQuantiles:
    """Return tokens per request as reported by the server (newer files), or else by the client's tokenizer."""
    key = reported if part.get("successes", reported, "mean") is not None else counted
    mean, p50, p95, p99 = (part.positive_number("successes", key, share) for share in ("mean", "median", "p95", "p99"))
    return LengthQuantiles(mean=mean, p50=p50, p95=p95, p99=p99)


def _prefix_hits(part: ResultFields) -> float | None:
    """Return cached / all prompt tokens of the server's usage, or None for 0: engines do not report it by default."""
    cached, total = (
        part.positive_number("successes", "prompt_tokens", "cached"),
        part.positive_number("successes", "prompt_tokens", "total"),
    )
    return cached / total if cached and total else None
