"""`sizewatch inspect` over saved pages of engines and GPU exporters, live addresses and what is no page at all."""

import json
from pathlib import Path
from typing import Any

import pytest
from engine_server import answers_500, engines, is_strange, pages
from gpu_pages import MADE, MADE_PAGES, SHARED_PAGES, page_text
from paths import TESTS

from agent.cli import main
from exporters.documents.diagnosis import LISTED, NOT_TOLD
from rules.gpu_sources.registry import BY_NAME
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.signals import SIGNALS

Captured = pytest.CaptureFixture[str]

PAGES = TESTS / "pages"
SAVED = sorted(path.name for path in PAGES.iterdir() if path.suffix in (".prom", ".txt"))


def inspected(capsys: Captured, *words: str) -> tuple[int, str, str]:
    code = main.main(["inspect", *words])
    return code, *capsys.readouterr()


def as_json(capsys: Captured, page: str, *words: str) -> dict[str, Any]:
    code, out, err = inspected(capsys, page, "--format", "json", *words)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return found


@pytest.mark.parametrize("name", SAVED)
def test_every_signal_has_value_or_reason(name: str, capsys: Captured) -> None:
    found = as_json(capsys, str(PAGES / name))
    assert found["schema"] == 1
    assert list(found["signals"]) == [signal.name for signal in SIGNALS]
    for value in found["signals"].values():
        assert ("gap" in value) != ("value" in value)
    assert {family["use"] for family in found["families"]} <= {"mapped", "unread"}
    code, out, err = inspected(capsys, str(PAGES / name))
    assert (code, err) == (0, "")
    shown = out.splitlines()[0].partition(", generation ")[2]
    assert shown.casefold() == found["generation"].removeprefix("v") or shown.casefold() == found["generation"]
    assert all(f"  {signal.name} " in out for signal in SIGNALS)


@pytest.mark.parametrize(
    ("page", "signal", "starts"),
    [
        ("vllm-0.11.0.prom", "adapter_evictions_per_second", "vLLM after 0.10.2: "),
        ("vllm-0.11.0.prom", "prefix_reuse_ratio", "vLLM after 0.10.2 does not have it"),
        ("sglang-0.4.6.prom", "eviction_rate", "SGLang after 0.4.1 does not have it"),
        ("made-tgi.prom", "eviction_rate", "TGI does not preempt"),
    ],
)
def test_gap_names_the_engine_and_its_release(capsys: Captured, page: str, signal: str, starts: str) -> None:
    found = as_json(capsys, str(PAGES / page))["signals"][signal]
    assert (found["gap"], found["text"][: len(starts)]) == ("not_exposed", starts)


def test_saved_page_has_values_and_no_rates(capsys: Captured) -> None:
    page = str(PAGES / "steady_after_load.prom")
    signals = as_json(capsys, page)["signals"]
    value = signals["ttft_p99_seconds"]
    assert value["low"] <= value["value"] <= value["high"]
    assert value["n"] > 20
    for name in ("completed_rps", "prompt_tokens_per_second", "generation_tokens_per_second"):
        assert signals[name]["gap"] == "not_exposed"
    _, out, _ = inspected(capsys, page)
    assert "not_exposed: a saved page does not tell when it was saved" in out
    said = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert "read from the GPU, not from an engine's page" in said["gpu_utilization"]
    assert "one page tells no change" in said["arrival_rps"]


def test_live_page_without_start_has_no_rates(capsys: Captured) -> None:
    lines = (line for line in pages()[0].splitlines(keepends=True))
    page = b"".join(line for line in lines if b"process_start_time" not in line and b"_created" not in line)
    with engines() as (engine,):
        with_start = as_json(capsys, engine.url)["signals"]["completed_rps"]
        assert 0 < with_start["value"] < 100
        engine.pages = (page,)
        assert as_json(capsys, engine.url)["signals"]["completed_rps"]["gap"] == "not_exposed"


def test_live_address_is_asked_once(capsys: Captured, tmp_path: Path) -> None:
    saved = tmp_path / "page.prom"
    saved.write_bytes(pages()[0])
    token = tmp_path / "token"
    token.write_text("a-token")
    with engines() as (engine,):
        live = as_json(capsys, engine.url, "--bearer-token-file", str(token))
        assert len(engine.asked) == 1
        assert engine.headers["Authorization"] == "Bearer a-token"
    assert live["families"] == as_json(capsys, str(saved))["families"]


