"""TensorRT-LLM 1.0 to 1.2: trtllm-serve's /prometheus/metrics, five families without any prefix.

Facts from tensorrt_llm/metrics/collector.py of those releases (labels model_name="undefined", engine_type="undefined"
whatever is served). The names could be anyone's: a page is taken for this engine by request_success_total with all three
of its labels. A duration of zero is dropped, so counts differ; nothing is printed before the first request ended. Through
Dynamo the same families have the prefix `trtllm_`: `rules.engines.trtllm`.
"""

from __future__ import annotations

from rules.engines.table import EngineTable, IgnoredFamily, Match, SourceRow
from rules.telemetry.families import FamilyKind

PLAIN_C, PLAIN_H = FamilyKind.COUNTER, FamilyKind.HISTOGRAM
ENDED = "request_success_total"


def _plain_finished(family: str, reason: str, other: bool = False) -> SourceRow:
    """Requests that ended for a reason, or for any `other`."""
    match = Match(label="finished_reason", values=(reason,), without=other)
    return SourceRow(family=family, source=ENDED, kind=PLAIN_C, matches=(match,), lazy=True, since="1.0.0")


def _seconds(family: str, source: str, note: str = "") -> SourceRow:
    return SourceRow(family=family, source=source, kind=PLAIN_H, since="1.0.0", note=note)


PLAIN_ROWS: tuple[SourceRow, ...] = (
    _plain_finished("requests_finished", "timeout", other=True),
    _plain_finished("requests_aborted", "cancelled"),
    _plain_finished("requests_failed", "timeout"),
    _plain_finished("requests_ended_by_length", "length"),
    _seconds("ttft_seconds", "time_to_first_token_seconds", "written when the request ends"),
    _seconds("tpot_seconds", "time_per_output_token_seconds", "none for one token"),
    _seconds("e2e_seconds", "e2e_request_latency_seconds"),
    _seconds(
        "queue_seconds", "request_queue_time_seconds", "nothing below 0.3 s; a request that did not wait is in none"
    ),
)

_FIVE = "TensorRT-LLM prints five families before 1.3, and this is in none"

TRTLLM_PLAIN = EngineTable(
    name="trtllm",
    generation="v1.0",
    title="TensorRT-LLM",
    signatures=(ENDED,),
    signature_labels=("model_name", "engine_type", "finished_reason"),
    rows=PLAIN_ROWS,
    ignored=(
        IgnoredFamily(prefix="python_", why="the interpreter's own"),
        IgnoredFamily(prefix="process_", why="the process's own"),
        IgnoredFamily(prefix="http_", why="the HTTP layer's own; trtllm-serve leaves it empty"),
    ),
    not_exposed=tuple(
        (family, _FIVE)
        for family in (
            *("itl_seconds", "prefill_seconds", "decode_seconds", "prompt_tokens", "prompt_tokens_computed"),
            *("generation_tokens", "prompt_tokens_per_request", "generation_tokens_per_request"),
            *("requests_running", "requests_waiting", "kv_utilization", "preemptions", "admission_rejections"),
            *("prefix_hit_tokens", "prefix_queried_tokens", "spec_accepted_tokens", "spec_drafts", "spec_draft_tokens"),
            *("adapters_running", "adapter_evictions", "cold_start_seconds", "kv_transfer_seconds"),
            *("kv_residency_seconds", "expert_balance_sum"),
        )
    ),
)
