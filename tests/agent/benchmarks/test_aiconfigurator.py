"""AIConfigurator's tables: rows of the public columns, written by hand, whose numbers obey Little's law."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from result_files import predicted_row, read_results, write_table

from agent.benchmarks.aiconfigurator import select_configuration
from agent.benchmarks.curves import curve_of, differences
from agent.errors import BenchmarkError, ConfigError
from rules.plan.schema import TierPlan

AGG = predicted_row()
NAME = "vllm 0.24.0, h200_sxm, tp2pp1dp1etp1ep1, gemm fp8_block, kvcache fp8, fmha bfloat16, moe fp8, comm half"


def refusal(path: Path) -> str:
    with pytest.raises(BenchmarkError) as caught:
        read_results(path)
    return caught.value.text


def test_row_is_a_load_of_one_replica(tmp_path: Path) -> None:
    (run,) = read_results(write_table(tmp_path, [predicted_row(16, prefix=250)]))
    assert (run.tool, run.origin, run.loop, run.model) == ("aiconfigurator", "predicted", "closed", "org/m-70b")
    assert run.configuration == f"{NAME}, isl 1000, osl 101, prefix 250"
    # 16 requests of 0.18 s + 100 x 0.0216 s are 6.838 rps; means are never a P99.
    assert run.point.model_dump(exclude_none=True) == {
        "completed_rps": pytest.approx(6.838, abs=0.001),
        "concurrency": 16,
        "censored": False,
        "ttft_p50_seconds": pytest.approx(0.18),
        "tpot_p50_seconds": pytest.approx(0.0216),
        "output_tokens_per_second": pytest.approx(690.6, abs=0.1),
        "prompt_tokens_mean": 1000.0,
        "prefix_hit_ratio": 0.25,
    }
    assert run.setup.model_dump(exclude_none=True) == {
        "engine_version": "0.24.0",
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "data_parallel": 1,
    }
    assert any("predicted means of TTFT and TPOT stand as their P50" in text for text in run.remarks)


def test_older_table_lacks_request_latency(tmp_path: Path) -> None:
    older = {key: value for key, value in AGG.items() if key not in ("request_latency", "cp", "power_w")}
    (run,) = read_results(write_table(tmp_path, [older]))
    assert run.latency.mean == pytest.approx(float(AGG["request_latency"]) / 1000)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"(p)tp": 1, "(d)tp": 2}, "is of prefill and decode apart (disagg)"),
        ({"(a)workers": 2, "(e)workers": 1}, "is of workers with a pool of encoders (EPD)"),
        ({"phase": "decode"}, "is of attention and feed-forward layers apart (AFD)"),
        ({"generation_latency": 7.0}, "is of one batch without arrivals (static)"),
        ({"ttft": "much"}, "has a wrong value: ttft.mean: input should be a valid number"),
        ({"tpot": -1}, "has a wrong value: tpot.mean: input should be greater than or equal to 0, which cannot be"),
        ({"seq/s": ""}, "has a wrong value: seq_per_s: input should be a valid number"),
        ({"seq/s": "inf"}, "has a wrong value: seq_per_s: input should be a finite number"),
        ({"seq/s": 0}, "does not make a point of a curve: completed_rps: must be greater than 0"),
        ({"seq/s": 99.0}, "tells what excludes each other: 99 rps x 2.18 s are 215.8 requests at once"),
        ({"tpot": 23.56}, "has a TPOT that does not fit: TTFT + TPOT x (osl - 1) is 2.476 s, request_latency 2.18 s"),
    ],
)
def test_row_without_a_place_is_named(columns: dict[str, object], said: str, tmp_path: Path) -> None:
    row = {**predicted_row(4), "ttft": 120.0, "tpot": 20.6, "request_latency": 2180.0, "seq/s": 1.835, **columns}
    assert refusal(write_table(tmp_path, [row])).startswith(said)


PREFILL = {"prefill_isl": [100], "prefill_ttft": [9.0], "prefill_thpt_per_gpu": [1e4]}
HEAD = ",".join(AGG)
REFUSED: dict[str, str] = {
    json.dumps(PREFILL): "is of prefill alone (Dynamo's profiler)",
    json.dumps({"x_kv_usage": [0.1], "z_itl": [9.0]}): "is of decode alone (Dynamo's profiler)",
    "PK\x03\x04prefill_isl.npy": "is an archive, such as raw_data.npz of Dynamo's profiler: not imported",
    "a,b\n1,2\n": "is no JSON",
    "isl,osl,concurrency,tokens/s/gpu\n1,2,3,4\n": "lacks columns of AIConfigurator's tables: tpot, ttft",
    f"{HEAD}\n": "holds no benchmark",
    f"{HEAD}\norg/m-70b,1000\n": "has a wrong value: seq_per_s",
    f'{HEAD}\n"never closed\n': "is no valid CSV (Error tokenizing data.",
    f"{HEAD}\n{HEAD},1,2\n": "is no valid CSV (a row has more fields than the header)",
}
"""Files of Dynamo's profiler, other tables and broken ones, and why they are refused."""


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=REFUSED.values())
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pareto.csv"
    path.write_text(text)
    assert refusal(path).startswith(said)


