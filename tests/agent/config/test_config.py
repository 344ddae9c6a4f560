import copy
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from golden_text import check_golden
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT, TESTS

from agent.config.config import Config
from agent.config.files import load_plan, read_document
from agent.config.load import LoadedConfig, build_tier_contexts, config_schema, find, load, parse_config, plan_versions
from agent.config.peer import BasicAuth, Peer, TlsConfig
from agent.config.targets import MAX_PAGE_BYTES
from agent.errors import ConfigError
from agent.scrape import scrapers
from exporters.docs.reference_pages import configuration_page
from rules.plan.schema import parse_plan, plan_version

SECRET = "hunter2"
TARGET = {"url": "http://127.0.0.1:8000/metrics", "tier": "cpu-small"}
OTHER = {"url": "http://127.0.0.1:8001/metrics", "tier": "cpu-small"}
CPU_SMALL = load_plan(TESTS / "plans" / "cpu-small.yaml")


def target(**keys: Any) -> dict[str, Any]:
    return {"targets": [{**TARGET, **keys}]}


def config(**keys: Any) -> Config:
    return parse_config({"targets": [TARGET], **keys}, environment={})


def problems(data: object, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, **{"environment": {}, **options})
    return caught.value.problems


def file_problems(path: Path) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path, environment={})
    return caught.value.problems


