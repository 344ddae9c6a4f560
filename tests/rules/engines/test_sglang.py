"""SGLang's pages, 0.4.1 to 0.5.23: whose they are, however they are spelt, whatever runs behind them."""

import re

import pytest
from making import START, page_text, read
from sglang_pages import NEWEST, OURS, REAL, STARTUP, amounts, of_ranks, with_value

from agent.scrape.scrapers import PageReader
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading


@pytest.mark.parametrize(
    "only", ["token_usage", "num_queue_reqs", "prompt_tokens_total", "e2e_request_latency_seconds"]
)
def test_one_of_its_names_is_enough(only: str) -> None:
    lines = page_text("sglang-0.4.6.prom").splitlines(keepends=True)
    assert read("".join(line for line in lines if f"sglang:{only}" in line)).engine == "sglang"


def through_router(text: str, *workers: str) -> str:
    """As sgl-router's /engine_metrics prints it: every ':' of the page is '_', each worker's series have its address."""
    lines = text.replace(":", "_").splitlines(keepends=True)
    found = [line for line in lines if line.startswith("#")]
    for worker in workers:
        for line in lines:
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            labelled = name[:-1] + f',worker_addr="{worker}"}}' if "{" in name else f'{name}{{worker_addr="{worker}"}}'
            found.append(f"{labelled} {value}")
    return "".join(found)


@pytest.mark.parametrize("name", OURS)
def test_router_page_of_one_worker_reads_alike(name: str) -> None:
    address = "http://10.0.0.1:30000"
    routed = read(through_router(page_text(name), address))
    plain = read(page_text(name))
    assert amounts(routed) == amounts(plain)
    assert dict(routed.facts) | {"worker_addr": address} == dict(plain.facts) | {"worker_addr": address}


def test_router_workers_are_replicas() -> None:
    text = page_text(REAL)
    alone = read(text)
    both = PageReader("sglang").read_engines(
        through_router(text, "http://10.0.0.1:30000", "http://10.0.0.2:30000").encode(), alone.t
    )
    assert list(both) == ["10.0.0.1:30000", "10.0.0.2:30000"]
    for page in both.values():
        assert (page.counters, page.histograms, page.gauges) == (alone.counters, alone.histograms, alone.gauges)
        assert page.problems == ()


def test_its_first_requests_are_counted_from_zero() -> None:
    """Two pages of one process; histograms that were not there are a gap and no increase."""
    window = windows.diff_snapshots(read(page_text(STARTUP), START), read(page_text(REAL), START + 15))
    assert window.counters["requests_finished"] == 289
    assert window.counters["generation_tokens"] == 36786
    assert window.explain_missing("e2e_seconds") is not Gap.NO_TRAFFIC


def test_sglang_without_traffic_and_across_restart() -> None:
    found = read_all(windows.diff_snapshots(read(page_text(STARTUP), START), read(page_text(STARTUP), START + 15)))
    assert found["completed_rps"] == Reading(value=0.0, low=0.0, high=0.0, n=0)
    assert found["eviction_rate"] == Missing(gap=Gap.NO_TRAFFIC)
    assert found["prefix_hit_ratio"] == Missing(gap=Gap.NO_TRAFFIC)
    before, after = read(page_text(REAL), START), read(page_text(STARTUP), START + 15)
    assert (before.started_at, before.ready_at) == (None, None)
    assert windows.diff_snapshots(before, after).explain_missing("requests_finished") is Gap.RESTARTED


def test_unstreamed_requests_have_no_ttft() -> None:
    text = page_text(REAL).replace('is_streaming="true"', 'is_streaming="no"')
    assert "ttft_seconds" not in read(text).histograms


@pytest.mark.parametrize(
    ("name", "family"), [("num_running_reqs", "requests_running"), ("num_queue_reqs", "requests_waiting")]
)
def test_priorities_are_not_counted_twice(name: str, family: str) -> None:
    """--enable-priority-scheduling: the total has priority="", each priority a series of its own."""
    text = page_text(REAL)
    (line,) = (line for line in text.splitlines() if line.startswith(f"sglang:{name}{{"))
    labels = line.rpartition(" ")[0]
    lines = (
        labels.replace("pp_rank", f'priority="{p}",pp_rank') + f" {n}" for p, n in (("", 7.0), ("0", 4.0), ("1", 3.0))
    )
    assert read(text.replace(line, "\n".join(lines))).gauges[family] == 7.0


@pytest.mark.parametrize("rank", ["tp_rank", "pp_rank", "moe_ep_rank"])
def test_ranks_of_one_engine_repeat_one_number(rank: str) -> None:
    """--enable-metrics-for-all-schedulers."""
    for name in (NEWEST, REAL, "sglang-0.5.3.prom"):
        assert read(of_ranks(page_text(name), rank, 3)) == read(page_text(name))


def test_data_parallel_sglang_adds_up() -> None:
    text = with_value(page_text(REAL), "token_usage", "0.5")
    two = of_ranks(text, "dp_rank", 2)
    two, times = re.subn(r'(?m)^(sglang:token_usage\{.*dp_rank="1".*) \S+$', r"\1 0.9", two)
    assert times == 1
    one, both = read(text), read(two)
    assert both.gauges["kv_utilization"] == pytest.approx(0.7)
    assert both.gauges["kv_utilization_max"] == 0.9
    for family in ("engine_steps", "prefix_queried_tokens", "prefix_hit_tokens"):
        assert both.counters[family] == 2 * one.counters[family], family
    assert both.counters["requests_finished"] == one.counters["requests_finished"]
    assert both.histograms["queue_seconds"].counts[-1] == 2 * one.histograms["queue_seconds"].counts[-1]
