"""Result files of benchmarks and tables of AIConfigurator, written and read for tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.benchmarks.formats import read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError


def read_results(path: Path) -> tuple[BenchmarkRun, ...]:
    """Return all loads of a file in its order. Raise the first error of a load too."""
    found, others = read_all_results((path,))
    if others:
        raise others[0]
    return tuple(found)


def write_document(folder: Path, document: object) -> Path:
    """Write the document as the result file of a run and return its path."""
    path = folder / "run.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read_document(folder: Path, document: object) -> BenchmarkRun:
    """Return the one load of a document."""
    (run,) = read_results(write_document(folder, document))
    return run


def explain_refusal(folder: Path, document: Any) -> str:
    """Return why a document is no load. The sentence names the file."""
    with pytest.raises(BenchmarkError) as caught:
        read_results(write_document(folder, document))
    assert str(caught.value).startswith(f"{folder / 'run.json'}: ")
    return caught.value.text


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
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path
