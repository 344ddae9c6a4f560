"""TGI as its source says its page is: there was no page of a real server at hand."""

import re

import pytest
from making import START, page_text, read
from table_checks import TABLES

from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from rules.engines.coverage import FamilyUse, explain_families
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.snapshots import Snapshot

TGI = TABLES["tgi/router"]

PAGE = "made-tgi.prom"
SECONDS = 60.0

FRESH = "# TYPE tgi_batch_max_total_tokens gauge\ntgi_batch_max_total_tokens 65536\n"
"""What stands on the page before the first request (backends/v3/src/lib.rs)."""


def of(text: str, t: float = START) -> Snapshot:
    page = read(text, t)
    assert page.engine == "tgi"
    return page


def with_value(text: str, series: str, value: float) -> str:
    changed, times = re.subn(rf"(?m)^({re.escape(series)}) \S+$", rf"\g<1> {value}", text)
    assert times == 1, f"{series}: {times} series"
    return changed


def without(text: str, *names: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not any(name in line for name in names))


def uses(text: str) -> dict[str, FamilyUse]:
    reader = PageReader()
    reader.read(text.encode(), START)
    return {use.name: use for use in explain_families(reader.engine, reader.families)}


def test_tgi_families_are_zero_beside_arrivals() -> None:
    """The exporter prints a series with its first event."""
    counters = of(without(page_text(PAGE), "tgi_request_failure")).counters
    assert [counters[f"requests_{what}"] for what in ("finished", "failed", "aborted")] == [200, 0, 0]
    assert (counters["admission_rejections"], counters["http_requests_refused"]) == (0, 0)
    first = of(without(page_text(PAGE), "tgi_request_failure", "tgi_request_success")).counters
    assert (first["requests_arrived"], first["requests_finished"]) == (220, 0)


def test_tgi_without_requests_is_known() -> None:
    page = of(FRESH)
    assert (page.counters, page.gauges, page.facts["max_batch_total_tokens"]) == ({}, {}, "65536")
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read("# TYPE tgi_unheard_of counter\ntgi_unheard_of 1\n")


def later(text: str) -> str:
    """A minute on: 12 requests more, of which 10 succeeded and one was refused."""
    text = with_value(text, "tgi_request_count", 232)
    text = with_value(text, "tgi_request_success", 210)
    return with_value(text, 'tgi_request_failure{err="validation"}', 6)


def test_arrivals_are_counted_and_not_worked_out() -> None:
    readings = read_all(windows.diff_snapshots(of(page_text(PAGE)), of(later(page_text(PAGE)), START + SECONDS)))
    arrived, completed = readings["arrival_rps"], readings["completed_rps"]
    assert arrived.value == pytest.approx(12 / SECONDS)
    assert completed.value == pytest.approx(10 / SECONDS)


def test_tgi_ttft_lies_between_queue_and_end() -> None:
    zero = re.sub(r"(?m)^(tgi_\S+(_bucket\{.*\}|_sum|_count)) \S+$", r"\1 0", page_text(PAGE))
    readings = read_all(windows.diff_snapshots(of(zero), of(page_text(PAGE), START + SECONDS)))
    ttft, queue, e2e = readings["ttft_p99_seconds"], readings["queue_p99_seconds"], readings["e2e_p99_seconds"]
    assert (ttft.value, ttft.low, ttft.high) == (None, queue.low, e2e.high)


def test_reference_names_are_on_the_page() -> None:
    """docs/source/reference/metrics.md of TGI 3.3."""
    of_batches = "current_max_tokens current_size decode_duration filter_duration forward_duration inference_count"
    of_batches += " inference_duration inference_success next_size"
    of_requests = "count duration generated_tokens inference_duration input_length max_new_tokens"
    of_requests += " mean_time_per_token_duration queue_duration skipped_tokens success validation_duration"
    names = {f"tgi_batch_{n}" for n in of_batches.split()} | {f"tgi_request_{n}" for n in of_requests.split()}
    assert names | {"tgi_queue_size"} <= set(uses(page_text(PAGE)))
