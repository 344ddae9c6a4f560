"""SGLang's pages, 0.4.1 to 0.5.23: whose they are, however they are spelt, and what every renamed name means."""

import re

import pytest
from making import START, page_text, read
from table_checks import with_value, without_lines

from agent.scrape.scrapers import PageReader
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot

RELEASES = ("0.4.6", "0.5.3", "0.5.10", "0.5.23")
NEWEST, STARTUP, REAL = "sglang-0.5.23.prom", "sglang_startup.prom", "sglang_after_load.prom"
OURS = [f"sglang-{release}.prom" for release in RELEASES] + [STARTUP, REAL]

RANKS = 'moe_ep_rank="0",pp_rank="0",tp_rank="0"'


def amounts(page: Snapshot) -> tuple[object, ...]:
    """What a page says, without when."""
    return page.counters, page.histograms, page.gauges, page.problems


def printed(text: str, series: str) -> float:
    """The sum of all series whose printed name and labels match."""
    found = re.findall(rf"(?m)^{series} (\S+)$", text)
    assert found, series
    return sum(map(float, found))


def of_ranks(text: str, label: str, count: int) -> str:
    """The page once more for every other rank: series with rank labels get that label with 0, 1, ..."""
    lines = text.splitlines(keepends=True)
    ranked = [line for line in lines if RANKS in line and not line.startswith("#")]
    for rank in range(1, count):
        if label == "dp_rank":
            lines += [line.replace('tp_rank="0"', f'tp_rank="{rank}",dp_rank="{rank}"') for line in ranked]
        else:
            lines += [line.replace(f'{label}="0"', f'{label}="{rank}"') for line in ranked]
    return "".join(lines)


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
    text = with_value(page_text(REAL), "sglang:token_usage{", "0.5")
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


def test_prefix_hits_count_at_prefill() -> None:
    """Real: 73013 + 5 tokens by prefills, 73017 by finished requests (one prompt of one token never finished)."""
    page = read(page_text(REAL))
    assert (page.counters["prefix_queried_tokens"], page.counters["prefix_hit_tokens"]) == (73018, 5)
    more = page_text(REAL)
    for mode in ("host_hit", "storage_hit"):
        more, times = re.subn(
            rf'(?m)^(sglang:prefill_effective_tokens_total\{{.*mode="{mode}".*) \S+$', r"\1 100.0", more
        )
        assert times == 1
    assert read(more).counters["prefix_hit_tokens"] == 205
    assert read(more).counters["prefix_queried_tokens"] == 73218


def test_old_prefix_hits_count_with_finished() -> None:
    text = without_lines(page_text(REAL), "prefill_effective_tokens")
    page = read(text)
    assert (page.counters["prefix_queried_tokens"], page.counters["prefix_hit_tokens"]) == (73017, 5)


def test_cached_token_sources_add_up() -> None:
    """collector.py: a request adds to `total` only where it has no details by source."""
    real = without_lines(page_text(REAL), "prefill_effective_tokens")
    (line,) = (line for line in real.splitlines() if line.startswith("sglang:cached_tokens_total{"))
    total = line.replace('"device"', '"total"').rpartition(" ")[0] + " 7.0"
    assert read(real.replace(line, f"{line}\n{total}")).counters["prefix_hit_tokens"] == 12


def test_no_prefix_hit_yet_is_zero() -> None:
    text = without_lines(page_text(REAL), "prefill_effective_tokens", "cached_tokens")
    assert read(text).counters["prefix_hit_tokens"] == 0


@pytest.mark.parametrize("release", RELEASES)
def test_the_hit_rate_gauge_is_not_used(release: str) -> None:
    text = page_text(f"sglang-{release}.prom")
    assert amounts(read(with_value(text, "sglang:cache_hit_rate{", "99.0"))) == amounts(read(text))


def test_retraction_is_a_preemption() -> None:
    text = page_text(REAL)
    labels = f'{{engine_type="unified",model_name="tiny",{RANKS}}}'
    counted = (
        f"{text}# TYPE sglang:num_retracted_requests_total counter\nsglang:num_retracted_requests_total{labels} 3.0\n"
    )
    assert read(with_value(counted, "sglang:num_retracted_reqs{", "9.0")).counters["preemptions"] == 3
    assert read(with_value(text, "sglang:num_retracted_reqs{", "9.0")).counters["preemptions"] == 0


def test_latencies_count_finished_before_counters() -> None:
    text = without_lines(page_text("sglang-0.4.6.prom"), "num_requests_total", "spec_accept_length", "cached_tokens")
    assert read(text).counters["requests_finished"] == 40
    assert "prefix_hit_tokens" not in read(text).counters


