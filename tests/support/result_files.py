"""Result files of benchmarks and tables of AIConfigurator, written and read for tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

from agent.benchmarks.formats import read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError

SHOWN = ("loop", "model", "started_at", "ended_at", "setup", "prompt_tokens", "generation_tokens", "point", "remarks")
"""Fields of a load that a curve takes or that a reader sees."""


def read_results(path: Path) -> tuple[BenchmarkRun, ...]:
    """Return all loads of a file in its order. Raise the first error of a load too."""
    found, others = read_all_results((path,))
    if others:
        raise others[0]
    return tuple(found)


def refusal(path: Path) -> str:
    """Return why a file is refused: one line, which names the file first."""
    with pytest.raises(BenchmarkError) as caught:
        read_results(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return caught.value.text


def write_document(folder: Path, document: object) -> Path:
    """Write the document as the result file of a run and return its path."""
    path = folder / "run.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _fields(run: BenchmarkRun) -> dict[str, Any]:
    """Return what a curve takes from a load, by path, numbers with seven significant digits."""
    fields = {}
    parts = run.model_dump(mode="json", exclude_none=True, include=set(SHOWN))
    while parts:
        name, value = parts.popitem()
        if isinstance(value, dict):
            parts |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            fields[name] = float(f"{value:.7g}") if isinstance(value, float) else value
    return fields


def describe_variants(folder: Path, usual: object, variants: Mapping[str, object]) -> str:
    """Return for a golden file in which fields the loads of each document differ from the usual, or why it is refused."""
    usual_fields = _fields(read_results(write_document(folder, usual))[0])
    lines = []
    for name, document in variants.items():
        lines.append(f"{name}:")
        try:
            runs, errors = read_all_results((write_document(folder, document),))
        except BenchmarkError as error:
            runs, errors = [], [error]
        for run in runs:
            fields = _fields(run)
            if len(runs) + len(errors) > 1:
                lines.append(f"  {run.location.rpartition(': ')[2]}")
            for field in sorted(usual_fields.keys() | fields.keys()):
                if fields.get(field) != usual_fields.get(field):
                    lines.append(f"  {field}: {fields.get(field)}")
        lines += [f"  refused: {str(error).removeprefix(str(folder))}" for error in errors]
    return "\n".join(lines)


def predicted_row(load: int = 4, *, tensor: int = 2, ttft: float | None = None, **columns: Any) -> dict[str, Any]:
    """A row of `agg` at so many requests at once: TTFT 100 ms + 5 ms, TPOT 20 ms + 0.1 ms for each of them."""
    first, each, tokens = ttft or 100 + 5.0 * load, 20 + 0.1 * load, 101
    whole = first + each * (tokens - 1)
    rps = load / whole * 1000
    row = {
        "model": "org/m-70b",
        "isl": 1000,
        "osl": tokens,
        "prefix": 0,
        "concurrency": load,
        "request_rate": rps,
        "bs": load,
        "global_bs": load,
        "ttft": first,
        "tpot": each,
        "request_latency": whole,
        "seq/s": rps,
        "seq/s/gpu": rps / tensor,
        "tokens/s": rps * (tokens - 1),
        "tokens/s/gpu": rps * (tokens - 1) / tensor,
        "tokens/s/user": 1000 / each,
        "num_total_gpus": tensor,
        "tp": tensor,
        "pp": 1,
        "dp": 1,
        "moe_tp": 1,
        "moe_ep": 1,
        "cp": 1,
        "parallel": f"tp{tensor}pp1dp1etp1ep1",
        "gemm": "fp8_block",
        "kvcache": "fp8",
        "fmha": "bfloat16",
        "moe": "fp8",
        "comm": "half",
        "memory": 40.0,
        "ctx_tokens": 1000,
        "backend": "vllm",
        "version": "0.24.0",
        "system": "h200_sxm",
        "power_w": 0.0,
    }
    return {**row, **columns}


def write_table(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / "pareto.csv"
    DataFrame(rows).to_csv(path, index=False)
    return path
