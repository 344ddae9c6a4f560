"""Schema of the sizing plan: keys, units, ranges and `parse_plan`.

To add a key: a field with its unit in its name and a description, then `sizewatch render`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rules.plan.validation import Contradictions, impossible_means, problems_of, refuse, validation_error


def _check_day(day: str) -> str:
    try:
        date.fromisoformat(day)
    except ValueError:
        raise validation_error("must be a day of the calendar, such as '2026-11-20'") from None
    return day


SCHEMA_ID = "urn:sizewatch:plan:1"

Ratio = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
# Far above anything measured: they catch milliseconds written where seconds are asked for.
RequestSeconds = Annotated[float, Field(gt=0, le=3600)]
TokenSeconds = Annotated[float, Field(gt=0, le=60)]
Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=1)]
Availability = Annotated[float, Field(ge=0.95, le=0.99999)]
SafetyFactor = Annotated[float, Field(ge=1, le=5)]
Release = Annotated[str, Field(pattern=r"^\S{1,60}$")]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_check_day)]
TimeOfDay = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]
UtilizationKind = Literal["gr_engine_active", "sm_active", "nvml_gpu", "amd_gfx"]
# It becomes a label value and part of file names.
TierName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=63)]


def _check_pools(pools: tuple[str, ...]) -> tuple[str, ...]:
    if sorted(pools) not in (["mixed"], ["decode", "prefill"]):
        raise validation_error("must be [mixed] or [prefill, decode], each once")
    return pools


Pools = Annotated[
    tuple[Literal["mixed", "prefill", "decode"], ...], Field(strict=False, min_length=1), AfterValidator(_check_pools)
]


def optional_key(description: str) -> Any:
    """Return a key that may be left out: null is not measured, or not planned, which is not zero."""
    return Field(None, description=description)


class InvalidPlanError(ValueError):
    """A plan that cannot be used; `problems` holds every reason, each beginning with the path of its place."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _PlanSection(BaseModel):
    # Most sections are only parts of another one, and need no validator of their own: 0.2 MiB.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    rising: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Keys of which none may be below the one before it."""

    def contradictions(self) -> Contradictions:
        """Yield the problems that valid values of this section have together, by their place in it."""
        for keys in self.rising:
            given = [(key, value) for key in keys if (value := getattr(self, key)) is not None]
            for (lower, low), (upper, high) in pairwise(given):
                if high < low:
                    yield (upper,), f"must be at least {lower} ({low:.12g}), but is {high:.12g}"

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        refuse(self.contradictions())
        return self


class Precision(_PlanSection):
    weights: Text | None = optional_key("Format of the weights, such as fp8, bf16, awq-int4.")
    kv: Text | None = optional_key("Format of the KV cache, such as fp8, bf16.")


