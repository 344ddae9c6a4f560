"""Documentation and README: links lead somewhere, commands, options, metrics and files exist, configurations load.

docs/public-surface.json: what other people's programs may rely on is still there, and new names are listed.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from building import build_once
from daemon_runs import at, run_command
from paths import ROOT, TESTS
from promtool import complaints
from test_surfaces_agree import NOW, TIER, slower, surfaces
from tools import run_words, tool

from agent.cli import main
from agent.cli.main import command_line
from agent.config.load import config_schema, parse_config
from exporters.docs.reference_pages import RenderInputs, list_contexts, public_surface, surface_text, walk_schema
from exporters.metrics import names
from exporters.status.page import status_json
from rules.catalogue.registry import margin_of
from rules.plan.replica_count import Margin
from rules.telemetry.families import FAMILIES, FamilyKind
from rules.telemetry.signals import SIGNALS

DOCS = ROOT / "docs"
PAGES = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCHEMA = (DOCS / "config.schema.json").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "systemd" / "sizewatch.service").read_text(encoding="utf-8")

SUFFIXES = ("_bucket", "_sum", "_count")
CODE = re.compile(r"`([^`\n]+)`")
PROMQL_FUNCTIONS = re.compile(r"[({]")


def code_spans(page: str) -> list[str]:
    """What stands between single backquotes, fenced blocks left out."""
    return CODE.findall(re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The command lines of sizewatch that a page shows, in its text and in its blocks."""
    fenced = [*blocks(page, "sh"), *blocks(page, "console"), *blocks(page, "")]
    lines = [line for block in fenced for line in block.replace("\\\n", " ").splitlines()]
    prefix = re.compile(r"^(\$ )?(sudo )?(/opt/sizewatch/bin/)?(?=sizewatch [a-z])")
    return [prefix.sub("", text).split(" #")[0] for text in (*code_spans(page), *lines) if prefix.search(text)]


@pytest.mark.parametrize("page", PAGES)
def test_named_metrics_are_exported(page: str) -> None:
    exported = {metric.name for metric in names.ALL}
    exported |= {m.name + suffix for m in names.ALL if m.kind is FamilyKind.HISTOGRAM for suffix in SUFFIXES}
    named = set(re.findall(r"\bsizewatch_[a-z0-9_]+", PAGES[page]))
    assert sorted(named - exported) == []


def check_commands(shown: list[str]) -> None:
    known = {
        context.command_path: {"-h", "--help", *(name for one in context.command.params for name in one.opts)}
        for context in list_contexts(main.command_line())
    }
    for command in shown:
        words = shlex.split(command)
        name = next((" ".join(words[:n]) for n in (3, 2) if " ".join(words[:n]) in known), "")
        assert name or words[1] == "COMMAND", f"there is no `{command}`"
        options = {re.sub(r"[\[\]]", "", word) for word in words if re.match(r"\[?-", word)}
        assert options <= known.get(name, {"--help"}), f"`{command}`"


@pytest.mark.parametrize("page", PAGES)
def test_shown_commands_exist(page: str) -> None:
    check_commands(commands(page))