@pytest.mark.parametrize(
    ("act", "said"), [(answers_500, "http_status: "), (is_strange, "no page of an engine that sizewatch reads")]
)
def test_address_that_gives_no_page_is_refused(act: Any, said: str, capsys: Captured) -> None:
    with engines() as (engine,):
        engine.act = act
        code, out, err = inspected(capsys, engine.url)
        assert main.main(["plan", "init", engine.url]) == 2
        assert [capsys.readouterr().err.count(engine.url), err.count(engine.url)] == [1, 1]
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("sizewatch inspect: ")


def test_page_of_two_workers_is_shown_apart(capsys: Captured) -> None:
    page = str(TESTS / "cases" / "04-sidecar-two-workers" / "page.prom")
    code, out, err = inspected(capsys, page)
    assert (code, err) == (0, "")
    assert out.startswith(f"{page}: the page holds 2 engines by their label worker_addr, each is a replica\n")
    assert [line for line in out.splitlines() if line.startswith("127.0.0.1:")] == [
        "127.0.0.1:8001: SGLang, generation srt",
        "127.0.0.1:8002: SGLang, generation srt",
    ]
    told = as_json(capsys, page)
    levels = {name: one["signals"]["kv_utilization"]["value"] for name, one in told["engines"].items()}
    assert levels == {"127.0.0.1:8001": 0.11, "127.0.0.1:8002": 0.93}


def test_engine_beside_a_gpu_exporter_is_shown(tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "both.prom"
    gpu = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1",gpu="0"} 40\n'
    engine = gpu + (PAGES / SAVED[-1]).read_text()
    for text, shown in ((engine, "engine"), (gpu, "exporter"), ("\ufeff" + gpu, "exporter")):
        page.write_text(text)
        assert shown in as_json(capsys, str(page))


ALL_PAGES = {**MADE_PAGES, **SHARED_PAGES}


@pytest.mark.parametrize("name", ALL_PAGES)
def test_each_gpu_has_value_or_reason(name: str, tmp_path: Any, capsys: Captured) -> None:
    path = str(tmp_path / "page")
    (tmp_path / "page").write_text(page_text(name), encoding="utf-8")
    found = as_json(capsys, path)
    assert (found["schema"], found["exporter"]) == (1, ALL_PAGES[name])
    assert found["gpus"]
    for gpu in found["gpus"]:
        assert gpu["gpu"]
        assert list(gpu["quantities"]) == list(LISTED)
        for value in gpu["quantities"].values():
            assert ("value" in value) != bool(value.get("text"))
    assert {family["use"] for family in found["families"]} <= {"mapped", "unread"}
    code, out, err = inspected(capsys, path)
    assert (code, err) == (0, "")
    assert BY_NAME[found["exporter"]].title in out.splitlines()[0]
    assert all(out.count(f"\n  {quantity} ") == len(found["gpus"]) for quantity in LISTED)
    assert all(family["name"] in out for family in found["families"])


def test_values_have_units_and_polls(capsys: Captured) -> None:
    _, out, _ = inspected(capsys, str(MADE / "made-dcgm-mig.prom"))
    assert "GPU: NVIDIA H100 80GB HBM3 MIG 3g.40gb, GPU-5f3c/1" in out
    assert "\n  3 GPUs; " in f"\n{out}"
    (block,) = (block for block in out.split("\n\n") if block.splitlines()[0].endswith(", GPU-77aa"))
    quantities = dict(line.split(None, 1) for line in block.splitlines()[1:])
    expected = {
        "gpu_memory_total_bytes": "79.65 GiB",
        "gpu_temperature_celsius": "61 °C",
        "gpu_power_watts": "655 W (a poll)",
        "gpu_gr_engine_active": "93.0%",
        "gpu_ecc_correctable_errors": "2 errors",
        "gpu_throttled_power_seconds": "2.5 s",
        "gpu_fault_events": "not_exposed: one page tells no change; standing on it: xid-79",
        "gpu_energy_covered_seconds": f"not_exposed: {NOT_TOLD}",
    }
    assert expected.items() <= quantities.items()


def test_broken_line_refuses_saved_page(tmp_path: Any, capsys: Captured) -> None:
    lines = (MADE / "made-amd-1.5-mi300x.prom").read_bytes().splitlines(keepends=True)
    (tmp_path / "page").write_bytes(b"".join([*lines[:4], b"...\n", *lines[4:]]))
    code, out, err = inspected(capsys, str(tmp_path / "page"))
    assert (code, out) == (2, "")
    assert "line 5 is not a line of an exposition page" in err


def test_only_faults_by_code_are_unlisted() -> None:
    assert set(GPU_NAMES) - set(LISTED) == {"gpu_fault_events_by_code"}
