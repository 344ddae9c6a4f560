"""TGI as its source says its page is: there was no page of a real server at hand."""

from __future__ import annotations

import math
import re

import pytest
from making import START, page_text, read
from table_checks import TABLES, unexplained

from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from rules.engines.coverage import FamilyUse, explain_families
from rules.telemetry import windows
from rules.telemetry.families import BY_NAME, stem
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
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


def number(name: str) -> float:
    """The only value of a series on the page."""
    (value,) = re.findall(rf"(?m)^{re.escape(name)} (\S+)$", page_text(PAGE))
    return float(value)


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


# --- what is read


def test_counters_have_no_total_and_tokens_are_the_sums_of_histograms() -> None:
    assert of(page_text(PAGE)).counters == {
        "requests_arrived": 220,
        "requests_finished": 200 + 2,
        "requests_failed": 1,
        "requests_aborted": 2,
        "http_requests_refused": 5,
        "admission_rejections": 4,
        "prompt_tokens": number("tgi_request_input_length_sum"),
        "generation_tokens": number("tgi_request_generated_tokens_sum"),
        "spec_drafts": number("tgi_request_skipped_tokens_count"),
        "spec_accepted_tokens": number("tgi_request_skipped_tokens_sum"),
    }


def test_running_is_the_batch_and_waiting_the_queue() -> None:
    page = of(page_text(PAGE))
    assert page.gauges == {"requests_running": 6, "requests_waiting": 2}
    assert page.facts["max_batch_total_tokens"] == "65536"
    assert (page.problems, page.started_at) == ((), None)


def test_what_came_is_what_ended_what_was_refused_and_what_is_there() -> None:
    page = of(page_text(PAGE))
    ended = page.counters["requests_finished"] + page.counters["requests_failed"]
    refused = page.counters["http_requests_refused"] + page.counters["admission_rejections"]
    assert page.counters["requests_arrived"] == ended + refused + sum(page.gauges.values())


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("e2e_seconds", "tgi_request_duration"),
        ("queue_seconds", "tgi_request_queue_duration"),
        ("inference_seconds", "tgi_request_inference_duration"),
        ("whole_per_token_seconds", "tgi_request_mean_time_per_token_duration"),
        ("prompt_tokens_per_request", "tgi_request_input_length"),
        ("generation_tokens_per_request", "tgi_request_generated_tokens"),
    ],
)
def test_each_histogram_is_the_one_of_its_name(family: str, name: str) -> None:
    found = of(page_text(PAGE)).histograms[family]
    assert found.total == number(f"{name}_sum")
    assert found.counts[-1] == number(f"{name}_count")


def test_durations_are_seconds_by_their_edges() -> None:
    """router/src/server.rs: 0.0001 x 1.5^i, 35 of them, for every name that ends in duration."""
    edges = of(page_text(PAGE)).histograms["e2e_seconds"].edges
    assert edges[:-1] == pytest.approx([0.0001 * 1.5**i for i in range(1, 36)])
    assert edges[-1] == math.inf


def test_lengths_of_prompts_are_of_those_taken_on_and_lengths_of_outputs_of_those_that_succeeded() -> None:
    found = of(page_text(PAGE)).histograms
    assert found["prompt_tokens_per_request"].counts[-1] == 211
    assert found["generation_tokens_per_request"].counts[-1] == 200


def test_a_family_that_has_counted_nothing_is_zero_beside_the_arrivals() -> None:
    """The exporter prints a series with its first event."""
    counters = of(without(page_text(PAGE), "tgi_request_failure")).counters
    assert [counters[f"requests_{what}"] for what in ("finished", "failed", "aborted")] == [200, 0, 0]
    assert (counters["admission_rejections"], counters["http_requests_refused"]) == (0, 0)
    first = of(without(page_text(PAGE), "tgi_request_failure", "tgi_request_success")).counters
    assert (first["requests_arrived"], first["requests_finished"]) == (220, 0)


def test_before_the_first_request_it_is_known_and_says_nothing() -> None:
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
    assert isinstance(arrived, Reading)
    assert isinstance(completed, Reading)
    assert arrived.value == pytest.approx(12 / SECONDS)
    assert completed.value == pytest.approx(10 / SECONDS)


def test_the_time_to_first_token_lies_between_the_queue_and_the_whole_request() -> None:
    zero = re.sub(r"(?m)^(tgi_\S+(_bucket\{.*\}|_sum|_count)) \S+$", r"\1 0", page_text(PAGE))
    readings = read_all(windows.diff_snapshots(of(zero), of(page_text(PAGE), START + SECONDS)))
    ttft, queue, e2e = readings["ttft_p99_seconds"], readings["queue_p99_seconds"], readings["e2e_p99_seconds"]
    assert isinstance(ttft, Reading)
    assert isinstance(queue, Reading)
    assert isinstance(e2e, Reading)
    assert (ttft.value, ttft.low, ttft.high) == (None, queue.low, e2e.high)


def test_what_it_does_not_tell_is_a_gap() -> None:
    readings = read_all(windows.diff_snapshots(of(page_text(PAGE)), of(later(page_text(PAGE)), START + SECONDS)))
    for signal in ("kv_utilization", "eviction_rate", "prefix_hit_ratio", "itl_p99_seconds", "prefill_p99_seconds"):
        found = readings[signal]
        assert isinstance(found, Missing), signal
        assert found.gap is Gap.NOT_EXPOSED


# --- table and page hold each other


def test_every_family_of_the_page_is_read_or_left_alone_for_a_reason() -> None:
    found = uses(page_text(PAGE)).values()
    assert unexplained(TGI, found) == []
    said = {family for use in found for family in use.families}
    page = of(page_text(PAGE))
    assert {stem(family) for family in (*page.counters, *page.histograms, *page.gauges)} == said


def test_every_row_is_met_on_the_page() -> None:
    met = {(use.name, family) for use in uses(page_text(PAGE)).values() for family in use.families}
    assert {(row.source, row.family) for row in TGI.rows} <= met
    for row in TGI.rows:
        assert BY_NAME[row.family].kind is row.kind


def test_every_name_of_its_reference_is_on_the_page() -> None:
    """docs/source/reference/metrics.md of TGI 3.3."""
    of_batches = "current_max_tokens current_size decode_duration filter_duration forward_duration inference_count"
    of_batches += " inference_duration inference_success next_size"
    of_requests = "count duration generated_tokens inference_duration input_length max_new_tokens"
    of_requests += " mean_time_per_token_duration queue_duration skipped_tokens success validation_duration"
    names = {f"tgi_batch_{n}" for n in of_batches.split()} | {f"tgi_request_{n}" for n in of_requests.split()}
    assert names | {"tgi_queue_size"} <= set(uses(page_text(PAGE)))
