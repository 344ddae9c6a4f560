"""Reader of AIConfigurator's `pareto.csv` and `best_config_topn.csv` (ai-dynamo/aiconfigurator, 0.4 to 0.12).

A row is a predicted load of one replica in one configuration. Times are means in milliseconds, `seq/s` completed rps.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from pydantic import model_validator

from agent.benchmarks.run_model import BenchmarkRun, Count, Measured, at_places, file_places, to_whole
from agent.errors import BenchmarkError, ConfigError

COLUMNS = frozenset({"isl", "osl", "ttft", "tpot", "concurrency", "tokens/s/gpu"})
"""Columns that every table of AIConfigurator has."""

NO_CURVE = ("phase", "(p)tp", "(a)workers", "generation_latency")
"""Columns of attention and feed-forward layers apart (AFD), disagg, a pool of encoders (EPD), and static batches."""

LENGTHS = ("isl", "osl", "prefix")
NUMBERS = ("seq_per_s", "concurrency", "ttft", "tpot", "request_latency", "num_total_gpus", *LENGTHS, "tp", "pp", "dp")


class PredictedRun(BenchmarkRun):
    """One row. Its `requests` are 0: nothing was measured."""

    model_config = file_places(
        *("latency", "ttft", "tpot", "prompt_tokens", "generation_tokens", "model", "setup", "configuration"),
        completed_rps="seq_per_s",
        clients="concurrency",
        gpus="num_total_gpus",
        engine="backend",
        gpu="system",
    )
    origin: ClassVar[str] = "predicted"
    milliseconds: ClassVar[tuple[str, ...]] = ("latency", "ttft", "tpot")

    requests: Count = 0
    prefix: Measured = at_places("prefix")

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, data: Any) -> Any:
        for column in NO_CURVE:
            if column in data:
                raise ValueError(f"has the column {column}; a curve is of whole requests on one replica (agg)")
        row = {str(column).replace("/", "_per_"): value for column, value in data.items()}
        for column in NUMBERS:
            row[column] = row.get(column) or None
            # Text that is no number stays, to be refused.
            with suppress(TypeError, ValueError, OverflowError):
                row[column] = to_whole(float(row[column]))
        version = row.get("version") or ""
        parts = [f"{row.get('backend')} {version}", row.get("system"), row.get("parallel")]
        for column in ("gemm", "kvcache", "fmha", "moe", "comm", *LENGTHS):
            parts.append(f"{column} {row.get(column)}")
        setup = {"engine_version": version or None, "tensor_parallel": row["tp"]}
        setup |= {"pipeline_parallel": row["pp"], "data_parallel": row["dp"]}
        return {
            **row,
            "latency": {"mean": row["request_latency"]},
            "ttft": {"mean": row["ttft"], "p50": row["ttft"]},
            "tpot": {"mean": row["tpot"], "p50": row["tpot"]},
            "prompt_tokens": {"mean": row["isl"]},
            "generation_tokens": {"mean": row["osl"]},
            "setup": setup,
            "configuration": ", ".join(map(str, parts)),
        }

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.set_loop()
        prompt, output = self.prompt_tokens.mean, self.generation_tokens.mean
        # `tokens/s` leaves out the first token of each request.
        self.output_tokens_per_second = self.completed_rps * (output or 0.0) or None
        if self.prefix and prompt:
            self.prefix_hit_ratio = self.prefix / prompt
        first, each = self.ttft.mean, self.tpot.mean
        if first and each and output:
            seconds = first + each * (output - 1)
            whole = self.latency.mean or seconds
            if abs(seconds - whole) > 0.01 * whole:
                text = f"TTFT + TPOT x (osl - 1) is {seconds:.4g} s, request_latency {whole:.4g} s"
                raise ValueError(f"has a TPOT that does not fit: {text}; run AIConfigurator without --inclusive-tpot")
            self.latency = self.latency.model_copy(update={"mean": whole})
        text = (
            "predicted means of TTFT and TPOT stand as their P50; no P99 is predicted, so give operating_point by hand"
        )
        self.remarks += [f"predicted for {self.configuration}", text]
        return self


def decode_table(path: Any, text: str) -> list[tuple[str, Mapping[str, Any]]] | None:
    """Return the rows of a table with their locations, None where its first line lacks a column.

    Raise BenchmarkError where it is no whole table.
    """
    if COLUMNS.difference(text.partition("\n")[0].strip().split(",")):
        return None
    # On demand: the other formats need no table.
    import pandas

    try:
        table = pandas.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise BenchmarkError(path, f"is no valid CSV ({error})") from None
    if not isinstance(table.index, pandas.RangeIndex):
        raise BenchmarkError(path, "is no valid CSV (a row has more fields than the header)")
    rows: list[Mapping[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    return [(f"{path}: line {number}", row) for number, row in enumerate(rows, 2)]


def select_configuration(runs: Sequence[BenchmarkRun], wanted: str) -> list[BenchmarkRun]:
    """Return the measured runs, and those predicted for the one configuration whose parts begin as `wanted`.

    Of the rows of one load the fastest is taken. Raise BenchmarkError with how they differ where not one fits.
    """
    names = {run.configuration: run.source for run in runs if run.configuration}
    if not names and wanted:
        raise ConfigError(("--configuration: no file has configurations to choose from",))
    parts = {name: name.split(", ") for name in names}
    fitting = list(names)
    for beginning in wanted.split(","):
        fitting = [name for name in fitting if any(part.startswith(beginning.strip()) for part in parts[name])]
    if names and len(fitting) != 1:
        common = set.intersection(*map(set, parts.values()))
        listed = [", ".join(part for part in parts[name] if part not in common) for name in fitting or names]
        held = f"{len(fitting)} configurations fit" if fitting else "no configuration fits"
        text = f"{held}, and a curve is of one: choose with --configuration PARTS: {'; '.join(listed)}"
        raise BenchmarkError(next(iter(names.values())), text)
    best: dict[float | None, BenchmarkRun] = {}
    for run in runs:
        if run.configuration in fitting and run.completed_rps > best.setdefault(run.clients, run).completed_rps:
            best[run.clients] = run
    return [run for run in runs if not run.configuration or run is best.get(run.clients)]
