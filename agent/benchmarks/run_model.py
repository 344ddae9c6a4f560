"""Load of one run as a pydantic model, which the model of each tool fills from its file by aliases.

Times are seconds, rates per second. Absent, null and zero are None: tools write 0 for no measurement.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    AliasGenerator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from agent.errors import NotAResultError
from rules.plan.schema import Point, Provenance
from rules.plan.validation import path_text

CONTRADICTION = "which cannot be"
"""Phrase in every remark about values that exclude each other and are dropped."""

TRACE = "arrivals were {kind}, not a steady rate"

Loop = Literal["open", "closed"]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
"""No run has as much of anything. Sums and products stay finite."""
Measured = Annotated[Number | None, BeforeValidator(lambda v: None if v == 0 and v is not False else v)]
Moment = Annotated[Annotated[Number, Field(le=253_402_300_799)] | None, BeforeValidator(lambda v: v or None)]
"""Unix seconds up to the year 9999: a time in milliseconds is later."""
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**53)]
"""Above 2^53 a float does not hold every whole number."""
Tally = Annotated[Count, BeforeValidator(lambda v: v or 0)]
Text = Annotated[str, BeforeValidator(lambda v: v or "")]
Numbers = Annotated[list[Number], BeforeValidator(lambda v: v or [])]


class Statistics(BaseModel):
    """Statistics of one quantity over the requests of a run, by the names of all tools."""

    model_config = ConfigDict(strict=True, frozen=True, populate_by_name=True)

    mean: Measured = Field(None, validation_alias=AliasChoices("mean", "avg"))
    p50: Measured = Field(None, validation_alias=AliasChoices("p50", "median"))
    p95: Measured = Field(None, validation_alias=AliasChoices("p95", AliasPath("percentiles", "p95")))
    p99: Measured = Field(None, validation_alias=AliasChoices("p99", AliasPath("percentiles", "p99")))
    max: Measured = None


Distribution = Annotated[Statistics, BeforeValidator(lambda v: {} if v is None else v)]

NOTHING = Statistics()
UNKNOWN = Provenance()


def file_places(**places: str | tuple[str, ...]) -> ConfigDict:
    """Return the configuration of a model whose fields have these places in a file, such as `successes/count`.

    Of several places the first that exists counts. A field without a place is never read.
    """

    def alias(name: str) -> AliasChoices | AliasPath:
        place = places.get(name, f"={name}")  # No key of a file is called so.
        if isinstance(place, str):
            return AliasPath(*place.split("/"))
        return AliasChoices(*(AliasPath(*choice.split("/")) for choice in place))

    return ConfigDict(strict=True, alias_generator=AliasGenerator(validation_alias=alias))


class BenchmarkRun(BaseModel):
    """Load as reported by a file. A tool's model has the places of its file; a field without one is worked out.

    `requests` succeeded; `failed` and `cut_off` (in flight at the end) are extra. `clients` of a closed loop are its
    load, of an open one their limit. `sent_rps` is the rate the generator reached, if recorded. `burst`: all requests
    were sent at once. `at_once` is the mean number of requests in the system as reported. `itl` are gaps between two
    chunks, `tpot` is per request. Times of day are unix seconds. `source` is the file as named, `location` the file and
    the place in it. `engine`, `gpu`, `gpus` of a replica and the name of the whole `configuration` are of predictions.
    `agent.benchmarks.points` works out the `point`. `remarks` are for readers of the curve.
    """

    tool: ClassVar[str]
    """Name of the tool."""
    origin: ClassVar[str] = "measured"
    """How the numbers came about: measured on an engine, or predicted by a planner."""
    local_times: ClassVar[bool] = False
    """Whether the times of day in the file have no zone and are read as UTC."""
    milliseconds: ClassVar[tuple[str, ...]] = ()
    """Times in milliseconds in the file; the others are in seconds."""

    completed_rps: Number
    requests: Count
    failed: Tally = 0
    cut_off: Tally = 0
    loop: Loop | None = None
    burst: bool = False
    clients: Measured = None
    requested_rps: Measured = None
    sent_rps: Measured = None
    duration_seconds: Measured = None
    at_once: Measured = None
    latency: Distribution = NOTHING
    ttft: Distribution = NOTHING
    tpot: Distribution = NOTHING
    itl: Distribution = NOTHING
    output_tokens_per_second: Measured = None
    prefix_hit_ratio: float | None = None
    speculative_acceptance: float | None = None
    started_at: Moment = None
    ended_at: Moment = None
    model: Text = ""
    setup: Provenance = UNKNOWN
    engine: Text = ""
    gpu: Text = ""
    gpus: Tally = 0
    configuration: str = ""
    prompt_tokens: Distribution = NOTHING
    generation_tokens: Distribution = NOTHING
    remarks: list[str] = Field(default_factory=list)
    source: str = ""
    location: str = ""
    point: Point = Point.model_construct(completed_rps=0.0)

    @model_validator(mode="after")
    def _in_seconds(self) -> Self:
        for name in self.milliseconds:
            known = getattr(self, name).model_dump(exclude_none=True)
            setattr(self, name, Statistics.model_construct(**{key: value / 1000 for key, value in known.items()}))
        return self

    @property
    def sent(self) -> int:
        """Return the number of requests sent."""
        return self.requests + self.failed + self.cut_off

    @classmethod
    @abstractmethod
    def recognises(cls, data: Mapping[str, Any]) -> bool:
        """Return whether a document is this tool's."""

    @classmethod
    def read_all(cls, location: str, data: Mapping[str, Any], errors: list[NotAResultError]) -> list[Self]:
        """Return the runs of a document.

        Append an error to `others` for each that is left out, with the place of its first wrong value.
        """
        try:
            return [cls.model_validate(data).model_copy(update={"location": location})]
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            text = wrong["msg"]
            if not wrong["loc"] and wrong["type"] == "value_error":
                # A sentence of the model about the whole run.
                text = str(wrong["ctx"]["error"])
            else:
                what = "is missing" if wrong["type"] == "missing" else text[0].lower() + text[1:]
                end = f", {CONTRADICTION}" if wrong["type"] == "greater_than_equal" else ""
                text = f"has a wrong value: {path_text(wrong['loc'])}: {what}{end}"
            errors.append(NotAResultError(location, text))
            return []

    def set_loop(self) -> None:
        """Take a rate as the load of an open loop, or else clients as the load of a closed one."""
        if self.requested_rps:
            self.loop = "open"
        elif self.clients:
            self.loop = "closed"
        else:
            self.remarks.append("the file tells neither rate nor concurrency, so neither an open nor a closed loop")
