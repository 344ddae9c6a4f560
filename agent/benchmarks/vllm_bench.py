"""Reader of `vllm bench serve --save-result` and `--append-result` (vllm/benchmarks/serve.py, vLLM 0.6 to 0.32).

Keys ending in `_ms` are milliseconds; `duration` and the arrays are seconds. Each run is an object, one per line with
`--append-result`. Rules for all tools are in `agent.benchmarks.points`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from statistics import fmean

from agent.benchmarks import points
from agent.benchmarks.points import BenchmarkMeasurement, BenchmarkRun, LengthQuantiles, Loop, Setup, build_measurement
from agent.benchmarks.typed_fields import ResultFields, percentile
from rules.sizing import acceptance_from_mean_accepted

NAME = "vllm-bench"

MARKS = ("request_throughput", "completed", "model_id")
ORIGINS = ("backend", "endpoint_type")

WHOLE_DRAFT = 0.01
"""Relative distance from a whole number within which all drafts had that mean length."""

LONGEST_DRAFT = 128
"""Longest plausible draft in tokens; bounds the sum below."""


GPU = ("gpu", "gpu_type", "gpu_product", "gpu_name", "accelerator", "hw")
TENSOR_PARALLEL = ("tp", "tp_size", "tensor_parallel_size", "tensor_parallel")
ENGINE = ("engine", "framework")
VERSION = ("engine_version", "vllm_version", "sglang_version", "version")
COUNTS: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel": TENSOR_PARALLEL,
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
"""Engine names as used by people and backends."""


def recognises(part: ResultFields) -> bool:
    """Return whether the flat keys are vLLM's. SGLang's bench_serving, derived from it, has no model_id."""
    flat = all(key in part.data for key in MARKS) and any(key in part.data for key in ORIGINS)
    return flat and not isinstance(part.data["request_throughput"], dict)


def read(part: ResultFields) -> tuple[BenchmarkMeasurement, ...]:
    """Return the load of one run. Raise BenchmarkError for a failed run, a ramp or impossible values.

    `request_rate: "inf"` with `max_concurrency` is a closed loop. Without it, all requests were sent at once and the
    point keeps only its throughput (`points.build_measurement`). A rate with `max_concurrency` is an open loop; if the
    limit binds, the point is `censored`.
    """
    if part.text("ramp_up_strategy"):
        raise part.bad("ramps its rate up; a point of a curve is one steady load", "ramp_up_strategy")
    (rate, unlimited), clients = _rate(part), part.positive_number("max_concurrency")
    loop: Loop | None = "open" if rate else "closed" if clients else None
    acceptance, said = _acceptance(part)
    run = BenchmarkRun(
        completed_rps=part.needed("request_throughput"),
        requests=part.needed_count("completed"),
        failed=_failed(part),
        loop=loop,
        burst=loop is None and unlimited,
        clients=clients,
        requested_rps=rate,
        sent_rps=_sent_rps(part),
        duration_seconds=part.positive_number("duration"),
        at_once=part.positive_number("mean_concurrency"),
        latency_mean_seconds=_latency(part, "mean_e2el_ms", fmean),
        latency_max_seconds=max(part.numbers("latencies"), default=None),
        ttft_mean_seconds=_seconds(part, "mean_ttft_ms"),
        tpot_mean_seconds=_seconds(part, "mean_tpot_ms"),
        tpot_p50_seconds=_seconds(part, "median_tpot_ms"),
        tpot_p99_seconds=_seconds(part, "p99_tpot_ms"),
        itl_p50_seconds=_seconds(part, "median_itl_ms"),
        itl_p99_seconds=_seconds(part, "p99_itl_ms"),
        e2e_p99_seconds=_latency(part, "p99_e2el_ms", _nearest_p99),
        output_tokens_per_second=part.positive_number("output_throughput"),
        speculative_acceptance=acceptance,
        model=part.text("model_id"),
        setup=_setup(part),
        prompt_tokens=_lengths(part, "total_input_tokens", "input_lens"),
        generation_tokens=_lengths(part, "total_output_tokens", "output_lens"),
        remarks=said if loop or unlimited else (points.NO_LOAD, *said),
    )
    return (build_measurement(part, NAME, _with_ttft(part, _with_times(part, run))),)


def _setup(part: ResultFields) -> Setup:
    """Return the setup from `--metadata gpu=h100 tp=4`, or from a backend specific to one engine.

    The backends vllm and openai are a protocol of most engines and identify none.
    """
    known = (*GPU, *ENGINE, *VERSION, *(key for keys in COUNTS.values() for key in keys))
    told = {name: str(value).strip() for name in known if (value := part.data.get(name))}
    engine = next((told[name] for name in ENGINE if name in told), "") or part.text("backend")
    version = next((told[name] for name in VERSION if name in told), "")
    return Setup(
        engine=ENGINES.get(engine.casefold(), ""),
        gpu=next((told[name] for name in GPU if name in told), ""),
        engine_version=version if re.fullmatch(r"\S{1,60}", version) else "",
        **{field: next((_whole(told[key]) for key in keys if key in told), None) for field, keys in COUNTS.items()},
    )


def _whole(text: str) -> int | None:
    return int(text) or None if text.isascii() and text.isdigit() and len(text) < 6 else None


def _seconds(part: ResultFields, key: str) -> float | None:
    """Return a `_ms` key in seconds, or None for 0: vLLM prints 0 as the mean of no values."""
    value = part.positive_number(key)
    return None if value is None else value / 1000


def _rate(part: ResultFields) -> tuple[float | None, bool]:
    """Return the requested rps, and whether it was "inf" (vLLM writes the word, a YAML writer the number)."""
    value = part.get("request_rate")
    if value == "inf" or value == math.inf:
        return None, True
    rate = part.number("request_rate")
    if rate == 0:
        raise part.bad("must be above 0", "request_rate")
    return rate, False


def _failed(part: ResultFields) -> int:
    """Return the failed requests: `failed`, or in older files the shortfall from `num_prompts`."""
    failed = part.count("failed")
    if failed is not None:
        return failed
    return max((part.count("num_prompts") or 0) - (part.count("completed") or 0), 0)


def _with_times(part: ResultFields, run: BenchmarkRun) -> BenchmarkRun:
    """Add the run's span in unix seconds, if the file has a date: the local time at the end of the run.

    The date has no zone. It is read as UTC, the clock of most containers, with a remark.
    """
    text = part.text("date")
    if not text:
        return run
    try:
        ended_at = datetime.strptime(text, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise part.bad("must be a date such as 20261120-181609", "date") from None
    if ended_at < 0:
        raise part.bad("must be a date after 1970, such as 20261120-181609", "date")
    started_at = ended_at - run.duration_seconds if run.duration_seconds else None
    if started_at is not None and started_at < 0:
        raise part.bad(f"must be seconds, fewer than from 1970 to {text[:8]}", "duration")
    return replace(run, started_at=started_at, ended_at=ended_at, remarks=(*run.remarks, points.LOCAL_CLOCK))


def _sent_rps(part: ResultFields) -> float | None:
    """Return the sending rate from `start_times` (`--save-detailed`): n / span, as in inference-perf."""
    starts = part.numbers("start_times")
    span = max(starts) - min(starts) if starts else 0.0
    return len(starts) / span if span > 0 else None


def _latency(part: ResultFields, key: str, statistic: Callable[[list[float]], float]) -> float | None:
    """Return end-to-end seconds: `key` if present, else the statistic of the array of 0.32 and newer."""
    answered = sorted(value for value in part.numbers("latencies") if value > 0)
    return _seconds(part, key) or (statistic(answered) if answered else None)


def _nearest_p99(ranked: list[float]) -> float:
    return ranked[math.ceil(0.99 * len(ranked)) - 1]


def _succeeded(part: ResultFields, values: tuple[float, ...]) -> tuple[bool, ...]:
    """Return which requests of the detailed arrays succeeded, i.e. have an empty error text."""
    errors = part.get("errors")
    if not isinstance(errors, list) or len(errors) != len(values):
        return tuple(True for _ in values)
    return tuple(not error for error in errors)


def _with_ttft(part: ResultFields, run: BenchmarkRun) -> BenchmarkRun:
    """Add TTFT P50 (the median, always in the file) and P99, without the start burst of a closed loop.

    The first `clients` requests are sent at once. Their TTFT includes a queue that no steady load has (PEERS 3.2, item
    11). Only `--save-detailed` lists single requests. At least as many must remain as are removed.
    """
    p50, p99, rest = _seconds(part, "median_ttft_ms"), _seconds(part, "p99_ttft_ms"), None
    ttfts, starts = part.numbers("ttfts"), part.numbers("start_times")
    if run.loop == "closed" and run.clients is not None and run.clients > 1 and len(starts) == len(ttfts):
        by_start = sorted(zip(starts, ttfts, _succeeded(part, ttfts), strict=True), key=lambda entry: entry[0])
        steady = [ttft for _, ttft, succeeded in by_start[math.ceil(run.clients) :] if succeeded and ttft > 0]
        if len(steady) >= run.clients:
            p50, p99, rest = percentile(steady, 0.5), percentile(steady, 0.99), len(steady)
    return replace(run, ttft_p50_seconds=p50, ttft_p99_seconds=p99, ttft_requests=rest)


def _lengths(part: ResultFields, total: str, each: str) -> LengthQuantiles:
    """Return tokens per request: the mean from the total, percentiles if `--save-detailed` wrote each request."""
    tokens, completed, values = part.positive_number(total), part.count("completed"), part.numbers(each)
    lengths = [value for value, succeeded in zip(values, _succeeded(part, values), strict=True) if succeeded]
    return LengthQuantiles(
        mean=tokens / completed if tokens and completed else None,
        p50=percentile(lengths, 0.5),
        p95=percentile(lengths, 0.95),
        p99=percentile(lengths, 0.99),
    )


def _acceptance(part: ResultFields) -> tuple[float | None, tuple[str, ...]]:
    """Return acceptance per drafted token, and remarks.

    `spec_decode_acceptance_rate` is accepted / drafted in percent. DESIGN 3.7 does not use it: after the first rejected
    token the rest of a draft is discarded. `spec_decode_acceptance_length` is 1 + accepted / drafts, so the drafts had
    (length - 1) / rate tokens. Both give the per-token acceptance (`rules.sizing.acceptance_from_mean_accepted`) if all
    drafts had the same length, which n-gram drafts do not.
    """
    length, rate = part.number("spec_decode_acceptance_length"), part.number("spec_decode_acceptance_rate")
    if not length or rate is None:
        return None, ()
    if rate > 100:
        raise part.bad(f"must be a percentage, not {rate:g}", "spec_decode_acceptance_rate")
    accepted = max(length - 1, 0.0)
    if not accepted:
        return 0.0, ()
    if not rate:
        return None, (points.NO_DRAFT_LENGTH,)
    drafts = min(accepted / (rate / 100), 2.0 * LONGEST_DRAFT)
    whole = round(drafts)
    if not 1 <= whole <= LONGEST_DRAFT or abs(drafts - whole) > WHOLE_DRAFT * whole:
        return None, (points.ODD_DRAFTS.format(drafts=drafts),)
    return acceptance_from_mean_accepted(min(accepted, whole), whole), ()
