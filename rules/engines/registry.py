"""Registry of engine generations.

To add a generation: a file in this folder and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rules.engines.dynamo import DYNAMO_FRONTEND, DYNAMO_WORKER
from rules.engines.llamacpp import LLAMACPP
from rules.engines.sglang import SGLANG
from rules.engines.table import EngineTable, SourceRow
from rules.engines.tgi import TGI
from rules.engines.triton import TRITON
from rules.engines.trtllm import TRTLLM, TRTLLM_PLAIN
from rules.engines.vllm_v0 import VLLM_V0
from rules.engines.vllm_v1 import VLLM_V1

ENGINES: tuple[EngineTable, ...] = (
    *(VLLM_V1, VLLM_V0, SGLANG, LLAMACPP, TGI),
    *(TRTLLM, TRTLLM_PLAIN, TRITON, DYNAMO_FRONTEND, DYNAMO_WORKER),
)

PROCESS_START = "process_start_time_seconds"
"""Metric of every Prometheus client about its process, for all engines (not in multiprocess mode)."""


def normalize_name(name: str) -> str:
    """Return a printed name as tables spell it: ':' is '_' (METRICS trap 1: negotiation, Prometheus 2 and OTel rewrite
    it)."""
    return name.replace(":", "_")


def strip_wrapper_prefix(name: str, engine: EngineTable) -> str:
    """Return the name without the prefix of Ray or KServe."""
    for wrapper in engine.wrappers:
        if name.startswith(wrapper):
            return name[len(wrapper) :]
    return name


def detect_engine(
    series: Iterable[tuple[str, Mapping[str, str]]], engines: tuple[EngineTable, ...] = ENGINES
) -> EngineTable | None:
    """Return the engine generation with a signature among the (mapped name, labels) of a page, or None. A page with
    several signatures belongs to the first: a Dynamo worker passes its engine's metrics through."""
    page = tuple(series)
    return next((engine for engine in engines if any(_signed(engine, *one) for one in page)), None)


def _signed(engine: EngineTable, name: str, labels: Mapping[str, str]) -> bool:
    return (
        strip_wrapper_prefix(name, engine) in engine.signatures
        and all(label in labels for label in engine.signature_labels)
        and not any(label in labels for label in engine.signature_without)
    )


def select_rows(rows: Iterable[SourceRow], on_page: Callable[[SourceRow], bool]) -> tuple[SourceRow, ...]:
    """Return the first alternative of each family with its source on the page."""
    won: dict[str, SourceRow] = {}
    for row in rows:
        if row.family not in won and on_page(row):
            won[row.family] = row
    return tuple(won.values())


def itl_comparable(engine: str | None, engines: tuple[EngineTable, ...] = ENGINES) -> bool:
    """Return whether the engine's ITL is per output event, as in benchmarks (METRICS 1.1, 1.2; PEERS 3.2)."""
    return not any(e.name == engine and e.itl_is_per_token for e in engines)
