"""Reader of GuideLLM's report in JSON: the shape of 0.3 and of `metadata.version` 2 (0.8).

Keys ending in `_ms` are milliseconds; `request_latency` is in seconds. Each entry of `benchmarks` is a load.
`inter_token_latency_ms` is (last - first) / (n - 1) of a request, which is TPOT. The report has no gap between two
tokens. `time_per_output_token_ms` changed its meaning between the versions (PEERS 3.2, item 5a). Requests per second
are the mean: their percentiles are of single intervals (item 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from agent.benchmarks.run_model import TRACE, BenchmarkRun, Measured, Text, file_places
from agent.errors import NotAResultError


class EntryRun(BenchmarkRun):
    """One entry of `benchmarks`. Requests in flight at the end are `incomplete`; `set_point` refuses too many."""

    model_config = file_places(
        completed_rps="metrics/requests_per_second/successful/mean",
        requests=("metrics/request_totals/successful", "request_totals/successful"),
        failed=("metrics/request_totals/errored", "request_totals/errored"),
        cut_off=("metrics/request_totals/incomplete", "request_totals/incomplete"),
        duration_seconds="duration",
        latency="metrics/request_latency/successful",
        ttft="metrics/time_to_first_token_ms/successful",
        tpot="metrics/inter_token_latency_ms/successful",
        output_tokens_per_second="metrics/output_tokens_per_second/successful/mean",
        started_at="start_time",
        ended_at="end_time",
        model=("config/backend/model", "worker/backend_model"),
        prompt_tokens="metrics/prompt_token_count/successful",
        generation_tokens="metrics/output_token_count/successful",
        kind=tuple(f"{place}/strategy/{key}" for place in ("config", "args") for key in ("type_", "kind")),
        **{
            name: (f"config/strategy/{name}", f"args/strategy/{name}")
            for name in ("rate", "streams", "max_concurrency")
        },
    )
    tool: ClassVar[str] = "guidellm"
    milliseconds: ClassVar[tuple[str, ...]] = ("ttft", "tpot")

    kind: Text = ""
    rate: Measured = None
    streams: Measured = None
    max_concurrency: Measured = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        kind = self.kind
        closed = {"synchronous": 1.0, "concurrent": self.streams, "throughput": self.max_concurrency}
        if kind in ("constant", "poisson"):
            self.requested_rps = self.rate
            if self.requested_rps is None:
                raise ValueError("has a strategy without its rate")
        elif kind in closed:
            self.clients = closed[kind]
            # Throughput without a limit sends all requests at once.
            self.burst = self.clients is None
        elif kind:
            self.remarks.append(TRACE.format(kind=f"of strategy {kind[:40]}"))
        if not self.burst and not self.remarks:
            self.set_loop()
        if self.duration_seconds is None and self.started_at and self.ended_at:
            self.duration_seconds = max(self.ended_at - self.started_at, 0.0) or None
        return self

    @classmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the entries of `benchmarks`, or the metadata, are marked as GuideLLM's."""
        entries, about = data.get("benchmarks"), data.get("metadata")
        if isinstance(about, dict) and "guidellm_version" in about:
            return isinstance(entries, list)
        first = entries[0] if isinstance(entries, list) and entries else None
        metrics = first.get("metrics") if isinstance(first, dict) else None
        return isinstance(metrics, dict) and "requests_per_second" in metrics

    @classmethod
    def read_all(cls, location: str, data: Mapping[str, Any], errors: list[NotAResultError]) -> list[Self]:
        """Return the runs of a report. Beside open loops, a closed one has none.

        GuideLLM's sweep begins with one client and then all requests at once, to find the rates between. One client has
        no queue and is the lowest load. More clients are a burst. Neither makes the curve a closed loop.
        """
        runs = []
        for index, entry in enumerate(data["benchmarks"]):
            runs += super().read_all(f"{location}: benchmarks[{index}]", entry, errors)
        if any(run.loop == "open" for run in runs):
            for run in (run for run in runs if run.loop == "closed"):
                run.loop, run.burst = None, run.clients != 1
                if not run.burst:
                    run.remarks.append("one client at a time, the lowest load of a sweep whose others are open loops")
        return runs
