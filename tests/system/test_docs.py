"""The documentation against the program: names, commands, links and numbers on the pages are those of the code."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from paths import ROOT
from tools import tool
from waiting import CEILING_SECONDS

from agent.cli import main
from agent.config.load import parse_config
from agent.config.targets import GpusConfig
from agent.doctor.machine import FREE_BYTES_WARNING
from agent.durations import parse_duration
from agent.history import schema, write_buffer
from agent.http_server import server
from agent.http_server.credentials import SHORTEST_TOKEN
from exporters.docs.command_pages import commands_page
from exporters.docs.signal_pages import engines_page, signals_page
from exporters.metrics import names
from rules.catalogue.registry import margin_of
from rules.confidence import CONFIDENCE
from rules.engines.coverage import engine_signals, exposures
from rules.engines.registry import ENGINES, normalize_name
from rules.engines.table import ALONGSIDE
from rules.evaluator.benchmark_check import FIRST_WEEK_SECONDS
from rules.gpu_sources.dcgm import OFF
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import EXPORTERS
from rules.plan.curve import CERTAIN_REQUESTS
from rules.plan.replica_count import Margin, count_replicas
from rules.telemetry.families import FAMILIES, FamilyKind
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME, SIGNALS, Gap
from rules.verdicts.context import LIKELY_CONFIDENCE, SEPARATE

DOCS = ROOT / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
UNIT = (ROOT / "deploy" / "systemd" / "sizewatch.service").read_text(encoding="utf-8")

SUFFIXES = ("_bucket", "_sum", "_count")
CODE = re.compile(r"`([^`\n]+)`")
PROMQL_FUNCTIONS = re.compile(r"[({]")


def code_spans(page: str) -> list[str]:
    """What stands between single backquotes, fenced blocks left out."""
    return CODE.findall(re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def commands(page: str) -> list[str]:
    """The command lines of sizewatch that a page shows, in its text and in its blocks."""
    fenced = [*blocks(page, "sh"), *blocks(page, "console"), *blocks(page, "")]
    lines = [line for block in fenced for line in block.replace("\\\n", " ").splitlines()]
    prefix = re.compile(r"^(\$ )?(sudo )?(/opt/sizewatch/bin/)?(?=sizewatch [a-z])")
    return [prefix.sub("", text).split(" #")[0] for text in (*code_spans(page), *lines) if prefix.search(text)]


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table rows below a heading, up to the next one."""
    section = re.split(r"^#+ ", PAGES[page].split(f"# {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_of_ours_that_a_page_names_is_exported(page: str) -> None:
    exported = {metric.name for metric in names.ALL}
    exported |= {m.name + suffix for m in names.ALL if m.kind is FamilyKind.HISTOGRAM for suffix in SUFFIXES}
    named = set(re.findall(r"\bsizewatch_[a-z0-9_]+", PAGES[page]))
    assert sorted(named - exported) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_of_an_engine_that_a_page_names_is_one_that_is_read(page: str) -> None:
    read = {row.source for engine in ENGINES for row in engine.rows} | {i for e in ENGINES for i in e.info}
    named = set(re.findall(r"`(vllm:[a-z0-9_]+)", PAGES[page]))
    assert [name for name in sorted(named) if not {normalize_name(name), normalize_name(name) + "_total"} & read] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_shows_exists_with_its_options(page: str) -> None:
    known = {parser.prog: set(parser._option_string_actions) for parser in parsers(main.parser())}
    for command in commands(page):
        words = shlex.split(command)
        name = next((" ".join(words[:n]) for n in (3, 2) if " ".join(words[:n]) in known), "")
        assert name or words[1] in ("COMMAND", "help"), f"{page}: there is no `{command}`"
        options = {re.sub(r"[\[\]]", "", word) for word in words if re.match(r"\[?-", word)}
        assert options <= known.get(name, {"--help"}), f"{page}: `{command}`"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        name, _, anchor = target.partition("#")
        assert (name or page) in PAGES, target
        heads = re.findall(r"^#+ (.+)$", PAGES[name or page], flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not anchor or anchor in anchors, f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_repository_that_a_page_names_is_there(page: str) -> None:
    named = [
        span for span in code_spans(page) if re.fullmatch(r"(agent|rules|exporters|tests|docs|deploy)/[\w./-]+", span)
    ]
    assert [span for span in named if not list(ROOT.glob(span.replace("...", "*")))] == []


def test_the_pages_show_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 20


def test_every_command_has_its_section_and_says_its_exit_codes() -> None:
    page = commands_page(main.parser())
    told: dict[str, set[int]] = {}
    for command in main.COMMANDS:
        section = page.split(f"\n## sizewatch {command.name}\n")[1].split("\n##")[0]
        codes = {int(code) for code in re.findall(r"[:;] (\d) ", section.split("Exit codes")[1])}
        assert codes >= {0, 2}, command.name
        told.setdefault(command.function("run").__module__, set()).update(codes)
    for module, codes in told.items():
        constants = vars(importlib.import_module(module))
        own = {value for name, value in constants.items() if name in ("FINE", "FINDING", "CANNOT_JUDGE")}
        assert codes == own | {0, 2} or not own, module


def test_a_duration_whose_option_shows_one_has_it_for_default() -> None:
    shown = [a for parser in parsers(main.parser()) for a in parser._actions if str(a.metavar or "")[:1].isdigit()]
    assert shown
    for action in shown:
        assert parse_duration(str(action.metavar)) == action.default


def test_the_commands_page_lists_every_option_of_every_command() -> None:
    page = commands_page(main.parser())
    for parser in parsers(main.parser()):
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or re.search(rf"`{option}[ `]", page), (parser.prog, option)


def test_the_signals_page_has_a_row_for_everything_and_nothing_else() -> None:
    page = signals_page()
    named = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert named == [s.name for s in SIGNALS] + [f.name for f in FAMILIES] + [m.name for m in names.OWN]


def test_the_engines_page_has_every_signal_every_row_and_every_family_that_is_left_alone() -> None:
    named = [line.split("`")[1] for line in engines_page().splitlines() if line.startswith("| `")]
    expected = [signal.name for signal in engine_signals()]
    for engine in ENGINES:
        expected += [row.family for row in engine.rows]
        expected += [e.signal for e in exposures(engine) if e.why]
        expected += [f"{prefix}..." for prefix, _ in engine.ignored]
    assert named == expected + [f"{prefix}..." for prefix, _ in ALONGSIDE]


def test_the_gpus_page_has_every_source_and_every_signal_of_a_gpu() -> None:
    sources = [row[0].split("`")[1] for row in rows("gpus.md", "GPUs")]
    assert sources == list(get_args(GpusConfig.model_fields["source"].annotation))
    page = PAGES["gpus.md"]
    known = {signal.name for signal in SIGNALS} - {signal.name for signal in engine_signals()}
    assert known <= set(re.findall(r"`([a-z0-9_]+)`", page))


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda exporter: exporter.name)
def test_the_gpus_page_says_of_each_exporter_what_its_table_says(exporter: GpuExporter) -> None:
    sources = [row[0].split("`")[1] for row in rows("gpus.md", "GPUs")]
    column = 1 + sources.index(exporter.name)
    told = [(CODE.findall(row[0]), row[column]) for row in rows("gpus.md", "What each gives")]
    assert len(told) == 14
    for signals, cell in told:
        wanted = frozenset[str]().union(*(families_of(BY_NAME[signal]) for signal in signals))
        read = [field for field in exporter.fields if field.ours in wanted]
        own = {name for name in wanted if "covered" not in name}
        assert (cell == "-") == (own <= set(exporter.not_exposed)), (signals, cell)
        assert ("poll" in cell) == any(field.sampled for field in read), (signals, cell)
        assert ("off by default" in cell) == (bool(read) and all(f.off == OFF for f in read)), (signals, cell)
        series = set(re.findall(r"`(DCGM_\w+)`", cell))
        assert series <= {name for field in read for name in field.names}, (signals, cell)


def test_the_gaps_are_all_explained() -> None:
    assert sorted(row[0].strip("`") for row in rows("readings.md", "Gap")) == sorted(gap.value for gap in Gap)


def test_the_numbers_of_the_concepts_are_those_of_the_program() -> None:
    page = " ".join(PAGES["concepts.md"].split())
    assert f"with {CONFIDENCE * 100:g} % confidence" in page
    assert f"with {LIKELY_CONFIDENCE * 100:g} % confidence" in page
    assert f"at least {['no', 'one', 'two', 'three', 'four'][SEPARATE]} separate minutes" in page
    assert f"fewer than {CERTAIN_REQUESTS} requests a point" in page
    assert f"below {FULL_COVERAGE:g} it is a lower bound" in " ".join(PAGES["readings.md"].split())
    assert FIRST_WEEK_SECONDS == 7 * 86400
    assert "A week after a version was first seen" in page


def test_the_numbers_of_the_history_are_those_of_the_program() -> None:
    page = PAGES["history.md"]
    words = {3 * schema.DAY: "3 days", 91 * schema.DAY: "13 weeks"}
    kept = {row[0].strip("`"): row[2] for row in rows("history.md", "What is kept")}
    assert {kind.table: words[kind.keep_seconds] for kind in schema.SUMS}.items() <= kept.items()
    assert words[schema.KEEP_SECONDS] in kept["spans"]
    assert kept["events"] == words[schema.KEEP_SECONDS]
    assert set(kept) == set(schema.TABLES) - {"series"}
    assert f"up to {write_buffer.MOST_BYTES // 2**20} MiB" in page
    assert f"below {FREE_BYTES_WARNING // 2**30} GiB" in page


def test_the_paths_of_the_web_server_are_all_told() -> None:
    section, paths = "Pages of the agent", {**server.ROUTES, **server.PROBES}
    assert [row[0].strip("`") for row in rows("web-pages.md", section)] == [
        path for path in ("/", "/api/status", "/metrics", "/healthz", "/readyz") if path in paths
    ]
    assert len(rows("web-pages.md", section)) == len(paths)
    assert f"{SHORTEST_TOKEN} characters or more" in PAGES["web-pages.md"]


def test_the_configurations_shown_can_be_used(tmp_path: Path) -> None:
    whole: dict[str, Any] = {}
    for block in (*blocks("install.md", "yaml"), *blocks("web-pages.md", "yaml")):
        data = yaml.safe_load(block)
        if set(data) & {"targets", "web"}:
            whole |= data
    config = parse_config(whole, folder=tmp_path, environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert len(config.targets) == 2
    assert config.web.tls is not None


def test_the_margin_shown_can_be_configured_and_the_usual_one_is_told(tmp_path: Path) -> None:
    (shown,) = blocks("prewarming.md", "yaml")
    address = {"url": "http://127.0.0.1:8000/metrics", "tier": "h100-llama70b-fp8"}
    config = parse_config({"targets": [address]} | yaml.safe_load(shown), folder=tmp_path, environment={})
    assert margin_of(config.thresholds["h100-llama70b-fp8"]) == Margin(target_utilization=0.85, survives_loss_from=0)
    usual, page = margin_of(), PAGES["prewarming.md"]
    assert f"NoHeadroom](runbooks.md#noheadroom), {usual.target_utilization * 100:g} %." in page
    assert f"from {usual.survives_loss_from} replicas on: at least" in page
    assert f"the count is {count_replicas(119.0, 12.0, usual)}:" in page
    full = " ".join(page.split())
    assert (
        "3 full replicas become {}, 5 become {}, 20 become {}.".format(
            *(count_replicas(float(replicas), 1.0, usual) for replicas in (3, 5, 20))
        )
        in full
    )


def test_the_unit_is_as_hardened_as_the_page_says() -> None:
    wanted = ("DynamicUser=yes", "ProtectSystem=strict", "StateDirectory=sizewatch", "SupplementaryGroups=video")
    for line in (*wanted, "NoNewPrivileges=yes", "CapabilityBoundingSet=", "RestartPreventExitStatus=2"):
        assert f"\n{line}\n" in UNIT
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in UNIT
    # Either of them limits the devices of a service to a short list without the GPUs.
    assert not re.search(r"^(PrivateDevices|ProtectClock|DevicePolicy|DeviceAllow)=", UNIT, re.MULTILINE)
    (command,) = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    assert command == "/opt/sizewatch/bin/sizewatch run -c /etc/sizewatch/sizewatch.yaml"
    assert "data_dir: /var/lib/sizewatch" in PAGES["install.md"]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    unit = tmp_path / "sizewatch.service"
    unit.write_text(UNIT.replace("/opt/sizewatch/bin/sizewatch", "/bin/true"), encoding="utf-8")
    found = subprocess.run(
        [analyze, "verify", unit], capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "sizewatch.service" not in found.stderr


def expressions(page: str) -> list[str]:
    """PromQL among a page's code spans."""
    return [s for s in code_spans(page) if "sizewatch_" in s and PROMQL_FUNCTIONS.search(s)]


def promtool(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("promtool"), "check", "rules", path], capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )


def test_prometheus_takes_the_queries_of_the_runbooks_and_the_rules_of_the_installation(tmp_path: Path) -> None:
    queries = expressions("runbooks.md")
    assert len(queries) > 20
    recorded = [{"record": f"query_{place}", "expr": query} for place, query in enumerate(queries)]
    (shown,) = (data for b in blocks("install.md", "yaml") if "groups" in (data := yaml.safe_load(b)))
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [*shown["groups"], {"name": "queries", "rules": recorded}]}))
    found = promtool(path)
    assert found.returncode == 0, found.stdout + found.stderr
