"""Problems of an invalid plan: pydantic's own messages and contradictions, each with the path of the place first.

To add a contradiction within one mapping: a row of RISING. Others are functions that `cross_problems` calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ValidationError

from rules.confidence import mean_bounds
from rules.problems import cap_problems, find_close_name

Path = tuple[str | int, ...]

RISING: tuple[tuple[str, ...], ...] = (
    ("p50", "p95", "p99"),
    ("average", "peak"),
    ("ttft_p50_seconds", "ttft_p99_seconds"),
    ("tpot_p50_seconds", "tpot_p99_seconds"),
    ("minimum_warm", "instances"),
    ("low", "usable_rps", "high"),
)
"""Keys of one mapping of which none may be below the one before it."""

MEAN_TOLERANCE = 0.02
"""A mean may lie outside the bounds that its quantiles set by this share: all of them are rounded."""

LENGTHS = (("prompt_tokens", "max_prompt_tokens"), ("generation_tokens", "max_generation_tokens"))
"""Lengths of the workload, and the guardrail above which there are none."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
"""Shares of the quantiles of lengths."""

POOLS = ({"mixed"}, {"prefill", "decode"})

# A file that refers to itself (YAML anchors can) would be walked for ever; a plan is six levels deep.
_DEEPEST = 10

_LONGEST_KEY = 80

_LARGEST = 1e15

_EMPTY = "is empty: fill in this line (`plan init` marks it FILL IN), or delete it"
_SAID = {
    "missing": "is missing",
    "extra_forbidden": "is not a key of a plan",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
}
"""Messages of pydantic that speak of Python, in the words of a file."""
_SHORTER = {
    "Input should be": "must be",
    "Input should": "must",
    "less than or equal to": "at most",
    "greater than or equal to": "at least",
}


def path_text(path: Sequence[str | int]) -> str:
    """Return the path of a place in a plan: `tiers.h100.curve.points[0].completed_rps`; `plan` for the whole."""
    text = ""
    for part in path:
        if isinstance(part, int):
            # Python refuses to print a number with thousands of digits.
            text += f"[{part}]" if abs(part) < _LARGEST else "[a large number]"
        elif re.fullmatch(r"[\w.-]+", part):
            text += f".{_shorten(part)}"
        else:
            text += f'["{_shorten(part)}"]'
    return text.removeprefix(".") or "plan"


def _shorten(key: str) -> str:
    """Return a key for a message, on one line."""
    short = key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 1]}…"
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in short)


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return every problem of the validation of a model, in the order of the schema's keys."""
    # A list whose entries are all wrong is also called too short: that would be a second complaint about one mistake.
    entries = (e for e in error.errors(include_url=False) if not (e["type"] == "too_short" and e["input"]))
    return cap_problems(problem_text(entry, model) for entry in entries)


def problem_text(entry: Any, model: type[BaseModel]) -> str:
    """Return path and reason of an entry of `ValidationError.errors`. It quotes no value: a secret may stand there."""
    path, kind, value = tuple(entry["loc"]), entry["type"], entry["input"]
    if path[-1:] == ("[key]",):
        where = path_text(path[:-1])
        return f"{where}: a tier's name is 1 to 63 letters, digits, '.', '_' or '-' and begins with a letter or digit"
    if path == ("schema",) and kind not in ("missing", "extra_forbidden"):
        return "schema: must be 1, the version of plan that this program reads"
    said = _SAID.get(kind, entry["msg"])
    for long, short in _SHORTER.items():
        said = said.replace(long, short)
    if value is None and kind in ("string_type", "float_type", "int_type", "bool_type"):
        said = _EMPTY
    elif kind == "extra_forbidden" and (close := find_close_name(str(path[-1]), _list_keys(path[:-1], model))):
        said += f"; did you mean {close}?"
    elif kind == "less_than_equal" and str(path[-1]).endswith("_seconds"):
        said += f" (seconds: {value:.6g} ms are written {value / 1000:.6g})"
    elif kind == "less_than_equal" and isinstance(limit := entry["ctx"]["le"], float) and limit == 1:
        said += " (a ratio: 62 % is written 0.62)"
    return f"{path_text(path)}: {said}"


