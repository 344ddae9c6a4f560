"""Hugging Face Text Generation Inference 2.0 to 3.3 with its own backends (v2, v3): no model label, no `_total`.

Sources: router/src/server.rs, router/src/infer/mod.rs, router/src/validation.rs, backends/v3/src (backend.rs, queue.rs,
lib.rs) and docs/source/reference/metrics.md. No page of a real server was available. A family appears with its first
event. Other backends behind its router (TensorRT-LLM, llama.cpp) lack queue and batch. Durations are in seconds,
although no name says so. Durations and output lengths cover successful requests.
"""

from __future__ import annotations

from rules.engines.table import EngineTable, LabelAggregation, Match, SourceRow
from rules.telemetry.families import FamilyKind

C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE
ARRIVED, SUCCESS, FAILURE = "tgi_request_count", "tgi_request_success", "tgi_request_failure"
SKIPPED = "tgi_request_skipped_tokens"

ENDED_BADLY = ("generation", "incomplete")
LEFT = ("dropped",)
REFUSED = ("validation", "template")
OVERLOADED = ("overloaded",)


def _failed(family: str, errors: tuple[str, ...], note: str) -> SourceRow:
    matches = (Match(label="err", values=errors),)
    return SourceRow(C, family, FAILURE, "2.0", matches=matches, lazy=True, zero_with=ARRIVED, note=note)


ROWS: tuple[SourceRow, ...] = (
    SourceRow(
        C, "requests_arrived", ARRIVED, "2.0", note="at the start of each, those that are refused afterwards included"
    ),
    SourceRow(
        C,
        "requests_finished",
        FAILURE,
        "2.0",
        matches=(Match(label="err", values=LEFT),),
        plus=(SUCCESS,),
        lazy=True,
        zero_with=ARRIVED,
        note="successes, and requests that their clients left",
    ),
    _failed("requests_failed", ENDED_BADLY, "a forward pass failed, or the stream ended before the text did"),
    _failed("requests_aborted", LEFT, "the client left; noticed when the request is batched or has its next token"),
    _failed("http_requests_refused", REFUSED, "a request that cannot be served; not those refused as too many"),
    _failed("admission_rejections", OVERLOADED, "more than --max-concurrent-requests at once"),
    SourceRow(
        C,
        "prompt_tokens",
        "tgi_request_input_length",
        "2.0",
        part="sum",
        note="of requests that were taken on, before they are queued; not without a tokenizer in the router",
    ),
    SourceRow(
        C,
        "generation_tokens",
        "tgi_request_generated_tokens",
        "2.0",
        part="sum",
        note="all of a request's at once, when it succeeds",
    ),
    SourceRow(
        C,
        "spec_drafts",
        SKIPPED,
        "2.0",
        part="count",
        note="steps of requests, the prefill among them: a round each where it speculates",
    ),
    SourceRow(
        C,
        "spec_accepted_tokens",
        SKIPPED,
        "2.0",
        part="sum",
        note="tokens of a step but its first; zero where it does not speculate",
    ),
    SourceRow(
        H,
        "whole_per_token_seconds",
        "tgi_request_mean_time_per_token_duration",
        "2.0",
        note="inference time / tokens: the prefill is in it, so it is above the time per output token after the first",
    ),
    SourceRow(H, "e2e_seconds", "tgi_request_duration", "2.0", note="to the last token sent"),
    SourceRow(H, "queue_seconds", "tgi_request_queue_duration", "2.0"),
    SourceRow(
        H, "inference_seconds", "tgi_request_inference_duration", "2.0", note="from its first batch to its last token"
    ),
    SourceRow(
        H,
        "prompt_tokens_per_request",
        "tgi_request_input_length",
        "2.0",
        note="of requests as they come, not as they finish; 100 edges up to the longest prompt allowed",
    ),
    SourceRow(H, "generation_tokens_per_request", "tgi_request_generated_tokens", "2.0"),
    SourceRow(
        G,
        "requests_running",
        "tgi_batch_current_size",
        "2.0",
        note="set before each decode; a request in its prefill is in no gauge",
    ),
    SourceRow(G, "requests_waiting", "tgi_queue_size", "2.0", across=LabelAggregation.SUM),
)

IGNORED: tuple[tuple[str, str], ...] = (
    ("tgi_batch_current_max_tokens", "tokens that the batch may come to, not those that it holds"),
    ("tgi_batch_next_size", "requests a prefill: 1024 edges; the batch's size is used"),
    ("tgi_batch_concat", "how often batches were joined, and how long it took"),
    ("tgi_batch_inference_", "steps of batches, not of requests"),
    ("tgi_batch_forward_duration", "steps of batches, not of requests"),
    ("tgi_batch_decode_duration", "steps of batches, not of requests"),
    ("tgi_batch_filter_duration", "steps of batches, not of requests"),
    ("tgi_request_validation_duration", "tokenising before the queue; the whole request is timed"),
    ("tgi_request_max_new_tokens", "what clients asked for, not what happened"),
)

_NO_CACHE = "TGI caches prefixes and says nothing of it"

NOT_EXPOSED: tuple[tuple[str, str], ...] = (
    ("ttft_seconds", "TGI does not time the first token: it lies between the queue time and the whole request"),
    ("itl_seconds", "TGI does not time single tokens"),
    ("prefill_seconds", "TGI times the prefill of batches, not of requests"),
    ("decode_seconds", "TGI does not time requests from their first token"),
    ("requests_ended_by_length", "TGI does not count why requests ended"),
    ("kv_utilization", "TGI has no usage of its KV cache"),
    ("preemptions", "TGI does not preempt: it takes a request on when all its tokens have room"),
    ("prompt_tokens_computed", _NO_CACHE),
    ("prefix_hit_tokens", _NO_CACHE),
    ("prefix_queried_tokens", _NO_CACHE),
    ("spec_draft_tokens", "TGI counts accepted tokens, not drafted ones"),
    ("adapters_running", "TGI does not tell which adapters are in use"),
    ("adapter_evictions", "TGI loads its adapters at the start and keeps them"),
    ("expert_balance_sum", "TGI prints nothing about experts"),
    ("kv_transfer_seconds", "TGI moves no KV blocks between instances"),
    ("kv_residency_seconds", "TGI does not follow the life of KV blocks"),
)

TGI = EngineTable(
    name="tgi",
    generation="router",
    title="TGI",
    signatures=(ARRIVED, SUCCESS, "tgi_queue_size", "tgi_batch_max_total_tokens"),
    rows=ROWS,
    fact_gauges=(("max_batch_total_tokens", "tgi_batch_max_total_tokens"),),
    ignored=IGNORED,
    not_exposed=NOT_EXPOSED,
)