def test_several_configurations_need_a_choice(tmp_path: Path) -> None:
    rows = [predicted_row(load, tensor=tensor) for tensor in (1, 2) for load in (4, 8)]
    runs = read_results(write_table(tmp_path, [*rows, predicted_row(8, tensor=2, kvcache="bfloat16")]))
    with pytest.raises(BenchmarkError) as caught:
        select_configuration(runs, "")
    assert str(caught.value) == (
        f"{tmp_path / 'pareto.csv'}: 3 configurations fit, and a curve is of one: choose with --configuration PARTS: "
        "tp1pp1dp1etp1ep1, kvcache fp8; tp2pp1dp1etp1ep1, kvcache fp8; tp2pp1dp1etp1ep1, kvcache bfloat16"
    )
    with pytest.raises(BenchmarkError, match="2 configurations fit"):
        select_configuration(runs, "tp2pp1")
    with pytest.raises(BenchmarkError, match="no configuration fits"):
        select_configuration(runs, "tp16")
    assert {run.setup.tensor_parallel for run in select_configuration(runs, "tp1pp1")} == {1}
    assert len(select_configuration(runs, "tp2pp1dp1etp1ep1, kvcache bfloat16")) == 1


def test_load_given_twice_keeps_its_best(tmp_path: Path) -> None:
    slower = {**predicted_row(8, ttft=300.0), "ctx_tokens": 8000}
    runs = read_results(write_table(tmp_path, [predicted_row(4), slower, predicted_row(8)]))
    points = curve_of(select_configuration(runs, "")).curve.points
    assert [(point.concurrency, point.ttft_p50_seconds) for point in points] == [(4, 0.12), (8, 0.14)]


def test_measured_and_predicted_never_mix(tmp_path: Path) -> None:
    measured = {"request_throughput": 9.0, "completed": 900, "model_id": "m-70b", "backend": "vllm"}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({**measured, "max_concurrency": 4, "request_rate": "inf"}))
    runs = [*read_results(path), *read_results(write_table(tmp_path, [AGG]))]
    with pytest.raises(BenchmarkError, match=r"is of origin measured, .*line 2 predicted: a curve is of one origin"):
        curve_of(select_configuration(runs, ""))
    with pytest.raises(ConfigError, match="no file has configurations"):
        select_configuration(runs[:1], "tp2")


def test_another_setup_than_the_tier_is_refused(tmp_path: Path) -> None:
    imported = curve_of(read_results(write_table(tmp_path, [AGG])))
    tier = {
        "model": "m-70b",
        "engine": "vllm",
        "slo": {"ttft_p99_seconds": 2.0},
        "gpu": {"product": "NVIDIA H200", "per_replica": 2},
    }
    assert differences(imported, TierPlan.model_validate(tier)) == []
    other = {**tier, "engine": "sglang", "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 4}}
    assert [difference[1:] for difference in differences(imported, TierPlan.model_validate(other))] == [
        ("the engine vllm", "engine is sglang"),
        ("the GPU h200_sxm", "gpu.product is NVIDIA H100 80GB HBM3"),
        ("2 GPUs a replica", "gpu.per_replica is 4"),
        ("a tensor parallel degree of 2", "gpu.per_replica is 4"),
    ]
