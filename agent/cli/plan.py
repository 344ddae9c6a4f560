"""Command `sizewatch plan check|show|schema|import|init|diff|workload|calibration`. A new subcommand is a row of SUBCOMMANDS."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import click
from pydantic import ValidationError

from agent.cli import plan_import
from agent.cli.arguments import (
    CONFIG,
    FORMAT,
    PATH,
    Exit,
    argument,
    choice,
    connection_options,
    make_command,
    number,
    option,
    print_result,
    since_option,
    tier_option,
    ways_in,
)
from agent.cli.loading import load_config, open_history, write_calibration, writing
from agent.config.files import load_plan
from agent.config.load import build_tier_contexts, select_tier
from agent.config.peer import Peer
from agent.errors import CannotJudgeError, ConfigError, ScrapeError
from agent.history.daily_queries import read_production
from agent.http_client.errors import place_of
from agent.scrape.engine_probe import EngineProbe, probe_engine
from exporters.documents.calibration import ADAPTER as CALIBRATION
from exporters.documents.calibration import CalibrationFile, calibration_text, compare_calibrations
from exporters.documents.plan_diff import plan_diff
from exporters.documents.plan_files import LOAD_GENERATORS, TierFacts, skeleton, workload_files
from exporters.documents.plan_show import show, workload_text
from exporters.render.text import format_duration
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.schema import Plan, plan_schema
from rules.resize.workload import derive_benchmark
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import HOUR_SECONDS
from rules.telemetry.wording import format_count

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run_init(options: SimpleNamespace) -> int:
    """Print a plan skeleton of one tier. Report addresses without a page and skip them; without any raise ConfigError
    (exit 2)."""
    running: list[EngineProbe] = []
    failed: list[str] = []
    for url in dict.fromkeys(options.url):
        try:
            running.append(probe_engine(Peer.read(dict(url=url, **ways_in(options)))))
        except ScrapeError as error:
            failed.append(str(error))
    if not running:
        raise ConfigError(tuple(failed))
    for text in failed:
        print(f"sizewatch plan: left out: {text}", file=sys.stderr)
    # On demand: NVML takes memory.
    from agent.gpu.nvml_reader import list_local_gpus

    here = list_local_gpus() if all(urlsplit(probe.url).hostname in LOOPBACK for probe in running) else ()
    facts = tier_facts(options.tier, tuple(running), here, per_replica=1 if len(running) == len(here) == 1 else None)
    print(skeleton((facts,), written_at(), ", ".join(place_of(probe.url) for probe in running)), end="")
    return Exit.FINE


def written_at() -> str:
    """Return the present time in words, for the first line of a file."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def tier_facts(
    name: str | None,
    running: tuple[EngineProbe, ...],
    here: tuple[GpuReadout, ...],
    *,
    per_replica: int | None,
    assumed: bool = False,
) -> TierFacts:
    """Return what is known of a tier from its engines and the GPUs of this machine; a tier without a name gets one."""
    first = running[0]
    product = common_product(here)
    remarks = [
        f"{place_of(probe.url)}: {probe.holds}; these facts are of the first" for probe in running if probe.holds
    ]
    return TierFacts(
        name=name or tier_name(product, first.model),
        engine=first.engine.name,
        title=f"{first.engine.label} {first.page.facts.get('engine_versions', '')}".strip(),
        model=first.model,
        pages=tuple(probe.page for probe in running),
        context_tokens=first.context_tokens,
        gpu_product=product,
        gpus_per_replica=per_replica,
        gpus_here=len(here),
        remarks=tuple(remarks),
        assumed=assumed,
    )


def common_product(gpus: tuple[GpuReadout, ...]) -> str:
    """Return the product of all GPUs, "" where they differ or there are none."""
    products = {gpu.product for gpu in gpus}
    return products.pop() if len(products) == 1 else ""


def tier_name(product: str, model: str) -> str:
    """Return a tier name from GPU and model, as in the guide: h100-llama70b-fp8."""
    gpu = re.sub(r"^NVIDIA |^AMD Instinct |^AMD ", "", product).split(" ")[0]
    words = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {Path(model).name}".casefold()).strip("-.")
    return words[:63].rstrip("-.") or "tier-1"


def _check(options: SimpleNamespace) -> int:
    """Check a plan. An invalid plan raises ConfigError (exit 2). A grave mistake fails the check; a weakness does not."""
    plan = _chosen(options)
    findings = check_plan(plan, CATALOGUE)
    for finding in findings:
        print(f"{finding.severity}: {finding.path}: {finding.text}")
    mistakes = sum(finding.severity == "mistake" for finding in findings)
    counted = f"{format_count(len(plan.tiers), 'tier')}, {format_count(len(findings) - mistakes, 'remark')}"
    if mistakes:
        grave = format_count(mistakes, "grave mistake")
        print(f"{options.plan}: {grave}; correct the plan before anything follows it ({counted})")
        return Exit.FINDING
    print(f"{options.plan}: a valid plan of {counted}")
    return Exit.FINE


def _chosen(options: SimpleNamespace) -> Plan:
    """Return the plan with the tier that was asked for, or all of them."""
    plan = load_plan(options.plan)
    if options.tier is None:
        return plan
    if options.tier not in plan.tiers:
        raise ConfigError((f"{options.plan}: has no tier {options.tier}; it has {', '.join(plan.tiers)}",))
    return plan.model_copy(update={"tiers": {options.tier: plan.tiers[options.tier]}})