def written(folder: Path, text: str, name: str = "sizewatch.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_ten_mistakes_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sizewatch.yaml"
    shutil.copy(TESTS / "configs" / "ten-mistakes.yaml", path)
    shutil.copy(TESTS / "plans" / "cpu-small.yaml", tmp_path / "plan.yaml")
    problems = (problem.removeprefix(f"{tmp_path}/") for problem in file_problems(path))
    check_golden(__file__, "ten_mistakes.txt", "\n".join(sorted(problems)))


def test_problems_of_the_plan_are_told_too(tmp_path: Path) -> None:
    shutil.copy(TESTS / "plans" / "ten-mistakes.yaml", tmp_path / "plan.yaml")
    path = written(tmp_path, "plan: plan.yaml\nrole: nodes\n")
    found = file_problems(path)
    assert found[0] == f"{path}: role: must be 'standalone', 'node' or 'fleet'"
    assert len(found) == 11
    assert f"{tmp_path}/plan.yaml: tiers.a100-llama70b-int8.gpu.per_replica: must be a valid integer" in found


def test_misplaced_secret_is_never_repeated(tmp_path: Path) -> None:
    texts = (
        f"targets: [{{url: 'http://u:{SECRET}@x/', tier: t}}]",
        f"targets: [{{url: 'http://u:{SECRET}@[x/', tier: t}}]",
        f"targets: [{{url: '{SECRET}', tier: t, basic_auth: '{SECRET}', tls: {SECRET}, bearer_token_file: [{SECRET}]}}]",
        f"targets: [{{url: 'http://x/?${{{SECRET}}}', tier: t, password: {SECRET}, gpus: {SECRET}}}]",
        f"targets: '{SECRET}'",
        f"targets: ['http://u:{SECRET}@x/']",
        f"web: {{bearer_token: {SECRET}, listen: 'x:{SECRET}', tls: {SECRET}}}",
        f"targets: *{SECRET}",
        f"targets: [{{password: !!{SECRET} x}}]",
        f"password: '{SECRET}",
        f"{{password: {SECRET}: {SECRET}}}",
        SECRET,
        f"[{SECRET}]",
    )
    for text in texts:
        for name in ("sizewatch.yaml", "sizewatch.json"):
            found = file_problems(written(tmp_path, text, name))
            assert found
            assert SECRET not in "\n".join(found), text


@pytest.mark.parametrize(
    ("data", "expected"),
    [(None, "file: must be a mapping of keys to values"), ([], "file: must be a"), ({1: 2}, "[1]: Keys should be")],
)
def test_other_documents_are_no_configuration(data: object, expected: str) -> None:
    assert problems(data)[0].startswith(expected)


def test_unknown_threshold_is_named_beside_wrong_type() -> None:
    wrong = {"KvEviction": {"warning": "much", "colour": 1}, "NoRule": {"below": 1}, "GpuMemoryHigh": 3, 5: {}}
    named = "\n".join(problems({**target(), "thresholds": {"cpu-small": wrong}}))
    for place in ("KvEviction.warning: must be a valid", "KvEviction.colour: is not a thres", "NoRule: is not a rule"):
        assert f"thresholds.cpu-small.{place}" in named


def test_pool_outside_the_plan_is_a_mistake() -> None:
    found = problems(target(pool="decode"), plan=CPU_SMALL)
    assert found == ("targets[0].pool: must be mixed, as the plan says of tier cpu-small, not decode",)


def test_defaults_need_a_target_and_an_interval() -> None:
    plain = config(scrape_interval="5s")
    assert plain.role == "standalone"
    assert (plain.scrape_interval_seconds, plain.timeout_seconds()) == (5.0, 5.0)
    assert str(plain.history_path) == "sizewatch-data/history.db"
    assert plain.web.address == ("127.0.0.1", 19095)
    assert scrapers.list_targets(plain) == (
        scrapers.Target(
            tier="cpu-small",
            replica="127.0.0.1:8000",
            pool="mixed",
            peer=Peer(url="http://127.0.0.1:8000/metrics", timeout_seconds=5.0, max_bytes=MAX_PAGE_BYTES),
            gpus=("auto",),
        ),
    )


TLS = {"ca_file": "/ca", "cert_file": "/c", "key_file": "/k", "server_name": "n", "insecure_skip_verify": True}


def test_every_target_key_is_taken() -> None:
    password = {"username": "u", "password_file": "/p"}
    names = {"tier": "t", "replica": "r", "pool": "decode", "engine": "vllm", "engine_version": "0.32.0"}
    limits = {"scrape_timeout": "500ms", "gpus": [3, "GPU-1"], "max_page_bytes": 2048}
    keys = {"url": "https://[::1]/metrics", **names, **limits, "basic_auth": password, "tls": TLS}
    (watched,) = scrapers.list_targets(parse_config({"targets": [keys]}))
    peer = watched.peer
    assert watched == scrapers.Target(**names, gpus=("3", "GPU-1"), peer=peer)
    assert (peer.url, peer.timeout_seconds, peer.max_bytes) == ("https://[::1]/metrics", 0.5, 2048)
    assert (peer.basic_auth, peer.tls) == (BasicAuth(**password), TlsConfig(**TLS))


@pytest.mark.parametrize(
    ("url", "name"),
    [("http://a/", "a:80"), ("https://a/", "a:443"), ("https://[::1]:8000/", "[::1]:8000"), ("http://A.b:1/", "a.b:1")],
)
def test_unnamed_replica_is_its_address(url: str, name: str) -> None:
    assert parse_config(target(url=url)).targets[0].name == name


def test_node_keeps_no_history_by_default() -> None:
    assert config(role="node").history_path is None
    assert config(role="node", data_dir="/d").data_dir == "/d"
    assert parse_config({}, role="node").data_dir is None
    assert parse_config({"role": "node"}, role="standalone").data_dir == "sizewatch-data"


@pytest.mark.parametrize(
    ("listen", "address"),
    [(":19095", ("", 19095)), ("[::1]:80", ("::1", 80)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("a-b:65535", ("a-b", 65535))],
)
def test_listen_address_is_host_and_port(listen: str, address: tuple[str, int]) -> None:
    assert config(web={"listen": listen}).web.address == address


def test_relative_files_stand_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    shutil.copy(TESTS / "plans" / "cpu-small.yaml", tmp_path / "plans" / "p.yaml")
    text = "plan: plans/p.yaml\ndata_dir: data\ntargets: [{url: 'http://a/', tier: cpu-small, bearer_token_file: '${D}/t'}]\n"
    loaded = load(written(tmp_path, text), environment={"D": "secrets"})
    assert loaded.config.plan == str(tmp_path / "plans/p.yaml")
    assert loaded.config.data_dir == str(tmp_path / "data")
    assert loaded.config.targets[0].bearer_token_file == str(tmp_path / "secrets/t")
    assert loaded.plan == CPU_SMALL
    absolute = load(written(tmp_path, text), environment={"D": "/run/secrets"})
    assert absolute.config.targets[0].bearer_token_file == "/run/secrets/t"


def test_json_is_read_as_well(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, '{"targets": [{"url": "http:\\/\\/a/", "tier": "t"}]}', "c.json"))
    assert loaded.config.targets[0].url == "http://a/"
    assert file_problems(written(tmp_path, '{"role":\n "node",}', "c.json"))[0].startswith(
        f"{tmp_path}/c.json: is not JSON"
    )
    found = file_problems(written(tmp_path, '{"role": "node", "role": "node"}', "c.json"))
    assert found == (f"{tmp_path}/c.json: role: is given twice",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("role: node\nweb:\n\tlisten: ':1'\n", "found character '\\t' that cannot start any token (line 3)"),
        ("role: node\ntargets: [\n", "expected the node content, but found '<stream end>' (line 3)"),
        ("targets: [a, b}\n", "expected ',' or ']', but got '}' (line 1)"),
        ("a: 1\n---\nb: 2\n", "expected a single document in the stream, but found another document (line 2)"),
        ("role: !!python/object:os.system x\n", "could not determine a constructor for the tag something (line 1)"),
        ("role: node\nweb: {}\nrole: node\n", ": role: is given twice"),
        ("targets:\n- url: http://a/\n  tier: t\n  tier: u\n", ": targets[0].tier: is given twice"),
        ("thresholds: {t: {KvEviction: {5: 1}}}", ": thresholds.t.KvEviction.5: a key must be text: put it in quotes"),
        ("a: 2026-13-45\n", ": month must be in 1..12"),
        ("role: \x07\n", ": is not YAML: a character may not stand in a text file"),
        ("[" * 5000 + "]" * 5000, ": is nested too deeply"),
    ],
)
def test_file_that_is_no_yaml_is_told(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    (problem,) = file_problems(path)
    assert problem.startswith(f"{path}: ")
    assert problem.endswith(expected)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    assert file_problems(tmp_path / "no.yaml") == (f"{tmp_path}/no.yaml: there is no such file",)
    assert file_problems(tmp_path) == (f"{tmp_path}: cannot be read: Is a directory",)
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"role: \xff")
    assert file_problems(path) == (f"{path}: is not a text file in UTF-8",)
    path.write_bytes(b"#" * (5 * 1024 * 1024))
    assert "is larger than" in file_problems(path)[0]
    named = written(tmp_path, "plan: gone.yaml\n")
    assert file_problems(named) == (f"{named}: plan: {tmp_path}/gone.yaml: there is no such file",)


