"""What vLLM's V0 engine exposes and sizewatch leaves alone, and why: one row a prefix.

Owns reasons only. A family of V0 is either a row of `rules.engines.vllm_v0` or a row here; a test holds its pages to it.
"""

from __future__ import annotations

from rules.engines.table import IgnoredFamily

_REASONS: tuple[tuple[str, str], ...] = (
    ("python_", "the interpreter's own"),
    ("process_", "the process's own; its start time is used"),
    ("http_", "the HTTP layer's own; its request counter is used"),
    ("vllm_request_params_", "what clients asked for, not what happened"),
    ("vllm_request_max_num_generation_tokens", "what clients asked for, not what happened"),
    ("vllm_tokens", "prompt and generation tokens, which are counted apart"),
    ("vllm_avg_", "a throughput over the log's interval of some seconds; the token counters are used"),
    ("vllm_num_requests_swapped", "requests whose KV lies in CPU memory; each was counted as a preemption"),
    ("vllm_cpu_", "blocks swapped out to CPU memory"),
    ("vllm_time_in_queue_requests", "request_queue_time_seconds says the same"),
    (
        "vllm_model_forward_time_milliseconds",
        "summed over a request's steps, each shared with others; only for traced ones",
    ),
    (
        "vllm_model_execute_time_milliseconds",
        "summed over a request's steps, each shared with others; only for traced ones",
    ),
    ("vllm_spec_decode_efficiency", "emitted tokens of the most there could be; the acceptance rate is used"),
    ("vllm_spec_decode_num_", "sums of running totals (vLLM PR 15415); the acceptance rate is used"),
)

IGNORED: tuple[IgnoredFamily, ...] = tuple(IgnoredFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
