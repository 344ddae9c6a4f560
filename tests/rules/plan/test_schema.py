import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from making import plan_document as bare
from paths import ROOT, TESTS

from rules.plan.schema import SCHEMA_ID, InvalidPlanError, parse_plan, plan_schema, plan_version
from rules.plan.validation import path_text

PLANS = TESTS / "plans"
SCHEMA = ROOT / "docs" / "plan.schema.json"
GUIDE = yaml.safe_load((PLANS / "guide-h100.yaml").read_text(encoding="utf-8"))
TIER_NAME = "a tier's name is 1 to 63 letters, digits, '.', '_' or '-' and begins with a letter or digit"
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


def test_ten_mistakes_are_named_at_once() -> None:
    tier = "tiers.a100-llama70b-int8"
    assert problems(load("ten-mistakes")) == (
        f"{tier}.gpu.per_replica: must be a valid integer",
        f"{tier}.slo.tpot_p99_seconds: must be a valid number (this is text: a number has no quotes, and 1e-3 is 1.0e-3 in YAML)",
        f"{tier}.slo.ttft_p99_second: is not a key; did you mean ttft_p99_seconds?",
        f"{tier}.pools: must be [mixed] or [prefill, decode], each once",
        f"{tier}.workload.prompt_tokens.p99: must be at least p95 (3800), but is 720",
        f"{tier}.workload.requests_per_second.peak: must be at least average (160), but is 65",
        f"{tier}.curve.points[0].completed_rps: must be greater than 0",
        f"{tier}.curve.points[1].ttft_p99_seconds: must be a finite number",
        f"{tier}.curve.points[1].gpu_utilization: must be at most 1 (a ratio: 62 % is written 0.62)",
        f"{tier}.cold_start_seconds: must be greater than 0",
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, "file: must be a mapping of keys to values"),
        ([], "file: must be a mapping of keys to values"),
        ({"schema": 2, "tiers": {}}, "schema: must be at most 1"),
        ({"schema": True, "tiers": {}}, "schema: must be a valid integer"),
        ({"tiers": {}}, "schema: is missing"),
        ({"schema": 1, "tiers": {}}, "tiers: must not be empty"),
        ({"schema": 1, "tiers": {"t": None}}, "tiers.t: must be a mapping of keys to values"),
        ({"schema": 1, "tiers": {"my tier": {}}}, f'tiers["my tier"]: {TIER_NAME}'),
        (bare(engine=""), "tiers.t.engine: must not be empty"),
        (bare(model=3), "tiers.t.model: must be a valid string"),
        (bare(pools="mixed"), "tiers.t.pools: must be a list"),
        (bare(pools=["decode"]), "tiers.t.pools: must be [mixed] or [prefill, decode], each once"),
        (bare(pools=["mixed", "mixed"]), "tiers.t.pools: must be [mixed] or [prefill, decode], each once"),
        (bare(pools=["other"]), "tiers.t.pools[0]: must be 'mixed', 'prefill' or 'decode'"),
        (bare(cold_start_seconds=0), "tiers.t.cold_start_seconds: must be greater than 0"),
        (bare(cold_start_seconds=10**400), "tiers.t.cold_start_seconds: must be a valid number"),
        (bare(cold_start_seconds=True), "tiers.t.cold_start_seconds: must be a valid number"),
        (
            bare(slo={"ttft_p99_seconds": 2000000}),
            "tiers.t.slo.ttft_p99_seconds: must be at most 3600 (seconds: 2e+06 ms are written 2000)",
        ),
        (bare(slo={"ttft_p99_seconds": 2, "availability": 1}), "tiers.t.slo.availability: must be at most 0.99999"),
        (bare(slo={"ttft_p99_seconds": 2, "availability": 0.5}), "tiers.t.slo.availability: must be at least 0.95"),
        (bare(operating_point={"usable_rps": -1}), "tiers.t.operating_point.usable_rps: must be greater than 0"),
        (
            bare(operating_point={"usable_rps": 5.0, "low": 6.0}),
            "tiers.t.operating_point.usable_rps: must be at least low (6), but is 5",
        ),
        (
            bare(workload={"prompt_tokens": {"mean": 600, "p50": 900, "p95": 3800, "p99": 7200}}),
            "tiers.t.workload.prompt_tokens.mean: must be at least 629, the lowest mean with these quantiles, but is 600",
        ),
        (
            bare(
                workload={"generation_tokens": {"mean": 400, "p50": 180, "p95": 520, "p99": 900}},
                guardrails={"max_generation_tokens": 2048},
            ),
            (
                "tiers.t.workload.generation_tokens.mean: must be at most 380.48, the highest mean with these quantiles and "
                "max_generation_tokens 2048, but is 400"
            ),
        ),
        (bare(fleet={"instances": 2, "safety_factor": 0.9}), "tiers.t.fleet.safety_factor: must be at least 1"),
        (
            bare(fleet={"instances": 2, "minimum_warm": 3}),
            "tiers.t.fleet.instances: must be at least minimum_warm (3), but is 2",
        ),
        (
            bare(cost={"gpu_hour_price": 2, "currency": "usd"}),
            "tiers.t.cost.currency: String should match pattern '^[A-Z]{3}$'",
        ),
        (bare(batch={"deadline": 1080}), "tiers.t.batch.deadline: must be a valid string"),
        (bare(workload={"streaming": "yes"}), "tiers.t.workload.streaming: must be a valid boolean"),
        (bare(curve={"points": []}), "tiers.t.curve.points: must not be empty"),
        (
            bare(curve={"points": [{"completed_rps": 0}]}),
            "tiers.t.curve.points[0].completed_rps: must be greater than 0",
        ),
        (bare(guardrails={5: 1}), "tiers.t.guardrails[5]: Keys should be strings"),
        (bare(fleeet={}), "tiers.t.fleeet: is not a key; did you mean fleet?"),
        (
            bare(curve={"points": [{"completed_rps": 1, "ttft_p50_seconds": 2, "ttft_p99_seconds": 1}]}),
            "tiers.t.curve.points[0].ttft_p99_seconds: must be at least ttft_p50_seconds (2), but is 1",
        ),
    ],
)
def test_a_mistake_is_named_in_plain_words(data: object, expected: str) -> None:
    assert expected in problems(data)


@pytest.mark.parametrize(
    "points",
    [
        [{"completed_rps": 1, "concurrency": 4}, {"completed_rps": 2, "concurrency": 4}],
        [{"completed_rps": 1, "requested_rps": 2}, {"completed_rps": 2, "requested_rps": 2}],
        [{"completed_rps": 3}, {"completed_rps": 3}],
    ],
)
def test_a_load_given_twice_is_a_mistake(points: list[dict[str, float]]) -> None:
    found = problems(bare(curve={"points": points}))
    assert found == ("tiers.t.curve.points[1]: has the same load as points[0]; give each load once",)
    saturated = [{"completed_rps": 3, "concurrency": 64}, {"completed_rps": 3, "concurrency": 128}]
    assert parse_plan(bare(curve={"points": saturated})).tiers["t"].curve is not None


def test_contradictions_are_told_beside_other_mistakes() -> None:
    data = bare(cold_start_seconds=-1, workload={"requests_per_second": {"average": 3, "peak": 2}, "colour": "red"})
    assert problems(data) == (
        "tiers.t.workload.requests_per_second.peak: must be at least average (3), but is 2",
        "tiers.t.workload.colour: is not a key",
        "tiers.t.cold_start_seconds: must be greater than 0",
    )


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