def test_problems_of_a_plan_name_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, "schema: 1\ntiers:\n  'my tier':\n    model: m\n  b: {model: 3}\n", "plan.yaml")
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert f"{path}: tiers.b.model: must be a valid string" in caught.value.problems
    assert f'{path}: tiers["my tier"].engine: is missing' in caught.value.problems


def test_aliased_part_is_no_repeated_key(tmp_path: Path) -> None:
    text = "a: &a {x: [1, 2]}\nb: *a\nc: &c\n  <<: *a\n  y: 1\nd: {<<: *c, x: 3}\n"
    whole = {"x": [1, 2], "y": 1}
    part = {"x": [1, 2]}
    assert read_document(written(tmp_path, text)) == {"a": part, "b": part, "c": whole, "d": {"x": 3, "y": 1}}


def test_billions_of_values_are_refused(tmp_path: Path) -> None:
    rows = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match=r"says more than 200000 values once its aliases \(\*name\) are written out"):
        read_document(written(tmp_path, "\n".join(["l0: &l0 [x]", *rows])))


def test_first_configuration_found_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find("other.yaml") == Path("other.yaml")
    with pytest.raises(ConfigError, match=r"neither sizewatch.yaml nor .*; `sizewatch init` writes one, -c names anot"):
        find(None)
    written(tmp_path, "")
    assert find(None) == Path("sizewatch.yaml")


def warnings(folder: Path, text: str) -> tuple[str, ...]:
    shutil.copy(TESTS / "plans" / "guide-h100.yaml", folder / "plan.yaml")
    path = written(folder, f"plan: plan.yaml\n{text}")
    return tuple(warning.removeprefix(f"{path}") for warning in load(path).warnings)


