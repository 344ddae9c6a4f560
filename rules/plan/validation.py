"""Problems of an invalid plan in words: one sentence each, with the path of the place first.

To add a contradiction within one mapping: a row of RISING. Others are functions that `cross_problems` calls.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Union, get_args, get_origin

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

_MOST_TOKENS = 1e15

_MOST_DIGITS = 40
_LARGEST_TOLD = 10**_MOST_DIGITS


def path_text(path: Sequence[str | int]) -> str:
    """Return the path of a place in a plan: `tiers.h100.curve.points[0].completed_rps`; `plan` for the whole."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{_whole(part)}]"
        elif re.fullmatch(r"[\w.-]+", part):
            text += f".{_shown(part)}"
        else:
            text += f'["{_shown(part)}"]'
    return text.removeprefix(".") or "plan"


def _shown(key: str) -> str:
    """Return a key for a message, on one line and shortened."""
    return _spelt(key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 1]}…")


def _spelt(text: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _whole(number: int) -> str:
    """Return a whole number for a message. Python refuses to print one with thousands of digits."""
    return repr(number) if abs(number) < _LARGEST_TOLD else f"a number of more than {_MOST_DIGITS} digits"


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return every problem of the validation, in the order of the schema's keys."""
    # A list whose entries are all wrong is also called too short: that would be a second complaint about one mistake.
    entries = (e for e in error.errors(include_url=False) if not (e["type"] == "too_short" and e["input"]))
    return cap_problems(problem_text(entry, model) for entry in entries)


def cross_problems(data: object) -> tuple[str, ...]:
    """Return every contradiction between values, also for a file with other problems."""
    return cap_problems(_contradictions(data))


def _contradictions(data: object) -> Iterator[str]:
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


def problem_text(entry: Any, model: type[BaseModel]) -> str:
    """Return path and reason of an entry of `ValidationError.errors`."""
    path, kind, value = tuple(entry["loc"]), entry["type"], entry["input"]
    if path[-1:] == ("[key]",):
        where = path_text(path[:-1])
        return f"{where}: a tier's name is 1 to 63 letters, digits, '.', '_' or '-' and begins with a letter or digit"
    if path == ("schema",) and kind not in ("missing", "extra_forbidden"):
        return f"schema: must be 1, the version of plan this program reads, not {_named(value)}"
    if kind == "extra_forbidden":
        return f"{path_text(path)}: is not a key of a plan{_suggestion(path, model)}"
    words = _WORDS.get(kind)
    said = _EMPTY if value is None and kind in _SCALARS else ""
    said = said or words(value, entry.get("ctx", {})) if words else f"cannot be used as it is ({entry['msg']})"
    if kind == "string_type" and path[-1] == "deadline":
        said += ": YAML reads 18:00 as a number, so write it in quotes"
    if kind == "less_than_equal" and str(path[-1]).endswith("_seconds"):
        said += f" (seconds: {value:.6g} ms are written {value / 1000:.6g})"
    return f"{path_text(path)}: {said}"


def _number(value: object, _: Mapping[str, Any]) -> str:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+e[+-]?\d+", value, re.IGNORECASE):
        return f"must be a number, not text (YAML reads {_named(value)} as a number only with a dot and a sign: 1.0e-3)"
    if isinstance(value, int) and not isinstance(value, bool):
        return "is too large a number"
    return f"must be a number, not {_named(value)}"


def _at_most(value: object, limits: Mapping[str, Any]) -> str:
    limit = limits["le"]
    hint = " (a ratio: 62 % is written 0.62)" if isinstance(limit, float) and limit == 1 else ""
    return f"must be at most {limit:g}{hint}"


CURRENCY, TIME_OF_DAY = "^[A-Z]{3}$", "^([01][0-9]|2[0-3]):[0-5][0-9]$"
_PATTERNS = {
    CURRENCY: "three capital letters such as USD (ISO 4217)",
    TIME_OF_DAY: "a time of day from '00:00' to '23:59'",
}

_WORDS: Mapping[str, Callable[[object, Mapping[str, Any]], str]] = {
    "missing": lambda value, ctx: "is missing",
    "greater_than": lambda value, ctx: f"must be greater than {ctx['gt']:g}",
    "greater_than_equal": lambda value, ctx: f"must be at least {ctx['ge']:g}",
    "less_than_equal": _at_most,
    "finite_number": lambda value, ctx: "must be a finite number",
    "float_type": _number,
    "int_type": lambda value, ctx: f"must be a whole number, not {_named(value)}",
    "int_parsing_size": lambda value, ctx: "is too large a number",
    "bool_type": lambda value, ctx: f"must be true or false, not {_named(value)}",
    "string_type": lambda value, ctx: f"must be text, not {_named(value)}",
    "string_too_short": lambda value, ctx: "must not be empty",
    "string_unicode": lambda value, ctx: "must be text that can be written as UTF-8",
    "string_pattern_mismatch": lambda value, ctx: (
        f"must be {_PATTERNS.get(ctx['pattern'], 'text like ' + ctx['pattern'])}"
    ),
    "literal_error": lambda value, ctx: f"must be {ctx['expected']}, not {_named(value)}",
    "tuple_type": lambda value, ctx: f"must be a list, not {_named(value)}",
    "too_short": lambda value, ctx: "must not be empty",
    "dict_type": lambda value, ctx: f"must be a mapping of keys to values, not {_named(value)}",
    "model_type": lambda value, ctx: f"must be a mapping of keys to values, not {_named(value)}",
    "invalid_key": lambda value, ctx: "every key must be text",
}


_SCALARS = ("string_type", "float_type", "int_type", "bool_type")
_EMPTY = "is empty: fill in this line (`plan init` marks it FILL IN), or delete it"


def _named(value: object) -> str:
    if isinstance(value, str):
        return f"'{_spelt(value)}'" if len(value) <= 40 else f"'{_spelt(value[:37])}...'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return repr(value)
    kinds = ((Mapping, "a mapping"), (list | tuple | set, "a list"), (type(None), "null"))
    return next((name for kind, name in kinds if isinstance(value, kind)), f"a {type(value).__name__}")


def _suggestion(path: Path, model: type[BaseModel]) -> str:
    close = find_close_name(str(path[-1]), _keys_at(path[:-1], model))
    return f"; did you mean {close}?" if close else ""


def _keys_at(path: Path, model: type[BaseModel]) -> list[str]:
    """Return the keys of the schema at a path, from the annotations."""
    here: Any = model
    for part in path:
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = {field.alias or name: field.annotation for name, field in here.model_fields.items()}.get(str(part))
        else:
            here = get_args(here)[0 if get_origin(here) is tuple else -1]
        here = _bare(here)
    return [field.alias or name for name, field in here.model_fields.items()]


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = get_args(annotation)[0]
    return annotation


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


def _is_number(value: object) -> bool:
    # Not isfinite: it cannot be asked of a whole number of 400 digits.
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def _falling(path: Path, part: Mapping[Any, Any]) -> Iterator[str]:
    for keys in RISING:
        given = [key for key in keys if _is_number(part.get(key))]
        for lower, upper in pairwise(given):
            if part[upper] < part[lower]:
                there = path_text((*path, upper))
                yield f"{there}: must be at least {lower} ({_named(part[lower])}), but is {_named(part[upper])}"


def impossible_means(path: Path, tier: Mapping[Any, Any]) -> Iterator[str]:
    """Yield means of lengths that no distribution with the given quantiles (and guardrail) has."""
    workload, guardrails = (_mapping(tier.get(name)) for name in ("workload", "guardrails"))
    for kind, guardrail in LENGTHS:
        lengths = _mapping(workload.get(kind))
        mean, longest = _tokens(lengths.get("mean")), _tokens(guardrails.get(guardrail))
        known = {share: tokens for name, share in QUANTILES.items() if (tokens := _tokens(lengths.get(name)))}
        if mean is None or not known or list(known.values()) != sorted(known.values()):
            continue
        low, high = mean_bounds(known, longest)
        there = path_text((*path, "workload", kind, "mean"))
        if mean < low * (1 - MEAN_TOLERANCE):
            yield f"{there}: must be at least {low:.6g}, the lowest mean with these quantiles, but is {mean:.6g}"
        elif high is not None and mean > high * (1 + MEAN_TOLERANCE):
            what = f"the highest mean with these quantiles and {guardrail} {longest:.6g}"
            yield f"{there}: must be at most {high:.6g}, {what}, but is {mean:.6g}"


def _tokens(value: object) -> float | None:
    """Return a number small enough to add, None for others such as 400 digits."""
    return float(value) if isinstance(value, int | float) and _is_number(value) and abs(value) < _MOST_TOKENS else None


def _mapping(part: object) -> Mapping[Any, Any]:
    return part if isinstance(part, Mapping) else {}


def _repeated(path: Path, points: Sequence[object]) -> Iterator[str]:
    """Yield loads that are given twice: their place on the curve is ambiguous."""
    seen: dict[tuple[object, ...], int] = {}
    for place, point in enumerate(points):
        if not isinstance(point, Mapping):
            continue
        asked = (point.get("concurrency"), point.get("requested_rps"))
        load = asked if any(_is_number(value) for value in asked) else ("completed", point.get("completed_rps"))
        if not any(_is_number(value) for value in load):
            continue
        first = seen.setdefault(tuple(_named(value) for value in load), place)
        if first != place:
            there = path_text((*path, place))
            yield f"{there}: has the same load as points[{first}]; give each load once"


def _undivided_gpus(path: Path, gpu: Mapping[Any, Any]) -> Iterator[str]:
    """Yield degrees of parallelism that the GPUs of a replica are no multiple of."""
    count, degree = _tokens(gpu.get("per_replica")), 1.0
    for name in ("tensor_parallel", "pipeline_parallel"):
        degree *= _tokens(gpu.get(name)) or 1.0
    if count and degree >= 1 and count % degree:
        text = f"must be a multiple of tensor_parallel x pipeline_parallel ({degree:g})"
        yield f"{path_text((*path, 'per_replica'))}: {text}, but is {count:g}"


def _missing_objective(path: Path, tier: Mapping[Any, Any]) -> Iterator[str]:
    slo, workload = tier.get("slo"), tier.get("workload")
    batch = isinstance(workload, Mapping) and workload.get("archetype") == "batch"
    if isinstance(slo, Mapping) and slo.get("ttft_p99_seconds") is None and not batch:
        said = _EMPTY if "ttft_p99_seconds" in slo else "is missing"
        yield f"{path_text((*path, 'slo', 'ttft_p99_seconds'))}: {said}"
    if isinstance(tier.get("batch"), Mapping) and not batch:
        yield f"{path_text((*path, 'batch'))}: is for workload.archetype: batch"


def _odd_pools(path: Path, pools: Sequence[object]) -> Iterator[str]:
    known = {pool for pool in pools if isinstance(pool, str)}
    valid = len(known) == len(pools) and known <= set().union(*POOLS)
    if known and (len(known) < len(pools) or (valid and known not in POOLS)):
        yield f"{path_text(path)}: must be [mixed] or [prefill, decode], each once"