class Gpu(_PlanSection):
    product: Text = Field(description="Product name as NVML or the GPU exporter prints it.")
    per_replica: Count = Field(description="GPUs one engine instance owns (TP x PP x DP inside it).")
    interconnect: Text | None = optional_key("What joins the GPUs of one replica: nvlink, xgmi, pcie, none.")
    tensor_parallel: Count | None = optional_key("GPUs that share each layer; null: all of one copy.")
    pipeline_parallel: Count | None = optional_key("Stages that the layers are split into; null: one.")

    def contradictions(self) -> Contradictions:
        degree = (self.tensor_parallel or 1) * (self.pipeline_parallel or 1)
        if self.per_replica % degree:
            text = f"must be a multiple of tensor_parallel x pipeline_parallel ({degree}), but is {self.per_replica}"
            yield ("per_replica",), text

    @property
    def tensor_degree(self) -> int:
        """Return the GPUs that share each layer: the plan's number, else all of a replica by its stages."""
        return self.tensor_parallel or self.per_replica // (self.pipeline_parallel or 1) or 1

    @property
    def model_copies(self) -> int:
        """Return how often a replica holds the model: its data-parallel ranks."""
        return max(1, self.per_replica // (self.tensor_degree * (self.pipeline_parallel or 1)))


class Architecture(_PlanSection):
    """The KV cache of one replica. Other keys, such as layers or parameters, are a planner's own and are not read."""

    model_config = ConfigDict(extra="ignore")

    attention: Literal["full", "latent", "hybrid"] | None = optional_key("hybrid: layers share the KV blocks.")
    kv_tokens: Count | None = optional_key("Tokens that the KV cache of a replica holds by the engine's page.")


class TokenQuantiles(_PlanSection):
    rising = (("p50", "p95", "p99"),)

    mean: Positive | None = optional_key("Mean, tokens per request: what use of the fleet is measured in.")
    p50: Positive | None = optional_key("Median, tokens per request.")
    p95: Positive | None = optional_key("95th percentile, tokens per request.")
    p99: Positive | None = optional_key("99th percentile, tokens per request.")


class RequestRate(_PlanSection):
    rising = (("average", "peak"),)

    average: Positive | None = optional_key("Mean over the day, whole tier, requests per second.")
    peak: Positive | None = optional_key("The peak the tier must carry, requests per second.")


class Workload(_PlanSection):
    """Step 1 of the sizing algorithm (guide 9.1): the traffic this tier was sized for."""

    prompt_tokens: TokenQuantiles | None = optional_key("Input length.")
    generation_tokens: TokenQuantiles | None = optional_key("Output length.")
    requests_per_second: RequestRate | None = optional_key("Load of the whole tier.")
    archetype: Literal["chat", "rag", "code", "agentic", "batch"] | None = optional_key("Kind of traffic.")
    prefix_hit_ratio: Ratio | None = optional_key("Share of prompt tokens expected in the prefix cache.")
    prefix_reuse_seconds: RequestSeconds | None = optional_key("Until a prefix comes back, such as the next turn.")
    streaming: bool | None = optional_key("Whether answers are streamed to the user.")


class Slo(_PlanSection):
    """Promises to users. C_max is where the curve crosses the first of these (guide 8.3)."""

    ttft_p99_seconds: RequestSeconds | None = optional_key("P99 of the time to the first token; batch needs none.")
    tpot_p99_seconds: TokenSeconds | None = optional_key("P99 over requests of the time per output token.")
    itl_p99_seconds: TokenSeconds | None = optional_key("P99 of the gap between two output events.")
    e2e_p99_seconds: RequestSeconds | None = optional_key("P99 of the whole request, to its last token.")
    availability: Availability | None = optional_key("Share of requests served without the fleet's errors; null: 0.99.")


class Point(_PlanSection):
    """Load of the benchmark and everything measured at it. null: not measured, which is not zero."""

    rising = (("ttft_p50_seconds", "ttft_p99_seconds"), ("tpot_p50_seconds", "tpot_p99_seconds"))

    completed_rps: Positive = Field(description="Completed requests per second of one replica.")
    concurrency: Positive | None = optional_key("Requests in the system of one replica.")
    requested_rps: Positive | None = optional_key("Requests per second the generator was asked for.")
    requests: Count | None = optional_key("Requests measured at this load.")
    censored: bool = Field(False, description="Generator-limited, or requests failed: no proof of a capacity.")
    ttft_p50_seconds: RequestSeconds | None = optional_key("Median time to the first token.")
    ttft_p99_seconds: RequestSeconds | None = optional_key("P99 time to the first token.")
    tpot_p50_seconds: TokenSeconds | None = optional_key("Median over requests, time per output token.")
    tpot_p99_seconds: TokenSeconds | None = optional_key("P99 over requests, time per output token.")
    itl_p99_seconds: TokenSeconds | None = optional_key("P99 gap between two output events.")
    e2e_p99_seconds: RequestSeconds | None = optional_key("P99 time of the whole request.")
    output_tokens_per_second: Positive | None = optional_key("Output tokens per second of one replica.")
    prompt_tokens_mean: Positive | None = optional_key("Mean input length here, cached tokens included.")
    gpu_utilization: Ratio | None = optional_key("Mean GPU utilisation, of curve.gpu_utilization_kind.")
    kv_utilization: Ratio | None = optional_key("Mean share of the KV cache in use.")
    prefix_hit_ratio: Ratio | None = optional_key("Prefix cache hits / queries, tokens.")
    eviction_rate: Annotated[float, Field(ge=0)] | None = optional_key("Preemptions / finished requests.")
    speculative_acceptance: Ratio | None = optional_key("Acceptance per drafted token.")

    @property
    def generation_tokens_mean(self) -> float | None:
        """Mean output length here, tokens per request: throughput tells it, so no key repeats it."""
        return None if self.output_tokens_per_second is None else self.output_tokens_per_second / self.completed_rps


LITTLES_LAW: Literal["littles_law"] = "littles_law"
"""Origin of a concurrency that no file gave: completed rps x mean latency (Little's law)."""


class Provenance(_PlanSection):
    """Benchmarked configuration. Results without it cannot size a fleet (guide 8.2, "lock down your variables")."""

    engine_version: Release | None = optional_key("Release of the engine as it prints it, such as 0.32.0.")
    tensor_parallel: Count | None = optional_key("GPUs that shared each layer.")
    pipeline_parallel: Count | None = optional_key("Stages that the layers were split into.")
    data_parallel: Count | None = optional_key("Ranks inside the replica, each with the whole model.")
    max_num_seqs: Count | None = optional_key("Most requests that the engine was allowed to run at once.")
    kv_tokens: Count | None = optional_key("Tokens that the KV cache held by the engine's page.")
    prompt_tokens: TokenQuantiles | None = optional_key("Input length of the benchmark's requests.")
    generation_tokens: TokenQuantiles | None = optional_key("Output length of the benchmark's requests.")
    concurrency: Literal["littles_law"] | None = optional_key("littles_law: completed rps x mean latency.")
    measured_on: Day | None = optional_key("Day of the last run, UTC, in quotes: '2026-11-20'.")


class BenchmarkCurve(_PlanSection):
    """Steps 7 and 10 (guide 9.1): the sweep of one replica in its final configuration."""

    origin: Literal["measured", "predicted"] | None = optional_key("Engine or planner; null: measured.")
    loop: Literal["open", "closed"] | None = optional_key("open: arrivals at a rate. closed: clients wait for answers.")
    gpu_utilization_kind: UtilizationKind | None = optional_key("What gpu_utilization means; only like is compared.")
    source: Annotated[tuple[Text, ...], Field(strict=False)] = Field((), description="Files the points came from.")
    measured: Provenance | None = optional_key("What was benchmarked, for comparison with what runs.")
    points: Annotated[tuple[Point, ...], Field(strict=False, min_length=1)] = Field(description="In any order.")

    @property
    def remark(self) -> str:
        """Return the remark on a predicted curve, "" for a measured one."""
        return "the curve is predicted: no engine has run it" if self.origin == "predicted" else ""

    def contradictions(self) -> Contradictions:
        """Yield loads that are given twice: their place on the curve is ambiguous."""
        first: dict[tuple[float | None, ...], int] = {}
        for place, point in enumerate(self.points):
            rows = (point.concurrency, point.requested_rps)
            load = (point.completed_rps,) if rows == (None, None) else rows
            if first.setdefault(load, place) != place:
                yield ("points", place), f"has the same load as points[{first[load]}]; give each load once"


class PlannedOperatingPoint(_PlanSection):
    """Given by hand, or measured by production. A lower one than the curve's counts; a higher one only where production
    measured it, else the curve counts. The difference is a finding either way."""

    rising = (("low", "usable_rps", "high"),)

    c_max: Positive | None = optional_key("Highest concurrency of one replica within the SLO.")
    usable_rps: Positive = Field(description="Completed requests per second of one replica at c_max.")
    low: Positive | None = optional_key("Lower bound of usable_rps, where it was measured.")
    high: Positive | None = optional_key("Upper bound of usable_rps, where it was measured.")
    source: Literal["operator", "production"] | None = optional_key("Who says so; null: the operator.")


class Fleet(_PlanSection):
    """Step 11 (guide 9.1)."""

    rising = (("minimum_warm", "instances"),)

    instances: Count = Field(description="Replicas the plan deploys for the peak.")
    safety_factor: SafetyFactor | None = optional_key("Capacity by need: 1.2 for known traffic, 1.5 for a new one.")
    minimum_warm: Annotated[int, Field(ge=0)] | None = optional_key("Replicas that are never scaled away.")


class Cost(_PlanSection):
    """Step 12 (guide 9.1)."""

    gpu_hour_price: Positive = Field(description="Price of one GPU for one hour.")
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = Field(description="ISO 4217 code, such as USD.")
    planned_utilization: Share | None = optional_key("Average share of full capacity the fleet was expected to use.")
    joules_per_generated_token: Positive | None = optional_key("Energy of all GPUs by tokens; null: not compared.")


class Speculation(_PlanSection):
    method: Text | None = optional_key("Such as eagle3, ngram, draft_model.")
    draft_tokens: Count = Field(description="Tokens drafted per round.")
    acceptance: Ratio | None = optional_key("Acceptance per drafted token (not accepted / drafted).")
    draft_step_seconds: Annotated[float, Field(ge=0)] | None = optional_key("One drafted token.")
    verify_step_seconds: Positive | None = optional_key("One verification pass of the target model.")


class Lora(_PlanSection):
    max_adapters: Count = Field(description="Adapters that fit in GPU memory at once.")


class Disaggregation(_PlanSection):
    prefill_tokens_per_second: Rate = Field(description="Prompt tokens per second of one prefill replica.")
    decode_tokens_per_second: Rate = Field(description="Output tokens per second of one decode replica.")
    prefill_instances: Count | None = optional_key("Planned replicas of the prefill pool.")
    decode_instances: Count | None = optional_key("Planned replicas of the decode pool.")


class Guardrails(_PlanSection):
    """Limits that the gateway enforces (guide 9.4)."""

    max_prompt_tokens: Count | None = optional_key("Longest prompt let in.")
    max_generation_tokens: Count | None = optional_key("Longest answer allowed.")
    queue_breaker: Positive | None = optional_key("Queued requests above which load is shed.")


class Batch(_PlanSection):
    """Offline work (guide 1.4): no user waits, and a job must end in time. Its size is what the engine cannot tell."""

    deadline: TimeOfDay | None = optional_key("Time of day, UTC, at which the queue must be empty: '06:00'.")
    hours: Positive | None = optional_key("Time that one job may take.")
    requests: Count | None = optional_key("Requests of one job.")
    tokens: Count | None = optional_key("Output tokens of one job, if its requests are not known.")


class TierPlan(_PlanSection):
    """One hardware generation serving one model configuration."""

    # Every status writes one (`plan_version`): built at the import, it leaves less garbage.
    model_config = ConfigDict(defer_build=False)

    model: Text = Field(description="Model name as the engine reports it.")
    engine: Text = Field(description="Engine that serves it, such as vllm, sglang.")
    gpu: Gpu
    slo: Slo
    precision: Precision | None = None
    architecture: Architecture | None = None
    pools: Pools = Field(("mixed",), description="[mixed], or [prefill, decode] where the two are served apart.")
    workload: Workload | None = None
    curve: BenchmarkCurve | None = None
    operating_point: PlannedOperatingPoint | None = None
    fleet: Fleet | None = None
    cost: Cost | None = None
    cold_start_seconds: Positive | None = optional_key("From asking for a replica to its first answer.")
    speculation: Speculation | None = None
    lora: Lora | None = None
    disaggregation: Disaggregation | None = None
    guardrails: Guardrails | None = None
    batch: Batch | None = None

    def contradictions(self) -> Contradictions:
        if self.slo.ttft_p99_seconds is None and not self.is_batch:
            yield ("slo", "ttft_p99_seconds"), "is missing"
        if self.batch is not None and not self.is_batch:
            yield ("batch",), "is for workload.archetype: batch"
        if self.workload is not None:
            yield from impossible_means(self.workload, self.guardrails)

    @property
    def is_batch(self) -> bool:
        """Return whether the tier does offline work, which has no objective on the first token (guide 1.4)."""
        return self.workload is not None and self.workload.archetype == "batch"

    def value_at(self, path: str) -> Any:
        """Return a part of the plan by its dotted path, None if missing."""
        part: Any = self
        for name in path.split("."):
            part = getattr(part, name, None)
        return part


class Plan(_PlanSection):
    """A sizing plan: the contract that production is checked against."""

    schema_version: int = Field(ge=1, le=1, alias="schema", description="Version of this format.")
    tiers: dict[TierName, TierPlan] = Field(min_length=1, description="Tiers by name.")


def parse_plan(data: object) -> Plan:
    """Return the plan in parsed YAML or JSON.

    Raise InvalidPlanError with every problem at once: unknown and missing keys, wrong types and ranges. Contradictions in a
    section are told once its values are valid.
    """
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise InvalidPlanError(problems_of(error, Plan)) from None


def same_model(*names: str) -> bool:
    """Return whether model names are equal, without organisation or folder and without regard to case."""
    return len({name.casefold().rstrip("/").rpartition("/")[2] for name in names}) == 1


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a plan file. Contradictions between keys are checked by `parse_plan` only."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return {**head, **Plan.model_json_schema(), "title": "sizewatch sizing plan"}


def plan_version(tier: TierPlan) -> str:
    """Return twelve hexadecimal digits that change with the tier's plan.

    Key order, written defaults and optional keys of later releases do not change them. Neither do `architecture`,
    which only checks read, and `curve.measured` and `origin`: where a curve came from moves none of its points.
    """
    unread: Any = {"architecture": True, "curve": {"measured", "origin"}}
    content = tier.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=unread)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