def _show(options: SimpleNamespace) -> int:
    plan = _chosen(options)
    print("\n\n".join(show(plan, name) for name in plan.tiers))
    return Exit.FINE


def _schema(options: SimpleNamespace) -> int:
    print(json.dumps(plan_schema(), indent=2, ensure_ascii=False))
    return Exit.FINE


def _diff(options: SimpleNamespace) -> int:
    changes = plan_diff(load_plan(options.before), load_plan(options.after))
    print("\n".join(changes) or "The plans say the same.")
    return Exit.FINDING if changes else Exit.FINE


def _workload(options: SimpleNamespace) -> int:
    """Print production's workload for a benchmark, and write its files. Raise CannotJudgeError if it shows none."""
    loaded, now = load_config(options), time.time()
    tier = select_tier(loaded, options.tier)
    with open_history(loaded) as store:
        # The history sums by full hours; the present hour counts as far as it went.
        since = (now - options.since) // HOUR_SECONDS * HOUR_SECONDS
        seen = read_production(store, build_tier_contexts(loaded)[tier], since, now)
    workload = derive_benchmark(seen, options.requests, options.top)
    if isinstance(workload, str):
        raise CannotJudgeError(workload)
    print(workload_text(tier, seen, workload))
    if options.out:
        model = seen.context.plan.model if seen.context.plan else ""
        ended = datetime.fromtimestamp(seen.until, UTC)
        head = f"Tier {tier}, {format_duration(seen.observed_seconds)} up to {ended:%Y-%m-%d %H:%M} UTC."
        with writing(options.out):
            options.out.mkdir(parents=True, exist_ok=True)
            for name, text in workload_files(workload, options.tool, model, head).items():
                (options.out / name).write_text(text)
        print(f"Run on one replica without other traffic: sh {options.out / 'run.sh'}")
    return Exit.FINE


def _calibration(options: SimpleNamespace) -> int:
    """Print measured / predicted from the history, or what changed between two files. Exit 3 if nothing is comparable."""
    files = [_read_calibration_file(path) for path in options.files]
    if len(files) > 2:
        raise click.UsageError("give at most two files")
    if len(files) == 2:
        lines = compare_calibrations(*files)
        print_result(options, {"changes": lines}, "\n".join(lines) or "The files have no tier in common.")
        return Exit.FINE if lines else Exit.CANNOT_JUDGE
    # It loads the libraries of the report's page.
    from agent.reporting.generate import read_calibration

    loaded, now = load_config(options), time.time()
    tier = select_tier(loaded, options.tier) if options.tier else None
    with open_history(loaded) as store:
        made = read_calibration(store, loaded, now - options.since, now, tier)
    if options.out:
        write_calibration(options.out, made)
    text = "\n".join([calibration_text(made), *(line for old in files for line in compare_calibrations(old, made))])
    print_result(options, CALIBRATION.dump_python(made, mode="json"), text)
    return Exit.FINE if made.calibrations else Exit.CANNOT_JUDGE


def _read_calibration_file(path: Path) -> CalibrationFile:
    try:
        return CALIBRATION.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError((f"{path} cannot be read: {error.strerror}",)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError((f"{path} is no calibration file: {place + ': ' if place else ''}{first['msg']}",)) from None


PLAN = argument("plan", "PLAN", "sizing plan (YAML or JSON)")
TIER = tier_option("one tier; default all")

INIT = (
    argument("url", "URL...", "metrics pages of one tier's replicas", str, nargs=-1, required=True),
    tier_option("name of the tier; default: of GPU and model"),
    *connection_options("the addresses"),
)

WORKLOAD = (
    tier_option("which tier; default the only one"),
    since_option("how much of the history"),
    CONFIG,
    option("--out", "DIR", "write run.sh and the requests there; else print only", PATH),
    choice("--tool", LOAD_GENERATORS, "vllm-bench", "which load generator"),
    option("--requests", "N", "of each load (default 300)", click.IntRange(1, 100_000), default=300),
    option("--top", "RPS", "highest load of a replica; default twice production's", number(1e-9, 1e7)),
)

CALIBRATION_FILES = (
    argument("files", "[BEFORE [AFTER]]", "files to compare, of --out", nargs=-1),
    tier_option("one tier; default all"),
    since_option("how much of the history"),
    CONFIG,
    option("--out", "FILE", "write the factors there, for a planner", PATH),
    *FORMAT,
)

BEFORE_AND_AFTER = (argument("before", "A", "one plan"), argument("after", "B", "the other, such as plan.next.yaml"))

SUBCOMMANDS = (
    make_command("check", "every problem of a plan, and what weakens it", (PLAN, TIER), _check),
    make_command("show", "the curve as a table, with C_max, usable rps and the fleet arithmetic", (PLAN, TIER), _show),
    make_command("schema", "the JSON Schema of plans", (), _schema),
    make_command(
        "import",
        "a tier's benchmark curve out of the result files of a load generator",
        plan_import.parameters(),
        plan_import.run,
    ),
    make_command("init", "a plan to fill in, from what is running now", INIT, run_init),
    make_command(
        "workload",
        "production's lengths, loads and prefix hits as a benchmark for a load generator",
        WORKLOAD,
        _workload,
    ),
    make_command(
        "calibration",
        "measured / predicted by load and metric, with bounds, from production's history",
        CALIBRATION_FILES,
        _calibration,
    ),
    make_command("diff", "what changed between two plans, in words, and what it costs", BEFORE_AND_AFTER, _diff),
)
