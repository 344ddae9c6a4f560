"""Reads the client's file of one stage of inference-perf (`stage_N_lifecycle_metrics.json`, kubernetes-sigs, 0.1 to 0.6).

Owns that format, all in seconds. The files beside it are recognised and refused: the server's numbers of a stage
(`stage_N_prometheus_metrics.json`) contradict the client's, and a summary averages the stages. Rules that hold for
every tool are in `agent.benchmarks.points`.
"""

from __future__ import annotations

from agent.benchmarks.points import BenchmarkMeasurement, BenchmarkRun, LengthQuantiles, build_measurement
from agent.benchmarks.typed_fields import ResultFields

NAME = "inference-perf"


def recognises(part: ResultFields) -> bool:
    """`load_summary` and `successes`, which no other tool writes."""
    return isinstance(part.data.get("load_summary"), dict) and isinstance(part.data.get("successes"), dict)


def read(part: ResultFields) -> tuple[BenchmarkMeasurement, ...]:
    """The load of one stage. Raises BadBenchmark for the server's file, a summary, a failed stage, impossible values.

    A `concurrency` makes it a closed loop, and the rate beside it a number that inference-perf needs and nobody asked
    for. TTFT and TPOT are per request ((last - first) / (n - 1), as vLLM's TPOT); `inter_token_latency` is per gap,
    with nothing between the tokens of one chunk. The file holds no time of day, so times are None.
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
        ttft_p50_seconds=part.positive_number(*latency, "time_to_first_token", "median"),
        ttft_p99_seconds=part.positive_number(*latency, "time_to_first_token", "p99"),
        tpot_p50_seconds=part.positive_number(*latency, "time_per_output_token", "median"),
        tpot_p99_seconds=part.positive_number(*latency, "time_per_output_token", "p99"),
        itl_p50_seconds=part.number(*latency, "inter_token_latency", "median"),
        itl_p99_seconds=part.positive_number(*latency, "inter_token_latency", "p99"),
        output_tokens_per_second=part.positive_number(*successes, "throughput", "output_tokens_per_sec"),
        prefix_hit_ratio=_prefix_hits(part),
        prompt_tokens=_lengths(part, "prompt_tokens", "prompt_len"),
        generation_tokens=_lengths(part, "output_tokens", "output_len"),
    )
    return (build_measurement(part, NAME, run),)


def _refuse_others(part: ResultFields) -> None:
    """Refuses the server's file (10,938 requests where the client counted 5,531: PEERS 3.2, item 8) and summaries."""
    if part.get("successes", "throughput") is None and part.get("successes", "rate") is not None:
        text = "is the server's side of a stage, which contradicts the client's: give stage_N_lifecycle_metrics.json"
        raise part.bad(text)
    if part.get("load_summary", "requested_rate") is None and part.get("load_summary", "concurrency") is None:
        raise part.bad("is a summary of all stages, which have no load in common: give stage_N_lifecycle_metrics.json")


def _lengths(part: ResultFields, reported: str, counted: str) -> LengthQuantiles:
    """Tokens a request: as the server reported them (newer files), else as the client's tokenizer counted them."""
    key = reported if part.get("successes", reported, "mean") is not None else counted
    mean, p50, p95, p99 = (part.positive_number("successes", key, share) for share in ("mean", "median", "p95", "p99"))
    return LengthQuantiles(mean=mean, p50=p50, p95=p95, p99=p99)


def _prefix_hits(part: ResultFields) -> float | None:
    """Cached / all prompt tokens as the server's usage tells. 0 cached is None: engines do not report it by default."""
    cached, total = (
        part.positive_number("successes", "prompt_tokens", "cached"),
        part.positive_number("successes", "prompt_tokens", "total"),
    )
    return cached / total if cached and total else None