def _list_keys(path: Path, model: type[BaseModel]) -> list[str]:
    """Return the keys that the model has at a path, from its JSON Schema."""
    schema = model.model_json_schema()

    def expand(place: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if "$ref" in place:
            place = schema["$defs"][place["$ref"].rpartition("/")[2]]
        yield place
        for variant in place.get("anyOf", ()):
            yield from expand(variant)

    places: list[Mapping[str, Any]] = [schema]
    for step in path:
        below = []
        for place in (each for known in places for each in expand(known)):
            of_names: Any = place.get("additionalProperties") or next(
                iter(place.get("patternProperties", {}).values()), {}
            )
            below.append(place.get("properties", {}).get(step) or place.get("items") or of_names)
        places = [place for place in below if isinstance(place, Mapping)]
    return [key for known in places for place in expand(known) for key in place.get("properties", ())]


def cross_problems(data: object) -> tuple[str, ...]:
    """Return every contradiction between values, also for a file with other problems."""
    return cap_problems(f"{path_text(path)}: {text}" for path, text in _contradictions(data))


def _contradictions(data: object) -> Iterator[tuple[Path, str]]:
    for path, part in _walk(data, ()):
        if isinstance(part, Mapping):
            yield from _falling(path, part)
            if len(path) == 2 and path[0] == "tiers":
                yield from impossible_means(path, part)
                yield from _missing_objective(path, part)
            if path[-1:] == ("gpu",):
                yield from _undivided_gpus(path, part)
        elif path[-1:] == ("points",):
            yield from _repeated(path, part)
        elif path[-1:] == ("pools",):
            yield from _odd_pools(path, part)


def _walk(part: object, path: Path) -> Iterator[tuple[Path, Any]]:
    if len(path) > _DEEPEST:
        return
    if isinstance(part, Mapping):
        yield path, part
        for key, value in part.items():
            yield from _walk(value, (*path, key if isinstance(key, int) else str(key)))
    elif isinstance(part, list | tuple):
        yield path, part
        for place, value in enumerate(part):
            yield from _walk(value, (*path, place))


def _number(value: object) -> float | None:
    """Return a finite number small enough to add, None for others such as 400 digits."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return float(value)
    return None


def _mapping(part: object) -> Mapping[Any, Any]:
    return part if isinstance(part, Mapping) else {}


def _falling(path: Path, part: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    for keys in RISING:
        given = [(key, value) for key in keys if (value := _number(part.get(key))) is not None]
        for (lower, low), (upper, high) in pairwise(given):
            if high < low:
                yield (*path, upper), f"must be at least {lower} ({low:.12g}), but is {high:.12g}"


def impossible_means(path: Path, tier: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    """Yield means of lengths that no distribution with the given quantiles (and guardrail) has."""
    workload, guardrails = (_mapping(tier.get(name)) for name in ("workload", "guardrails"))
    for kind, guardrail in LENGTHS:
        lengths = _mapping(workload.get(kind))
        mean, longest = _number(lengths.get("mean")), _number(guardrails.get(guardrail))
        known = {share: tokens for name, share in QUANTILES.items() if (tokens := _number(lengths.get(name)))}
        if mean is None or not known or list(known.values()) != sorted(known.values()):
            continue
        low, high = mean_bounds(known, longest)
        place = (*path, "workload", kind, "mean")
        if mean < low * (1 - MEAN_TOLERANCE):
            yield place, f"must be at least {low:.6g}, the lowest mean with these quantiles, but is {mean:.6g}"
        elif high is not None and mean > high * (1 + MEAN_TOLERANCE):
            what = f"the highest mean with these quantiles and {guardrail} {longest:.6g}"
            yield place, f"must be at most {high:.6g}, {what}, but is {mean:.6g}"


def _repeated(path: Path, points: Sequence[object]) -> Iterator[tuple[Path, str]]:
    """Yield loads that are given twice: their place on the curve is ambiguous."""
    first: dict[tuple[float | None, ...], int] = {}
    for place, point in enumerate(map(_mapping, points)):
        asked = (_number(point.get("concurrency")), _number(point.get("requested_rps")))
        load = asked if asked != (None, None) else (_number(point.get("completed_rps")),)
        if load != (None,) and first.setdefault(load, place) != place:
            yield (*path, place), f"has the same load as points[{first[load]}]; give each load once"


def _undivided_gpus(path: Path, gpu: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    """Yield degrees of parallelism that the GPUs of a replica are no multiple of."""
    count, degree = _number(gpu.get("per_replica")), 1.0
    for name in ("tensor_parallel", "pipeline_parallel"):
        degree *= _number(gpu.get(name)) or 1.0
    if count and degree >= 1 and count % degree:
        text = f"must be a multiple of tensor_parallel x pipeline_parallel ({degree:g}), but is {count:g}"
        yield (*path, "per_replica"), text


def _missing_objective(path: Path, tier: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    slo, batch = tier.get("slo"), _mapping(tier.get("workload")).get("archetype") == "batch"
    if isinstance(slo, Mapping) and slo.get("ttft_p99_seconds") is None and not batch:
        yield (*path, "slo", "ttft_p99_seconds"), _EMPTY if "ttft_p99_seconds" in slo else "is missing"
    if isinstance(tier.get("batch"), Mapping) and not batch:
        yield (*path, "batch"), "is for workload.archetype: batch"


def _odd_pools(path: Path, pools: Sequence[object]) -> Iterator[tuple[Path, str]]:
    known = {pool for pool in pools if isinstance(pool, str)}
    valid = len(known) == len(pools) and known <= set().union(*POOLS)
    if known and (len(known) < len(pools) or (valid and known not in POOLS)):
        yield path, "must be [mixed] or [prefill, decode], each once"
