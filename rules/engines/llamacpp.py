"""llama.cpp server, builds of March 2024 to October 2026: a dozen numbers without labels or histograms.

Sources: tools/server (server-context.cpp, server-task.cpp, README.md), the pull requests named below, and pages and a
recording of a build of October 2026. It has no releases, so `since`, `until` and `scanned` are months of builds
(year.month). A new build needs a row only for a renamed family. The server needs `--metrics`. Reading the page resets
the window of its two throughput gauges, so their value depends on other readers and they are ignored. In router mode a
scrape loads a model and keeps it awake (llama.cpp issues 20227, 23096). A target must therefore be the server of one
model.
"""

from __future__ import annotations

from rules.engines.table import EngineTable, LabelAggregation, Marker, SourceRow
from rules.telemetry.families import FamilyKind

C, G = FamilyKind.COUNTER, FamilyKind.GAUGE
COMPUTED, CACHED = "llamacpp_prompt_tokens_total", "llamacpp_prompt_tokens_cached_total"
BOTH = "cached and computed ones: prompt_tokens_total does not count those that it found in a slot's cache"

ROWS: tuple[SourceRow, ...] = (
    SourceRow(C, "prompt_tokens", CACHED, "2026.8", plus=(COMPUTED,), note=BOTH),
    SourceRow(C, "prompt_tokens_computed", COMPUTED, "2024.3"),
    SourceRow(C, "prefix_hit_tokens", CACHED, "2026.8"),
    SourceRow(C, "prefix_queried_tokens", CACHED, "2026.8", plus=(COMPUTED,), note=BOTH),
    SourceRow(
        C,
        "generation_tokens",
        "llamacpp_tokens_predicted_total",
        "2024.3",
        note="all of a request's at once, when it finishes",
    ),
    SourceRow(
        C,
        "generation_seconds",
        "llamacpp_tokens_predicted_seconds_total",
        "2024.3",
        note="first to last token, when the request finishes (PR 5937)",
    ),
    SourceRow(
        C, "spec_drafts", "llamacpp_spec_decode_num_drafts_total", "2026.8", note="PR 26389; zero without speculation"
    ),
    SourceRow(C, "spec_draft_tokens", "llamacpp_spec_decode_num_draft_tokens_total", "2026.8"),
    SourceRow(C, "spec_accepted_tokens", "llamacpp_spec_decode_num_accepted_tokens_total", "2026.8"),
    SourceRow(
        C,
        "spec_accepted_at_position",
        "llamacpp_spec_decode_num_accepted_tokens_per_pos_total",
        "2026.8",
        by="position",
        note="tools/server/server-context.cpp (PR 26389): absent before the first request that speculated",
    ),
    SourceRow(G, "requests_running", "llamacpp_requests_processing", "2024.3", note="busy slots"),
    SourceRow(G, "requests_waiting", "llamacpp_requests_deferred", "2024.3", note="put off until a slot is free"),
    SourceRow(
        G,
        "kv_utilization",
        "llamacpp_kv_cache_usage_ratio",
        "2024.3",
        "2024.9",
        across=LabelAggregation.MEAN,
        note="examples/server/server.cpp, until PR 13660 of May 2025",
    ),
    SourceRow(
        G,
        "kv_utilization_max",
        "llamacpp_kv_cache_usage_ratio",
        "2024.3",
        "2024.9",
        across=LabelAggregation.MAX,
        note="the same",
    ),
)

IGNORED: tuple[tuple[str, str], ...] = (
    ("llamacpp_prompt_tokens_seconds", "tokens a second since the last reader asked: reading it empties its window"),
    ("llamacpp_predicted_tokens_seconds", "tokens a second since the last reader asked: reading it empties its window"),
    ("llamacpp_prompt_seconds_total", "time spent on prompts, summed; a share of the time to first token"),
    ("llamacpp_n_decode_total", "steps; the gauges are of the moment of reading, whether it steps or not"),
    (
        "llamacpp_n_busy_slots_per_decode",
        "an average since the start, once typed as a counter; the busy slots are used",
    ),
    ("llamacpp_n_tokens_max", "the longest sequence there ever was, typed as a counter"),
    ("llamacpp_n_past_max", "the longest sequence there ever was, as it was called in 2025"),
    ("llamacpp_kv_cache_tokens", "the KV cache's usage says the same as a ratio"),
)

_AT_FINISH = "llama.cpp has no histogram and no time of a request"

NOT_EXPOSED: tuple[tuple[str, str], ...] = (
    ("requests_finished", "llama.cpp counts no requests, only their tokens"),
    ("requests_arrived", "llama.cpp counts no requests, only their tokens"),
    ("requests_failed", "llama.cpp counts no requests, only their tokens"),
    ("ttft_seconds", f"{_AT_FINISH}: time to first token is unknown"),
    ("tpot_seconds", f"{_AT_FINISH}: only the mean time per output token is known"),
    ("itl_seconds", f"{_AT_FINISH}: only the mean time per output token is known"),
    ("e2e_seconds", _AT_FINISH),
    ("queue_seconds", f"{_AT_FINISH}; how many are waiting is known"),
    ("prefill_seconds", _AT_FINISH),
    ("decode_seconds", "llama.cpp sums the time spent generating and has no histogram of it"),
    ("prompt_tokens_per_request", "llama.cpp has no histogram of lengths and counts no requests"),
    ("generation_tokens_per_request", "llama.cpp has no histogram of lengths and counts no requests"),
    ("prompt_tokens", "this build of llama.cpp does not count the prompt tokens that it found in its cache"),
    ("prefix_hit_tokens", "this build of llama.cpp does not count the prompt tokens that it found in its cache"),
    ("spec_drafts", "this build of llama.cpp does not count what it drafts"),
    ("spec_draft_tokens", "this build of llama.cpp does not count what it drafts"),
    ("spec_accepted_tokens", "this build of llama.cpp does not count what it drafts"),
    ("kv_utilization", "llama.cpp dropped the usage of its KV cache in May 2025 (PR 13660)"),
    ("preemptions", "llama.cpp does not preempt: a slot keeps its cache until the request ends"),
    ("adapters_running", "llama.cpp does not tell which adapters are in use"),
    ("adapter_evictions", "llama.cpp keeps every adapter loaded"),
    ("expert_balance_sum", "llama.cpp spreads no experts over GPUs by load, and prints nothing about them"),
    ("kv_transfer_seconds", "llama.cpp moves no KV blocks between instances"),
    ("kv_residency_seconds", "llama.cpp has no KV blocks with a life of their own"),
)

LLAMACPP = EngineTable(
    name="llamacpp",
    generation="server",
    title="llama.cpp",
    signatures=("llamacpp_requests_processing", "llamacpp_tokens_predicted_total"),
    rows=ROWS,
    scanned=("2024.3", "2024.9", "2025.5", "2026.8", "2026.10"),
    markers=(
        Marker(source="llamacpp_kv_cache_usage_ratio", since="2024.3", until="2024.9"),
        Marker(source="llamacpp_n_decode_total", since="2024.9"),
        Marker(source="llamacpp_spec_decode_num_drafts_total", since="2026.8"),
    ),
    ignored=IGNORED,
    not_exposed=NOT_EXPOSED,
)
