"""A curve put into a plan that people wrote: their text stays byte for byte, and where that cannot be, nothing changes."""

import os
from pathlib import Path

import pytest
import yaml

from agent.benchmarks.plan_edit import chosen_tier, open_plan, replace_curve, write
from agent.config.files import load_plan
from agent.errors import ConfigError
from exporters.documents.plan_files import WRITTEN
from rules.plan.schema import BenchmarkCurve, Plan

CURVE = BenchmarkCurve.model_validate(
    {"loop": "open", "source": ["r.json"], "points": [{"requested_rps": 2.0, "completed_rps": 1.5}]}
)

PLAN = """\
# The plan of the fleet.
schema:   1     # one

tiers:
  # the big ones
  'big':
    model: "m"   # quoted
    engine: vllm
    gpu: {product: A, per_replica: 1}
    curve:
      loop: closed   # with eight clients
      # measured on a Friday
      points:
        - completed_rps: 3
        - completed_rps: 4  # the last one

    # about the promise
    slo: {ttft_p99_seconds: 2}
  small: &small
    model: m
    engine: vllm
    gpu:
      product: B
      per_replica: 1
    slo: {ttft_p99_seconds: 1}

    # how it ends
# and that is all
"""

NEW = f"""\
    curve:
      # {WRITTEN}
      loop: open
      source: [r.json]
      points:
        - {{completed_rps: 1.5, requested_rps: 2}}
"""


def plan_in(folder: Path, text: str = PLAN) -> Path:
    path = folder / "plan.yaml"
    path.write_bytes(text.encode("utf-8"))
    return path


def edited(path: Path, tier: str) -> tuple[str, Plan]:
    """The text and the plan with the new curve."""
    return replace_curve(open_plan(path), tier, CURVE, ((WRITTEN,), ()))


def refused(path: Path, tier: str = "a") -> str:
    """The sentence, after which the file is as it was."""
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        edited(path, tier)
    assert path.read_bytes() == before
    return str(caught.value)


START = """\
schema: 1
tiers:
  a:
    model: m
    engine: vllm
    gpu: {product: A, per_replica: 1}
    slo:
      ttft_p99_seconds: 2.0
      # tpot_p99_seconds:  # and for each token after it, such as 0.08
      # e2e_p99_seconds:  # and for the whole request, such as 30
    # workload: from `sizewatch report`
"""
"""A tier as `plan init` writes it, up to its curve."""

PLACEHOLDER = "    # curve: comes from a benchmark of one replica (sizewatch plan import)\n"
END = "    # fleet: {instances: 1}  # 1 run now\n"


def test_new_curve_stays_below_commented_keys(tmp_path: Path) -> None:
    path = plan_in(tmp_path, START.replace("    # workload: from `sizewatch report`\n", "") + END)
    text = edited(path, "a")[0]
    assert text.index("# e2e_p99_seconds") < text.index("    curve:") < text.index("# fleet")
    plan = yaml.safe_load(text.replace("      # e2e_p99_seconds:  #", "      e2e_p99_seconds: 30  #"))
    assert plan["tiers"]["a"]["slo"]["e2e_p99_seconds"] == 30


@pytest.mark.parametrize(
    "curve",
    [
        "curve:",
        "curve: null  # none yet",
        "curve: {loop: open, points: [{completed_rps: 3}]}",
        "curve: {loop: open,\n      points: [\n{completed_rps: 3}]\n      }  # so",
        "'curve':\n      points:\n      - completed_rps: 3",
        '"curve" : !!map\n      points:\n      - completed_rps: 3\n\n',
        "curve:\n      points:\n      -\n        completed_rps: 3\n      source:\n      - |\n        a\n        b\n",
        "curve: &here\n      points: &these [{completed_rps: 3}]",
    ],
)
@pytest.mark.parametrize("after", ["", "    cold_start_seconds: 4\n", "    # a comment\n  # another\n\n"])
def test_however_the_curve_was_written(tmp_path: Path, curve: str, after: str) -> None:
    found = edited(plan_in(tmp_path, f"{BARE}    {curve}\n{after}"), "a")[0]
    assert found == BARE + NEW + curve[len(curve.rstrip()) :] + after


def test_indentation_of_the_file_is_used(tmp_path: Path) -> None:
    text = "tiers:\n    a:\n        model: m\n        engine: e\n        pools:\n        - mixed\n"
    text += "        gpu: {product: A, per_replica: 1}\n        slo: {ttft_p99_seconds: 2}\nschema: 1\n"
    found = edited(plan_in(tmp_path, text), "a")[0]
    added = [line for line in found.splitlines() if line not in text.splitlines() and "#" not in line]
    assert added == [
        "        curve:",
        "            loop: open",
        "            source: [r.json]",
        "            points:",
        "              - {completed_rps: 1.5, requested_rps: 2}",
    ]
    assert found.endswith("schema: 1\n")


def test_mark_and_missing_line_end_stay(tmp_path: Path) -> None:
    path = plan_in(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + PLAN.rstrip().encode())
    for tier in ("big", "small"):
        plan = open_plan(path)
        assert write(plan, replace_curve(plan, tier, CURVE)[0])
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf# The plan")
    assert not data.endswith(b"\n")
    assert load_plan(path).tiers["big"].curve == CURVE


HEAD = "schema: 1\ntiers:\n"
BODY = "model: m\n    engine: e\n    gpu: {product: A, per_replica: 1}\n    slo: {ttft_p99_seconds: 2}\n"
BY_HAND = "paste the curve that `sizewatch plan import` prints without --into"
FLOW = "{model: m, engine: e, gpu: {product: A, per_replica: 1}, slo: {ttft_p99_seconds: 2}}"
MERGED = f"{HEAD}  b: &b\n    {BODY}    curve: {{points: [{{completed_rps: 3}}]}}\n  a:\n    <<: *b\n    cold_start_seconds: 9\n"
BARE = f"{HEAD}  a:\n    {BODY}"
FLEET = "    fleet: {instances: 1}\n"
OLD = PLAN[PLAN.index("    curve:") : PLAN.index("\n    # about the promise")]
WIDE = PLAN.replace("the big ones", "the \U0001f600 éé ones")


