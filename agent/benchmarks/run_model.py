"""Load of one run as a pydantic model, which the model of each tool fills from its file by aliases, and parts of a file.

Times are seconds, rates per second. Absent, null and zero are None: tools write 0 for no measurement.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
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
from pydantic_core import PydanticCustomError

from agent.errors import NotAResultError
from rules.plan.schema import Provenance
from rules.plan.validation import path_text

CONTRADICTION = "which cannot be"
"""Phrase in every remark about values that exclude each other and are dropped."""

LOCAL_CLOCK = "the file's date has no time zone and was read as UTC"
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

UNUSABLE = "unusable"


def unusable(text: str) -> PydanticCustomError:
    """Return the error that a model raises for a whole run: a sentence about the load without its subject."""
    return PydanticCustomError(UNUSABLE, "{text}", {"text": text})


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
    chunks, `tpot` is per request. Times of day are unix seconds.
    """

    model_config = file_places()

    tool: ClassVar[str]
    """Name of the tool."""
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
    prompt_tokens: Distribution = NOTHING
    generation_tokens: Distribution = NOTHING
    remarks: list[str] = Field(default_factory=list)

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
    def read_all(cls, part: ResultPart, others: list[NotAResultError]) -> list[tuple[ResultPart, Self]]:
        """Return the runs of a document with their places.

        Append an error to `others` for each that is left out, with the place of its first wrong value.
        """
        try:
            return [(part, cls.model_validate(part.data))]
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            text = wrong["msg"]
            if wrong["type"] != UNUSABLE:
                what = "is missing" if wrong["type"] == "missing" else text[0].lower() + text[1:]
                end = f", {CONTRADICTION}" if wrong["type"] == "greater_than_equal" else ""
                text = f"has a wrong value: {path_text(wrong['loc'])}: {what}{end}"
            others.append(part.left_out(text))
            return []

    def set_loop(self) -> None:
        """Take a rate as the load of an open loop, or else clients as the load of a closed one."""
        if self.requested_rps:
            self.loop = "open"
        elif self.clients:
            self.loop = "closed"
        else:
            self.remarks.append("the file tells neither rate nor concurrency, so neither an open nor a closed loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """File as named, and a place in it: `line 2`, `benchmarks[1]`, or "" for the whole file."""

    source: str
    place: str = ""

    @property
    def location(self) -> str:
        """Return file and place for messages."""
        return f"{self.source}: {self.place}" if self.place else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPart(Located):
    """Object of a file."""

    data: Mapping[str, Any]

    def left_out(self, text: str) -> NotAResultError:
        """Return the error for a load without a place in a curve, beside which others may have one."""
        return NotAResultError(self.location, text)