SOUND = "targets: [{url: 'http://a/', tier: h100-llama70b-fp8}]\n"
OTHER_TIER = SOUND.replace("llama", "lama").replace("-fp8", "")
UNCHECKED = "url: 'https://a/', tls: {insecure_skip_verify: true}"
INSECURE = "tls.insecure_skip_verify: anyone on the way can answer for it; use ca_file"
OPEN = "0.0.0.0:19095 is open to other machines without"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SOUND, ()),
        ("role: node\n", (": targets: is empty; nothing is watched",)),
        (OTHER_TIER, (": targets: none is of the plan's tier h100-llama70b-fp8; nothing of it is watched here",)),
        ("role: node\n" + OTHER_TIER, ()),
        (SOUND + "web: {listen: 'localhost:1'}", ()),
        (SOUND + "web: {listen: '[::1]:1'}", ()),
        (SOUND + "web: {listen: '127.0.0.5:1'}", ()),
        (SOUND + "web: {listen: '0.0.0.0:19095'}", (f": web.listen: {OPEN} TLS and authentication",)),
        (SOUND + "web: {listen: '0.0.0.0:19095', config_file: web.yml}", (f": web.listen: {OPEN} authentication",)),
        (SOUND + "web: {listen: ':19095', bearer_token_file: t}", (f": web.listen: {OPEN[7:]} TLS",)),
        (SOUND + "web: {listen: ':19095', bearer_token_file: t, config_file: web.yml}", ()),
        (f"targets: [{{tier: h100-llama70b-fp8, {UNCHECKED}}}]\n", (f": targets[0].{INSECURE}",)),
        (SOUND + f"gpus: {{source: dcgm, dcgm: {{{UNCHECKED}}}}}\n", (f": gpus.dcgm.{INSECURE}",)),
    ],
)
def test_weakness_is_a_warning_with_its_place(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: c, key_file: k}")
    found = warnings(tmp_path, text)
    assert [one.partition("; set tls_server_config")[0] for one in found] == list(expected)


NOTHING = (
    "is watched and compared with nothing: h100-lama70b is not a tier of the plan; did you mean h100-llama70b-fp8?"
)
FLEET = "role: fleet\nstore: {url: 'http://a/'}\ntiers: {h100-lama70b: {from: agents}}\n"
NODES = "discovery: {kubernetes: {node: n, tiers: [{tier: h100-lama70b}]}}\n"
TWICE = SOUND.replace("}]", "}, {url: 'http://a:80/', tier: h100-lama70b}]")
LOOPBACK = SOUND.replace("//a/", "//127.0.0.1:8000/").replace(
    "}]", "}, {url: 'http://localhost:8000/', tier: h100-llama70b-fp8}]"
)
COUNTED_TWICE = (
    "is that of targets[0] (tier h100-llama70b-fp8); what one engine does is counted twice: write the address"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SOUND, []),
        (OTHER_TIER, [f": targets[0].tier: {NOTHING}"]),
        (NODES, [f": discovery.kubernetes.tiers[0].tier: {NOTHING}"]),
        (FLEET, [f": tiers.h100-lama70b: {NOTHING}"]),
        (TWICE, [f": targets[1].tier: {NOTHING}", f": targets[1].url: {COUNTED_TWICE}"]),
        (LOOPBACK, [f": targets[1].url: {COUNTED_TWICE}"]),
    ],
)
def test_wrong_tier_is_a_mistake_and_runs(tmp_path: Path, text: str, expected: list[str]) -> None:
    shutil.copy(TESTS / "plans" / "guide-h100.yaml", tmp_path / "plan.yaml")
    path = written(tmp_path, f"plan: plan.yaml\n{text}")
    loaded = load(path)
    assert [told.removeprefix(f"{path}").partition(" of another")[0] for told in loaded.mistakes] == expected
    assert loaded.grave == loaded.mistakes


def test_mistakes_of_the_plan_are_grave_too(tmp_path: Path) -> None:
    plan = (TESTS / "plans" / "guide-h100.yaml").read_text(encoding="utf-8")
    written(tmp_path, plan.replace("ttft_p99_seconds: 2.0", "ttft_p99_seconds: 2000.0"), "plan.yaml")
    tier, slo = load(written(tmp_path, f"plan: plan.yaml\n{OTHER_TIER}")).grave
    assert ["targets[0].tier" in tier, "slo.ttft_p99_seconds: 2000 s is above 60" in slo] == [True, True]


def parsed(folder: Path, planned: bool = True, **keys: Any) -> LoadedConfig:
    plan = CPU_SMALL if planned else None
    return LoadedConfig(path=folder, config=parse_config(keys, folder=folder, plan=plan), plan=plan, warnings=())


def test_every_tier_has_a_view(tmp_path: Path) -> None:
    second = {**TARGET, "replica": "b", "url": "http://127.0.0.1:8001/metrics"}
    other = {**TARGET, "tier": "new", "replica": "n", "pool": "prefill"}
    limits = {"TargetDown": {"misses": 5.0}}
    given = parsed(tmp_path, targets=[TARGET, second, other], thresholds={"cpu-small": limits})
    contexts = build_tier_contexts(given)
    assert list(contexts) == ["cpu-small", "new"]
    assert contexts["cpu-small"].curve is not None
    assert (contexts["cpu-small"].limits, contexts["new"].plan, contexts["new"].curve) == (limits, None, None)
    assert contexts["cpu-small"].pools == {"127.0.0.1:8000": "mixed", "b": "mixed"}
    assert contexts["new"].pools == {"n": "prefill"}
    assert list(build_tier_contexts(parsed(tmp_path))) == ["cpu-small"]


