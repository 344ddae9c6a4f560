"""The formats of benchmark results that sizewatch reads, and the one door to them, `read_results`.

Owns the list and which format a file is in, told by what it holds and never by its name. A new tool is one file with
`recognises` and `read`, and a row of FORMATS; its name is what `--from` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.benchmarks import aiperf, guidellm, inference_perf, vllm_bench
from agent.benchmarks.documents import decode_file
from agent.benchmarks.results import BenchmarkMeasurement
from agent.benchmarks.typed_fields import ResultFields
from agent.errors import BenchmarkError

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFormat:
    """`name` is what `--from` takes, `title` the tool as it calls itself with its article."""

    name: str
    title: str
    article: str
    recognises: Callable[[ResultFields], bool]
    read: Callable[[ResultFields], tuple[BenchmarkMeasurement, ...]]


FORMATS = (
    BenchmarkFormat(
        name=vllm_bench.NAME,
        title="vllm bench serve",
        article="a",
        recognises=vllm_bench.recognises,
        read=vllm_bench.read,
    ),
    BenchmarkFormat(
        name=inference_perf.NAME,
        title="inference-perf",
        article="an",
        recognises=inference_perf.recognises,
        read=inference_perf.read,
    ),
    BenchmarkFormat(
        name=guidellm.NAME, title="GuideLLM", article="a", recognises=guidellm.recognises, read=guidellm.read
    ),
    BenchmarkFormat(name=aiperf.NAME, title="AIPerf", article="an", recognises=aiperf.recognises, read=aiperf.read),
)

NAMES = tuple(row.name for row in FORMATS)


def read_results(path: Path, tool: str = AUTO) -> tuple[BenchmarkMeasurement, ...]:
    """Every load that a result file holds, in its order; at least one.

    `tool` is a name of FORMATS or "auto". Raises BadBenchmark, one sentence with file, place and reason, where the
    file cannot be read or decoded, is of another tool or of none, or says what cannot be; ValueError for an unknown
    `tool`.
    """
    wanted = next((row for row in FORMATS if row.name == tool), None)
    if wanted is None and tool != AUTO:
        raise ValueError(f"{tool} is no format: {', '.join(NAMES)}")
    found: list[BenchmarkMeasurement] = []
    for part in decode_file(path):
        row = _format_of(part)
        if wanted is not None and row is not wanted:
            raise part.bad(f"is {row.article} {row.title} report, not {wanted.title}'s")
        found += row.read(part)
    if not found:
        raise BenchmarkError(path, "holds no benchmark")
    return tuple(found)


def _format_of(part: ResultFields) -> BenchmarkFormat:
    row = next((row for row in FORMATS if row.recognises(part)), None)
    if row is None:
        raise part.bad(f"is no benchmark result that sizewatch reads ({', '.join(NAMES)})")
    return row
