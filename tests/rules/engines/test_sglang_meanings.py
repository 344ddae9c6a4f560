"""What the names of SGLang's pages mean: every rename, unit and trap of 0.4.1 to 0.5.23."""

import re

import pytest
from making import START, page_text, read
from sglang_pages import RANKS, REAL, RELEASES, STARTUP, amounts, printed, with_value, without_lines

from rules.telemetry import windows
from rules.telemetry.readings import read_all


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
    assert amounts(read(with_value(text, "cache_hit_rate", "99.0"))) == amounts(read(text))


def test_retraction_is_a_preemption() -> None:
    text = page_text(REAL)
    labels = f'{{engine_type="unified",model_name="tiny",{RANKS}}}'
    counted = (
        f"{text}# TYPE sglang:num_retracted_requests_total counter\nsglang:num_retracted_requests_total{labels} 3.0\n"
    )
    assert read(with_value(counted, "num_retracted_reqs", "9.0")).counters["preemptions"] == 3
    assert read(with_value(text, "num_retracted_reqs", "9.0")).counters["preemptions"] == 0


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
    text = with_value(page_text("sglang-0.5.3.prom"), "engine_startup_time", "27.5")
    assert read(text).gauges["engine_startup_seconds"] == 27.5


def test_speculation_is_told_by_averages() -> None:
    text = page_text(REAL)
    for name, value in (("spec_accept_length", "2.5"), ("spec_accept_rate", "0.5"), ("spec_num_steps", "3.0")):
        text = with_value(text, name, value)
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