def test_versions_are_of_planned_tiers(tmp_path: Path) -> None:
    found = plan_versions(parsed(tmp_path, targets=[{**TARGET, "tier": "new"}]))
    assert found == {"cpu-small": plan_version(CPU_SMALL.tiers["cpu-small"])}
    assert plan_versions(parsed(tmp_path, planned=False)) == {}


def example() -> Any:
    """Return the configuration that docs/install.md shows."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    return next(
        data
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if "targets" in (data := yaml.safe_load(block))
    )


def test_documented_example_is_sound() -> None:
    plan = parse_plan(yaml.safe_load((ROOT / "tests/plans/guide-h100.yaml").read_text(encoding="utf-8")))
    parsed = parse_config(example(), environment={"CREDENTIALS_DIRECTORY": "/run"}, plan=plan)
    assert len(parsed.targets) == len(example()["targets"])
    assert list(jsonschema.Draft202012Validator(config_schema()).iter_errors(example())) == []
    events = [{"name": "sale", "start": "2026-11-27", "duration": "1d", "factor": 3.0}]
    forecast = {"zone": "UTC", "country": "DE-BY", "bin": "15m", "events": events}
    jsonschema.Draft202012Validator(config_schema()).validate({**example(), "forecast": forecast})


def test_every_key_has_its_row() -> None:
    schema = config_schema()
    rows = [line for line in configuration_page(schema).splitlines() if line.startswith("| `")]
    assert all(len(re.split(r"(?<!\\) \| ", row.strip("| "))[-1]) > 5 for row in rows)
    keys = {key for part in (schema, *schema["$defs"].values()) for key in part["properties"]}
    shown = {key for row in rows for key in re.split(r"[.\[\]]+", row.split("`")[1])}
    assert keys <= shown


@pytest.mark.parametrize(
    "change",
    [
        {"role": "cluster"},
        {"scrape_interval": 15},
        {"scrape_intervall": "15s"},
        {"targets": [{"url": "http://x/"}]},
        {"targets": [{"url": "http://x/", "tier": "t", "gpus": "all"}]},
        {"web": {"tls": {"cert_file": "x"}}},
        *({"forecast": keys} for keys in ({"bin": 5}, {"country": "Germany"}, {"events": [{}]}, {"quantile": 2})),
    ],
)
def test_schema_refuses_visible_mistakes(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(config_schema()).validate({**example(), **change})


FULL: dict[str, Any] = {
    "role": "standalone",
    "plan": "p",
    "scrape_interval": "15s",
    "scrape_timeout": "10s",
    "data_dir": "d",
    "targets": [
        {**TARGET, "gpus": [0], "tls": {"ca_file": "c"}, "basic_auth": {"username": "u", "password_file": "f"}},
        {**OTHER, "pid_file": "p", "bearer_token_file": "t", "engine": "vllm", "replica": "r"},
    ],
    "gpus": {"source": "dcgm", "dcgm": {"url": "http://x/"}},
    "thresholds": {"cpu-small": {"KvEviction": {"warning": 0.1}}},
    "web": {"listen": ":1", "tls": {"cert_file": "c", "key_file": "k"}},
    "logging": {"level": "info"},
}


def places(part: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [path, *(place for key, value in entries for place in places(value, (*path, key)))]


NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**400),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["http://[", "//", ":", "auto", "1s", "${", "\ud800", "http://\ud800/", "http://x:²/"]),
    st.dates(),
    st.lists(st.integers(0, 3) | st.text(max_size=2) | st.none(), max_size=3),
    st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), st.integers(), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(places(FULL)), value=NASTY)
def test_any_value_is_used_or_refused(place: tuple[str | int, ...], value: object) -> None:
    holder: Any = {"root": copy.deepcopy(FULL)}
    *way, last = ("root", *place)
    part: Any = holder
    for key in way:
        part = part[key]
    part[last] = value
    found: tuple[str, ...] = ()
    try:
        parse_config(holder["root"], environment={}, plan=CPU_SMALL)
    except ConfigError as bad:
        found = bad.problems
    assert all(": " in problem for problem in found)
    "\n".join(found).encode()