def test_readme_commands_and_links_exist() -> None:
    shown = re.findall(r"^(sizewatch [^#\n]+)", README, flags=re.MULTILINE)
    assert len(shown) >= 8
    check_commands(shown)
    linked = re.findall(r"\]\((?!https://)([^)#\s]+)", README)
    assert [name for name in linked if not (ROOT / name).is_file()] == []
    assert set(re.findall(r"\]\(([^)#\s]+)", PAGES["index.md"])) == PAGES.keys() - {"index.md"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_and_headings(page: str) -> None:
    for target in re.findall(r"\]\((?!https://)([^)\s]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        linked = (DOCS / page).parent / path if path else DOCS / page
        name = linked.resolve().relative_to(DOCS).as_posix()
        assert name in PAGES, target
        heads = re.findall(r"^#+ (.+)$", PAGES[name], flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not anchor or anchor in anchors, f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    named = [
        span for span in code_spans(page) if re.fullmatch(r"(agent|rules|exporters|tests|docs|deploy)/[\w./-]+", span)
    ]
    assert [span for span in named if not list(ROOT.glob(span.replace("...", "*")))] == []


def test_duration_option_shows_its_default() -> None:
    parameters = [one for context in list_contexts(main.command_line()) for one in context.command.params]
    shown = [parameter for parameter in parameters if str(parameter.metavar or "")[:1].isdigit()]
    assert shown
    for parameter in shown:
        assert parameter.metavar == parameter.default


def test_the_configurations_shown_can_be_used(tmp_path: Path) -> None:
    whole: dict[str, Any] = {}
    for block in (*blocks("install.md", "yaml"), *blocks("connections.md", "yaml")):
        data = yaml.safe_load(block)
        if set(data) & {"targets", "web"}:
            whole |= data
    config = parse_config(whole, folder=tmp_path, environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert len(config.targets) == 2
    assert config.web.config_file is not None


def test_shown_defaults_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| .*? \| `(.+?)` \| ", PAGES["configuration.md"], flags=re.MULTILINE)
    shown = {path: yaml.safe_load(default) for path, default in rows}
    defaults = {path: part.get("default") for path, part, _ in walk_schema(json.loads(SCHEMA))}
    assert len(shown) > 40
    assert shown == {path: defaults[path] for path in shown}


def test_the_margin_shown_can_be_configured(tmp_path: Path) -> None:
    (shown,) = blocks("prewarming.md", "yaml")
    address = {"url": "http://127.0.0.1:8000/metrics", "tier": "h100-llama70b-fp8"}
    config = parse_config({"targets": [address]} | yaml.safe_load(shown), folder=tmp_path, environment={})
    assert margin_of(config.thresholds["h100-llama70b-fp8"]) == Margin(target_utilization=0.85, survives_loss_from=0)


def test_the_unit_is_hardened() -> None:
    wanted = ("DynamicUser=yes", "ProtectSystem=strict", "StateDirectory=sizewatch", "SupplementaryGroups=video")
    for line in (*wanted, "NoNewPrivileges=yes", "CapabilityBoundingSet=", "RestartPreventExitStatus=2"):
        assert f"\n{line}\n" in UNIT
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in UNIT
    # Either of them limits the devices of a service to a short list without the GPUs.
    assert not re.search(r"^(PrivateDevices|ProtectClock|DevicePolicy|DeviceAllow)=", UNIT, re.MULTILINE)
    (command,) = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    assert command == "/opt/sizewatch/bin/sizewatch run -c /etc/sizewatch/sizewatch.yaml"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    unit = tmp_path / "sizewatch.service"
    unit.write_text(UNIT.replace("/opt/sizewatch/bin/sizewatch", "/bin/true"), encoding="utf-8")
    found = run_words([analyze, "verify", unit])
    assert found.returncode == 0, found.stderr
    assert "sizewatch.service" not in found.stderr


def expressions(page: str) -> list[str]:
    """PromQL among a page's code spans."""
    return [s for s in code_spans(page) if "sizewatch_" in s and PROMQL_FUNCTIONS.search(s)]


def test_prometheus_accepts_documented_queries(tmp_path: Path) -> None:
    queries = expressions("runbooks.md")
    assert len(queries) > 20
    recorded = [{"record": f"query_{place}", "expr": query} for place, query in enumerate(queries)]
    (shown,) = (data for b in blocks("install.md", "yaml") if "groups" in (data := yaml.safe_load(b)))
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [*shown["groups"], {"name": "queries", "rules": recorded}]}))
    assert complaints(path) == ""


LISTED = json.loads((ROOT / "docs" / "public-surface.json").read_text(encoding="utf-8"))
GONE = {name: version for version, names in LISTED["removed"].items() for name in names}
DATA_KEYS = {one.name for one in (*SIGNALS, *FAMILIES)}
"""Keys of a map by signal or family: its data, no part of the form."""

MAPS = ("weights",)
"""Other keys whose value is a map by names that are data."""

HISTORY_COMMANDS = {
    "check": (),
    "prewarm": ("--tier", TIER),
    "whatif": ("--tier", TIER, "--instances", "13"),
    "timeline": (),
    "forecast": ("--tier", TIER),
    "backtest": ("--tier", TIER),
    "doctor": (),
}
FILE_COMMANDS = {
    "replay": (str(TESTS / "recordings" / "cascade_fast"), "--plan", str(TESTS / "plans" / "cpu-small.yaml")),
    "inspect": (str(TESTS / "pages" / "vllm-0.33.0.prom"),),
}


def json_keys(value: Any, place: str = "") -> Iterator[str]:
    """The dotted path of every key; lists add nothing, and a name that is data is a star."""
    if isinstance(value, list):
        for one in value:
            yield from json_keys(one, place)
    elif isinstance(value, dict):
        for key, below in value.items():
            is_data = key in DATA_KEYS or place.rstrip(".").rpartition(".")[2] in MAPS
            path = f"{place}{'*' if is_data else key}"
            yield path
            yield from json_keys(below, f"{path}.")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The keys of what each command prints about a fleet whose benchmark production refutes."""
    return build_once(tmp_path_factory, "surface", keys_by_command)


def keys_by_command(folder: Path) -> dict[str, set[str]]:
    told = surfaces(folder, slower).status
    asked = {name: ("-c", str(folder / "sizewatch.yaml"), *words) for name, words in HISTORY_COMMANDS.items()}
    found = {"/api/status": set(json_keys(json.loads(json.dumps(status_json(told)))))}
    for name, words in {**asked, **FILE_COMMANDS}.items():
        with at(NOW):
            _, out, _ = run_command(name, *words, "--format", "json")
        found[name] = set(json_keys(json.loads(out)))
    return found


def inputs() -> RenderInputs:
    return RenderInputs(config_schema=config_schema(), command_line=command_line())


@pytest.mark.parametrize("kind", sorted(set(LISTED) - {"removed", "json"}))
def test_no_released_name_is_gone(kind: str) -> None:
    """Who removes one moves it to `removed`, says so in CHANGELOG.md, and refuses the old name with a hint."""
    assert sorted(set(LISTED[kind]) - set(public_surface(inputs())[kind])) == []


@pytest.mark.parametrize("command", ["/api/status", *HISTORY_COMMANDS, *FILE_COMMANDS])
def test_command_json_keeps_its_keys(documents: dict[str, set[str]], command: str) -> None:
    listed = set(LISTED["json"][command])
    assert sorted(listed - documents[command]) == [], "removed or renamed: programs that read it break"
    assert sorted(documents[command] - listed) == [], "new: add these to docs/public-surface.json"


def test_removed_names_are_in_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0].split(" ")[0]: part for part in changes.split("\n## ")[1:]}
    assert [name for name, version in GONE.items() if f"`{name}`" not in sections.get(version, "")] == []


def test_rendering_adds_names_and_takes_none_away() -> None:
    present = json.dumps({"removed": {"2.0.0": ["old"]}, "rules": ["Renamed"], "json": {"check": ["tiers"]}})
    made = json.loads(surface_text({"rules": ["New", "old"]}, present))
    assert made["rules"] == ["New", "Renamed"]
    assert made["json"] == {"check": ["tiers"]}


def test_keys_below_lists_are_found() -> None:
    listed = set(public_surface(inputs())["configuration"])
    assert {"role", "targets.url", "web.listen", "alerting.alertmanagers.basic_auth.password_file"} <= listed
    assert "tiers.curve.points" in set(public_surface(inputs())["plan"])
