"""What vLLM exposes and sizewatch leaves alone, and why: one row a prefix, for `sizewatch inspect` and the doctor.

Owns reasons only. A family that vLLM adds is either a row of an engine table or a row here; a test holds every page to it.
"""

from __future__ import annotations

from rules.engines.table import IgnoredFamily

_REASONS: tuple[tuple[str, str], ...] = (
    ("python_", "the interpreter's own"),
    ("process_", "the process's own; its start time is used"),
    ("http_", "the HTTP layer's own; its request counter is used"),
    ("vllm_request_params_", "what clients asked for, not what happened"),
    ("vllm_request_max_num_generation_tokens", "what clients asked for, not what happened"),
    ("vllm_estimated_", "zero unless --enable-mfu-metrics"),
    ("vllm_mm_cache_", "multimodal inputs are not judged"),
    ("vllm_prompt_tokens_cached", "the prefix cache counters say the same"),
    ("vllm_prompt_tokens_recomputed", "existed between 0.15.1 and 0.20.2 only"),
    ("vllm_request_prefill_kv_computed_tokens", "computed prompt tokens say the same in sum"),
    ("vllm_request_num_preemptions", "0 and 1 preemption share a bucket; the counter is used"),
    ("vllm_kv_block_", "sampled reuse and idle times are not judged"),
    ("vllm_nixl_", "volume of KV transfers; time and failed transfers are used"),
    ("vllm_nixl_num_failed_notifications", "a notification that failed is no transfer that failed"),
    ("vllm_nixl_num_kv_expired_reqs", "KV that nobody fetched in time is no transfer that failed"),
    ("vllm_nixl_num_notifications_after_expiry", "KV that nobody fetched in time is no transfer that failed"),
    ("vllm_mooncake_", "volume of KV transfers; time and failed transfers are used"),
    ("vllm_kv_offload_", "of one connector; names change each release"),
    ("vllm_simple_kv_offload_", "of one connector"),
    ("vllm_hf3fs_", "of one connector"),
    ("vllm_hisparse_", "of one connector"),
    ("vllm_umbp_", "of one connector"),
    ("vllm_corrupted_requests", "needs VLLM_COMPUTE_NANS_IN_LOGITS"),
    ("vllm_gpu_prefix_cache_", "deprecated twin of prefix_cache_* from 0.9"),
    ("vllm_gpu_prefix_cache_hit_rate", "a gauge of V0, -1 without prefix caching; the counters are used"),
    ("vllm_gpu_cache_usage_perc", "deprecated twin of kv_cache_usage_perc from 0.9"),
    ("vllm_time_per_output_token_seconds", "deprecated twin of inter_token_latency_seconds from 0.10"),
    ("vllm_num_requests_swapped", "of V0; always zero in V1"),
    ("vllm_cpu_", "of V0; always zero in V1"),
    ("vllm_diffusion_", "diffusion language models are not judged"),
    ("vllm_num_requests_kv_fetch_by_stage", "stages of an asynchronous KV load"),
    ("vllm_sleep_mode_", "how long sleep-mode operations take"),
    ("vllm_rl_weight_update_", "weight updates of reinforcement learning are not serving"),
    ("vllm_watermark_", "only with a watermark configured"),
    ("vllm_websocket_", "the realtime API's connections"),
)

IGNORED: tuple[IgnoredFamily, ...] = tuple(IgnoredFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
