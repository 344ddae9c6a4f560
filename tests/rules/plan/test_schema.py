import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml
from golden_text import check_golden
from hypothesis import given, settings
from hypothesis import strategies as st
from making import plan_document as bare
from paths import ROOT, TESTS

from rules.plan.schema import SCHEMA_ID, InvalidPlanError, parse_plan, plan_schema, plan_version
from rules.plan.validation import path_text

PLANS = TESTS / "plans"
SCHEMA = ROOT / "docs" / "plan.schema.json"
GUIDE = yaml.safe_load((PLANS / "guide-h100.yaml").read_text(encoding="utf-8"))
GOOD = ("cpu-small", "cpu-small-open", "guide-h100")


def load(name: str) -> Any:
    return yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8"))


def problems(data: object) -> tuple[str, ...]:
    with pytest.raises(InvalidPlanError) as caught:
        parse_plan(data)
    return caught.value.problems


def test_model_engine_gpu_and_slo_are_enough() -> None:
    tier = parse_plan(bare()).tiers["t"]
    assert (tier.pools, tier.curve, tier.slo.tpot_p99_seconds) == (("mixed",), None, None)
    with pytest.raises(ValueError, match="frozen"):
        tier.model = "other"  # type: ignore[misc]
    assert path_text(("tiers", "h100", "curve", "points", 0)) == "tiers.h100.curve.points[0]"
    assert path_text(()) == "file"


DOCUMENTS: tuple[object, ...] = (
    load("ten-mistakes"),
    None,
    [],
    {"schema": 2, "tiers": {}},
    {"schema": True, "tiers": {}},
    {"tiers": {}},
    {"schema": 1, "tiers": {}},
    {"schema": 1, "tiers": {"t": None}},
    {"schema": 1, "tiers": {"my tier": {}}},
    bare(engine=""),
    bare(model=3),
    bare(pools="mixed"),
    bare(pools=["decode"]),
    bare(pools=["mixed", "mixed"]),
    bare(pools=["other"]),
    bare(cold_start_seconds=0),
    bare(cold_start_seconds=10**400),
    bare(cold_start_seconds=True),
    bare(slo={"ttft_p99_seconds": 2000000}),
    bare(slo={"ttft_p99_seconds": 2, "availability": 1}),
    bare(slo={"ttft_p99_seconds": 2, "availability": 0.5}),
    bare(operating_point={"usable_rps": -1}),
    bare(operating_point={"usable_rps": 5.0, "low": 6.0}),
    bare(workload={"prompt_tokens": {"mean": 600, "p50": 900, "p95": 3800, "p99": 7200}}),
    bare(
        workload={"generation_tokens": {"mean": 400, "p50": 180, "p95": 520, "p99": 900}},
        guardrails={"max_generation_tokens": 2048},
    ),
    bare(fleet={"instances": 2, "safety_factor": 0.9}),
    bare(fleet={"instances": 2, "minimum_warm": 3}),
    bare(cost={"gpu_hour_price": 2, "currency": "usd"}),
    bare(batch={"deadline": 1080}),
    bare(workload={"streaming": "yes"}),
    bare(curve={"points": []}),
    bare(curve={"points": [{"completed_rps": 0}]}),
    bare(guardrails={5: 1}),
    bare(fleeet={}),
    bare(curve={"points": [{"completed_rps": 1, "ttft_p50_seconds": 2, "ttft_p99_seconds": 1}]}),
    # Two points of one load.
    *(
        bare(curve={"points": [{"completed_rps": n, name: 4} for n in (1, 2)]})
        for name in ("concurrency", "requested_rps")
    ),
    bare(curve={"points": [{"completed_rps": 3}, {"completed_rps": 3}]}),
    # A contradiction beside other mistakes.
    bare(cold_start_seconds=-1, workload={"requests_per_second": {"average": 3, "peak": 2}, "colour": "red"}),
)


def test_mistakes_read_as_the_golden() -> None:
    texts = ["\n".join(problems(document)) for document in DOCUMENTS]
    check_golden(__file__, "schema.txt", "\n\n".join(texts))
    saturated = [{"completed_rps": 3, "concurrency": 64}, {"completed_rps": 3, "concurrency": 128}]
    assert parse_plan(bare(curve={"points": saturated})).tiers["t"].curve is not None


def test_a_file_that_contains_itself_is_refused() -> None:
    data = bare()
    data["tiers"]["t"]["curve"] = {"points": [data]}
    assert "tiers.t.curve.points[0].completed_rps: is missing" in problems(data)


def _places(part: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [path, *(place for key, value in entries for place in _places(value, (*path, key)))]


NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.dates(),
    st.binary(max_size=3),
    st.lists(st.integers(0, 3) | st.text(max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=3) | st.integers(), st.integers(), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(place=st.sampled_from(_places(GUIDE)), value=NASTY)
def test_any_document_is_answered(place: Any, value: object) -> None:
    data: Any = copy.deepcopy(GUIDE)
    if place:
        inner = data
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
    else:
        data = value
    found = _problems_or_none(data)
    assert found is None or found
    for problem in found or ():
        assert ": " in problem
        assert not any(word in problem for word in ("Input should", "pydantic", "https:"))


def _problems_or_none(data: object) -> tuple[str, ...] | None:
    try:
        parse_plan(data)
    except InvalidPlanError as error:
        return error.problems
    return None


def test_published_schema_is_the_programs() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == plan_schema(), "`sizewatch render` writes it anew"
    assert plan_schema()["$id"] == SCHEMA_ID


@pytest.mark.parametrize("name", GOOD)
def test_a_good_plan_is_read_whole(name: str) -> None:
    data = load(name)
    plan = parse_plan(data)
    for tier_name, tier in data["tiers"].items():
        kept = plan.tiers[tier_name].model_dump(mode="json", exclude_unset=True)
        assert kept == json.loads(json.dumps(tier))
    assert list(jsonschema.Draft202012Validator(plan_schema()).iter_errors(data)) == []


def test_schema_refuses_visible_mistakes() -> None:
    errors = jsonschema.Draft202012Validator(plan_schema()).iter_errors(load("ten-mistakes"))
    places = {error.json_path.rpartition(".")[2] for error in errors}
    assert places == {"slo", "tpot_p99_seconds", "curve", "cold_start_seconds"}


def test_schema_describes_every_value() -> None:
    schema = plan_schema()
    silent = [
        f"{name}.{key}"
        for name, part in schema["$defs"].items()
        for key, entry in part["properties"].items()
        if "description" not in entry and "$ref" not in json.dumps(entry)
    ]
    assert silent == []


def version(**parts: Any) -> str:
    return plan_version(parse_plan(bare(**parts)).tiers["t"])


def test_versions_stay_what_history_remembers() -> None:
    plan = load("guide-h100")
    guardrails = {"max_prompt_tokens": 12000, "max_generation_tokens": 2048, "queue_breaker": 85}
    plan["tiers"]["h100-llama70b-fp8"]["guardrails"] = guardrails
    assert plan_version(parse_plan(plan).tiers["h100-llama70b-fp8"]) == "0f8660bb44ec"
    # It ignores spelling, and changes with any number.
    spelt = version(pools=["mixed"], curve=None, slo={"tpot_p99_seconds": None, "ttft_p99_seconds": 2.0})
    assert spelt == version()
    assert len({version(), *(version(cold_start_seconds=seconds) for seconds in (40, 40.5, 41))}) == 4