@pytest.mark.parametrize(
    ("tier", "text", "expected"),
    [
        ("big", PLAN, PLAN.replace(OLD, NEW)),
        ("big", WIDE, WIDE.replace(OLD, NEW)),
        ("small", PLAN, PLAN.replace("\n    # how it ends", NEW + "\n    # how it ends")),
        ("a", START + PLACEHOLDER + END, START + NEW + END),
        ("a", START + FLEET + PLACEHOLDER, START + FLEET + NEW),
        ("a", f"{START}{PLACEHOLDER}  b: {FLOW}\n", f"{START}{NEW}  b: {FLOW}\n"),
        ("a", MERGED, MERGED + NEW),
        ("a", BARE + "    curve: {points: []}\n", BARE + NEW),
    ],
    ids=["replaced", "wide characters", "none yet", "plan init", "last line", "before a tier", "merged", "invalid"],
)
def test_curve_is_put_in_its_place(tmp_path: Path, tier: str, text: str, expected: str) -> None:
    new_text, plan = edited(plan_in(tmp_path, text), tier)
    assert new_text == expected
    assert [name for name, parts in plan.tiers.items() if parts.curve == CURVE] == [tier]


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}  a: {FLOW}\n",
        f"schema: 1\ntiers: {{a: {FLOW}}}\n",
        '{"schema": 1, "tiers": {"a": {"model": "m", "engine": "e"}}}',
        f"{HEAD}  b: &b\n    {BODY}  a: *b\n",
        f"{HEAD}  a: &a\n    {BODY}  b: *a\n",
        f"{HEAD}  a: &a\n    {BODY}  b:\n    <<: *a\n    cold_start_seconds: 9\n",
        f"{HEAD}  a:\n    {BODY}    curve: &c {{points: [{{completed_rps: 3}}]}}\n  b:\n    {BODY}    curve: *c\n",
        f"base: &base\n  tiers:\n    a:\n      {BODY}<<: *base\nschema: 1\n",
        f"{HEAD}  a:\n    ? curve\n    : points: [{{completed_rps: 3}}]\n    {BODY}",
    ],
)
def test_unsafe_edit_is_refused(tmp_path: Path, text: str) -> None:
    path = plan_in(tmp_path, text)
    place = "tiers.a is in braces, or shares parts with other places of the file"
    assert refused(path) == f"{path}: {place}, so it cannot be edited safely; {BY_HAND}"


def test_invalid_plan_is_refused_with_its_problems(tmp_path: Path) -> None:
    path = plan_in(tmp_path, f"{HEAD}  a:\n    {BODY}    fleet: {{instances: none}}\n    oops: 1\n")
    sentence = refused(path)
    assert [line.partition("; did you mean")[0] for line in sentence.splitlines()] == [
        f"{path}: is no valid plan, and nothing was written",
        f"{path}: tiers.a.fleet.instances: must be a valid integer",
        f"{path}: tiers.a.oops: is not a key",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: [", "is not YAML"),
        ("- 1\n", "is no plan: it has no tiers"),
        ("schema: 1\n", "is no plan: it has no tiers"),
        ("tiers: {}\n", "is no plan: it has no tiers"),
        (f"{HEAD}  a:\n    {BODY}    model: n\n", "tiers.a.model: is given twice"),
        (f"{HEAD}  2026-01-01:\n    {BODY}", "tiers.2026-01-01: a key must be text: put it in quotes"),
    ],
)
def test_file_that_is_no_plan_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"plan\.yaml") as caught:
        open_plan(plan_in(tmp_path, text))
    assert said in str(caught.value)
    with pytest.raises(ConfigError, match="there is no such file"):
        open_plan(tmp_path / "none.yaml")


def test_tier_is_the_one_asked_for(tmp_path: Path) -> None:
    plan = open_plan(plan_in(tmp_path))
    assert chosen_tier(plan, "small") == "small"
    with pytest.raises(ConfigError, match=r"has no tier huge; it has big, small$"):
        chosen_tier(plan, "huge")
    with pytest.raises(ConfigError, match=r"has several tiers; say which with --tier: big, small$"):
        chosen_tier(plan, None)
    assert chosen_tier(open_plan(plan_in(tmp_path, f"{HEAD}  a:\n    {BODY}")), None) == "a"
    with pytest.raises(ConfigError, match=r"has no tier a; it has a$"):
        chosen_tier(open_plan(plan_in(tmp_path, f"{HEAD}  a: 3\n")), None)


def test_writing_keeps_mode_owner_and_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = plan_in(tmp_path / "real")
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12345, 12346)
    before = real.stat()
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    plan = open_plan(link)
    assert write(plan, replace_curve(plan, "big", CURVE)[0])
    assert link.is_symlink()
    after = real.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert [path.name for path in real.parent.iterdir()] == ["plan.yaml"]
    assert load_plan(link).tiers["big"].curve == CURVE


def test_unchanged_file_is_not_written(tmp_path: Path) -> None:
    path = plan_in(tmp_path)
    before = path.stat().st_ino
    plan = open_plan(path)
    assert not write(plan, plan.text)
    assert path.stat().st_ino == before


def test_failed_write_leaves_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    path = plan_in(tmp_path)
    plan = open_plan(path)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        write(plan, plan.text + "# more\n")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]
    assert path.read_text() == PLAN