@pytest.mark.parametrize(
    ("status", "family"),
    [("400", "http_requests_refused"), ("503", "http_requests_failed"), ("503", "admission_rejections")],
)
def test_an_answer_counts_by_its_status(status: str, family: str) -> None:
    results = 'sglang:http_responses_total{endpoint="/v1/chat/completions",method="POST",status_code="%s"} 4.0\n'
    health = 'sglang:http_responses_total{endpoint="/health",method="GET",status_code="%s"} 50.0\n'
    text = page_text(REAL) + results % status + health % status
    assert read(text).counters[family] == 4
    assert read(text).counters["http_requests_ok"] == 288


def test_client_abort_is_no_refusal() -> None:
    left = 'sglang:http_responses_total{endpoint="/v1/chat/completions",method="POST",status_code="499"} 4.0\n'
    counters = read(page_text(REAL) + left).counters
    assert (counters["http_requests_refused"], counters["http_requests_failed"]) == (0, 0)


def test_transfer_failures_need_transfers() -> None:
    new = page_text("sglang-0.5.10.prom")
    assert read(new).counters["kv_transfer_failures"] == printed(new, r"sglang:num_transfer_failed_reqs_total\{.*")
    assert read(without_lines(new, "num_transfer_failed")).counters["kv_transfer_failures"] == 0
    assert "kv_transfer_failures" not in read(page_text(REAL)).counters


def test_startup_is_its_longest_process() -> None:
    assert read(page_text(STARTUP)).gauges["engine_startup_seconds"] == pytest.approx(12.1029, abs=1e-4)
    swapped = page_text(STARTUP).replace('phase="tokenizer_e2e"', 'phase="other"')
    assert read(swapped).gauges["engine_startup_seconds"] == pytest.approx(3.2103, abs=1e-4)
    text = with_value(page_text("sglang-0.5.3.prom"), "sglang:engine_startup_time{", "27.5")
    assert read(text).gauges["engine_startup_seconds"] == 27.5


def test_speculation_is_told_by_averages() -> None:
    text = page_text(REAL)
    for name, value in (("spec_accept_length", "2.5"), ("spec_accept_rate", "0.5"), ("spec_num_steps", "3.0")):
        text = with_value(text, f"sglang:{name}{{", value)
    page = read(text)
    assert [page.gauges[name] for name in ("spec_accept_length", "spec_accept_rate", "spec_steps")] == [2.5, 0.5, 3.0]
    found = read_all(windows.diff_snapshots(read(text, START), read(text, START + 15)))["speculative_acceptance"]
    assert found.value is not None
    assert found.value + found.value**2 + found.value**3 == pytest.approx(1.5)


def balance(passes: float, total: float, forward_mode: str, **ranks: int) -> str:
    """The summary as the engine prints it (metrics_collector.py 0.5.23); `ranks` besides the usual ones."""
    more = "".join(f',{name}="{number}"' for name, number in ranks.items())
    labels = f'engine_type="unified",forward_mode="{forward_mode}",model_name="tiny",{RANKS}{more}'
    return f"sglang:eplb_balancedness_count{{{labels}}} {passes}\nsglang:eplb_balancedness_sum{{{labels}}} {total}\n"


def test_expert_balance_sums_forward_modes() -> None:
    text = page_text(REAL)
    assert "expert_balance_sum" not in read(text).counters
    told = "# TYPE sglang:eplb_balancedness summary\n" + balance(40.0, 30.0, "decode") + balance(10.0, 9.0, "extend")
    page = read(text + told)
    assert (page.counters["expert_balance_sum"], page.counters["expert_balance_passes"]) == (39.0, 50.0)
    opened = page_text("sglang-0.5.23.openmetrics.txt")
    assert read(opened.replace("# EOF", told + "# EOF")).counters["expert_balance_passes"] == 50.0


def test_loaded_adapters_are_not_running_ones() -> None:
    labels = f'{{engine_type="unified",model_name="tiny",{RANKS}}}'
    text = page_text(REAL) + f"# TYPE sglang:lora_pool_slots_used gauge\nsglang:lora_pool_slots_used{labels} 3.0\n"
    assert "adapters_running" not in read(text).gauges


def test_summaries_and_gauge_histograms_do_not_disturb() -> None:
    text = page_text(REAL)
    assert 'sglang:routing_key_running_req_count{engine_type="unified",gt="0",le="1"' in text
    labels = f'engine_type="unified",forward_mode="decode",model_name="tiny",{RANKS}'
    summary = (
        "# TYPE sglang:y summary\n"
        f'sglang:y{{{labels},quantile="0.5"}} 0.9\n'
        f"sglang:y_count{{{labels}}} 4.0\nsglang:y_sum{{{labels}}} 3.5\n"
    )
    grouped = (
        "# TYPE sglang:x gaugehistogram\n"
        f'sglang:x_bucket{{{labels},le="+Inf"}} 4.0\nsglang:x_gcount{{{labels}}} 4.0\nsglang:x_gsum{{{labels}}} 3.5\n'
    )
    assert amounts(read(text + summary)) == amounts(read(text))
    opened = page_text("sglang-0.5.23.openmetrics.txt")
    assert amounts(read(opened.replace("# EOF", grouped + "# EOF"))) == amounts(read(opened))
