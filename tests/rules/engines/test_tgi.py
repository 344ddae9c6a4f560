"""TGI as its source says its page is: there was no page of a real server at hand."""

import pytest
from making import START, page_text, read
from table_checks import TABLES, uses, without_lines

from agent.errors import ScrapeError
from rules.telemetry.snapshots import Snapshot

TGI = TABLES["tgi/router"]

PAGE = "made-tgi.prom"

FRESH = "# TYPE tgi_batch_max_total_tokens gauge\ntgi_batch_max_total_tokens 65536\n"
"""What stands on the page before the first request (backends/v3/src/lib.rs)."""


def of(text: str, t: float = START) -> Snapshot:
    page = read(text, t)
    assert page.engine == "tgi"
    return page


def test_tgi_families_are_zero_beside_arrivals() -> None:
    """The exporter prints a series with its first event."""
    counters = of(without_lines(page_text(PAGE), "tgi_request_failure")).counters
    assert [counters[f"requests_{what}"] for what in ("finished", "failed", "aborted")] == [200, 0, 0]
    assert (counters["admission_rejections"], counters["http_requests_refused"]) == (0, 0)
    first = of(without_lines(page_text(PAGE), "tgi_request_failure", "tgi_request_success")).counters
    assert (first["requests_arrived"], first["requests_finished"]) == (220, 0)


def test_tgi_without_requests_is_known() -> None:
    page = of(FRESH)
    assert (page.counters, page.gauges, page.facts["max_batch_total_tokens"]) == ({}, {}, "65536")
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read("# TYPE tgi_unheard_of counter\ntgi_unheard_of 1\n")


def test_reference_names_are_on_the_page() -> None:
    """docs/source/reference/metrics.md of TGI 3.3."""
    of_batches = "current_max_tokens current_size decode_duration filter_duration forward_duration inference_count"
    of_batches += " inference_duration inference_success next_size"
    of_requests = "count duration generated_tokens inference_duration input_length max_new_tokens"
    of_requests += " mean_time_per_token_duration queue_duration skipped_tokens success validation_duration"
    names = {f"tgi_batch_{n}" for n in of_batches.split()} | {f"tgi_request_{n}" for n in of_requests.split()}
    assert names | {"tgi_queue_size"} <= set(uses(TGI, page_text(PAGE)))
