"""Problems of an invalid file: pydantic's messages in the words of a file, each with the path of its place first.

Contradictions between valid values come from the sections themselves (`_contradictions` in a configuration), which `refuse` raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from rules.confidence import mean_bounds
from rules.problems import MOST_PROBLEMS, Path, cap_problems, find_home, list_keys

Contradictions = Iterator[tuple[Path, str]]
"""Path within a section, and text, of each problem that several valid values have together."""

PROBLEMS = "problems"
"""Type of a validation error of several valid values."""

_SAID = {
    "missing": "is missing",
    "extra_forbidden": "is not a key",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
}
"""Messages of pydantic that speak of Python, in the words of a file."""
_SHORTER = {"Input should": "must", "less than or equal to": "at most", "greater than or equal to": "at least"}


def validation_error(text: str) -> PydanticCustomError:
    """Return the error to raise in a validator. Its path is added in front."""
    return PydanticCustomError(PROBLEMS, PROBLEMS, {"problems": (((), text),)})


def refuse(problems: Contradictions) -> None:
    """Raise one validation error for all problems of a section, none without any."""
    # More than is reported is not worth its memory: a file of the wrong type has thousands.
    if entries := tuple(islice(problems, MOST_PROBLEMS + 1)):
        raise PydanticCustomError(PROBLEMS, PROBLEMS, {"problems": entries})


def path_text(path: Sequence[str | int]) -> str:
    """Return the path of a place in a file: `tiers.h100.curve.points[0].completed_rps`; `file` for the whole."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[\w.-]{1,80}", part):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part[:80])}]"
    return text.removeprefix(".") or "file"


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return every problem of the validation of a model, in the order of the schema's keys."""
    # A list whose entries are all wrong is also called too short: that would be a second complaint about one mistake.
    entries = (e for e in error.errors(include_url=False) if not (e["type"] == "too_short" and e["input"]))
    return cap_problems(text for entry in entries for text in problem_texts(entry, model))


def problem_texts(entry: Any, model: type[BaseModel]) -> Iterator[str]:
    """Yield path and reason of an entry of `ValidationError.errors`. They quote no value: a secret may stand there."""
    path, kind, value = tuple(entry["loc"]), entry["type"], entry["input"]
    if kind == PROBLEMS:
        for place, text in entry["ctx"]["problems"]:
            yield f"{path_text((*path, *place))}: {text}"
        return
    if path[-1:] == ("[key]",):
        where = path_text(path[:-1])
        yield f"{where}: a tier's name is 1 to 63 letters, digits, '.', '_' or '-' and begins with a letter or digit"
        return
    result = _SAID.get(kind, entry["msg"])
    for long, short in _SHORTER.items():
        result = result.replace(long, short)
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?\d+\.?\d*([eE][-+]?\d+)?", value)
    if is_number and kind in ("float_type", "int_type"):
        result += " (this is text: a number has no quotes, and 1e-3 is 1.0e-3 in YAML)"
    elif value is None and kind in ("string_type", "float_type", "int_type", "bool_type"):
        result = "is empty: fill in this line (`plan init` marks it FILL IN), or delete it"
    elif kind == "extra_forbidden":
        home = find_home(path, _list_keys(model))
        result += f"; did you mean {path_text(home)}?" if home else ""
    elif kind == "less_than_equal" and str(path[-1]).endswith("_seconds"):
        result += f" (seconds: {value:.6g} ms are written {value / 1000:.6g})"
    elif kind == "less_than_equal" and isinstance(limit := entry["ctx"]["le"], float) and limit == 1:
        result += " (a ratio: 62 % is written 0.62)"
    yield f"{path_text(path)}: {result}"


@cache
def _list_keys(model: type[BaseModel]) -> tuple[Path, ...]:
    """Return the place of every key of a model and of all its sections."""
    schema = model.model_json_schema()
    return tuple(list_keys(schema, schema.pop("$defs", {})))


def bound_mean(lengths: Any, longest: float | None) -> tuple[float, float | None] | None:
    """Return the bounds of a mean that the quantiles of a plan's lengths and a guardrail allow, None without quantiles."""
    shares = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    known = {share: tokens for name, share in shares if (tokens := getattr(lengths, name, None)) is not None}
    return mean_bounds(known, longest) if known else None


MEAN_TOLERANCE = 0.02
"""A mean may lie outside the bounds that its quantiles set by this share: all of them are rounded."""


def impossible_means(workload: Any, guardrails: Any) -> Contradictions:
    """Yield means of lengths that no distribution with these quantiles, and guardrails if there are any, has."""
    for kind in ("prompt_tokens", "generation_tokens"):
        lengths, longest = getattr(workload, kind), getattr(guardrails, f"max_{kind}", None)
        bounds = bound_mean(lengths, longest)
        if bounds is None or lengths.mean is None:
            continue
        mean, (low, high), place = lengths.mean, bounds, ("workload", kind, "mean")
        if mean < low * (1 - MEAN_TOLERANCE):
            yield place, f"must be at least {low:.6g}, the lowest mean with these quantiles, but is {mean:.6g}"
        elif high is not None and mean > high * (1 + MEAN_TOLERANCE):
            what = f"the highest mean with these quantiles and max_{kind} {longest:.6g}"
            yield place, f"must be at most {high:.6g}, {what}, but is {mean:.6g}"
