"""Command `sizewatch plan check|show|schema|import|init|diff|workload|calibration`. A new subcommand is a row of SUBCOMMANDS."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from pydantic import ValidationError

from agent.benchmarks.aiconfigurator import select_configuration
from agent.benchmarks.curves import SETUP, ImportedCurve, ImportRemark, curve_of, differences, remarks_of
from agent.benchmarks.formats import read_all_results
from agent.benchmarks.plan_edit import PlanFile, chosen_tier, open_plan, replace_curve, write
from agent.benchmarks.run_model import CONTRADICTION
from agent.cli import arguments as cli
from agent.cli.inspect import naming, read_page_body
from agent.cli.loading import load_config, open_history, write_calibration, writing
from agent.config.files import load_plan
from agent.config.load import build_tier_contexts, load, select_tier
from agent.config.peer import Peer
from agent.config.targets import TIER_NAME
from agent.doctor.engine_hosts import find_host
from agent.errors import CannotJudgeError, ConfigError, NotAResultError, ScrapeError
from agent.files import EVERYBODY_READS, write_files
from agent.history.daily_queries import read_production
from agent.http_client.client import place_of
from agent.scrape.engine_probe import EngineProbe, probe_engine
from agent.scrape.scrapers import PageReader
from exporters.documents.calibration import ADAPTER as CALIBRATION
from exporters.documents.calibration import CalibrationFile, calibration_text, compare_calibrations
from exporters.documents.plan_files import LOAD_GENERATORS, WRITTEN, TierFacts, curve_lines, skeleton, workload_files
from exporters.documents.plan_show import plan_diff, show, workload_text
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.curve import operating_point
from rules.plan.gpus import engine_kv_tokens
from rules.plan.schema import Architecture, Plan, Provenance, plan_schema
from rules.plan.validation import problems_of
from rules.resize.workload import derive_benchmark
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.wording import format_count, format_duration


def run_init(options: SimpleNamespace) -> int:
    """Print a plan skeleton of one tier. Without any page raise ConfigError."""
    if options.tier and not TIER_NAME.fullmatch(options.tier):
        raise ConfigError(("--tier: at most 63 letters, digits, dots, _ and -; the first is a letter or digit",))
    running: list[EngineProbe] = []
    failed: list[str] = []
    for url in dict.fromkeys(options.url):
        peer = Peer.read(dict(url=url, **cli.ways_in(options)))
        try:
            with naming(url):
                running.append(probe_engine(peer))
        except ScrapeError as error:
            failed.append(str(error))
    if not running:
        raise ConfigError(tuple(failed))
    for text in failed:
        print(f"sizewatch plan: left out: {text}", file=sys.stderr)
    # On demand: NVML takes memory.
    from agent.gpu.nvml_reader import list_local_gpus

    here = () if any(find_host(probe.url) for probe in running) else list_local_gpus()
    facts = tier_facts(options.tier, tuple(running), here, per_replica=1 if len(running) == len(here) == 1 else None)
    print(skeleton((facts,), written_at(), ", ".join(place_of(probe.url) for probe in running)), end="")
    return cli.Exit.FINE


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
    if len(products) == 1:
        return products.pop()
    return ""


def tier_name(product: str, model: str) -> str:
    """Return a tier name from GPU and model, as in the guide: h100-llama70b-fp8."""
    gpu = re.sub(r"^NVIDIA |^AMD Instinct |^AMD ", "", product).split(" ")[0]
    words = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {Path(model).name}".casefold()).strip("-.")
    return words[:63].rstrip("-.") or "tier-1"


def _check(options: SimpleNamespace) -> int:
    """Check a plan. Raise ConfigError for an invalid plan. A grave mistake fails the check."""
    plan = _chosen(options)
    if options.page is not None:
        plan = _take_kv_tokens(plan, options)
    findings = check_plan(plan, CATALOGUE)
    for finding in findings:
        print(f"{finding.severity}: {finding.path}: {finding.text}")
    mistakes = sum(finding.severity == "mistake" for finding in findings)
    counted = f"{format_count(len(plan.tiers), 'tier')}, {format_count(len(findings) - mistakes, 'remark')}"
    if mistakes:
        grave = format_count(mistakes, "grave mistake")
        print(f"{options.plan}: {grave}; correct the plan before anything follows it ({counted})")
        return cli.Exit.FINDING
    print(f"{options.plan}: a valid plan of {counted}")
    return cli.Exit.FINE


def _take_kv_tokens(plan: Plan, options: SimpleNamespace) -> Plan:
    if len(plan.tiers) > 1:
        raise ConfigError((f"{options.plan}: has several tiers; say whose page it is with --tier",))
    name, tier = next(iter(plan.tiers.items()))
    body = read_page_body(options, options.page)
    with naming(options.page):
        page = PageReader().read(body, time.time())
    tokens = engine_kv_tokens(page.facts, tier.architecture)
    if tokens is None:
        text = "not known: the page does not tell them; of a hybrid model, blocks x block size is another number"
        print(f"warning: tiers.{name}.architecture.kv_tokens: {text}")
        return plan
    shape = (tier.architecture or Architecture.model_validate({})).model_copy(update={"kv_tokens": tokens})
    return plan.model_copy(update={"tiers": {name: tier.model_copy(update={"architecture": shape})}})


def _chosen(options: SimpleNamespace) -> Plan:
    plan = load_plan(options.plan)
    if options.tier is None:
        return plan
    if options.tier not in plan.tiers:
        raise ConfigError((f"{options.plan}: has no tier {options.tier}; it has {', '.join(plan.tiers)}",))
    return plan.model_copy(update={"tiers": {options.tier: plan.tiers[options.tier]}})


def _show(options: SimpleNamespace) -> int:
    plan = _chosen(options)
    print("\n\n".join(show(plan, name) for name in plan.tiers))
    return cli.Exit.FINE


def _schema(options: SimpleNamespace) -> int:
    print(json.dumps(plan_schema(), indent=2, ensure_ascii=False))
    return cli.Exit.FINE


def _diff(options: SimpleNamespace) -> int:
    changes = plan_diff(load_plan(options.before), load_plan(options.after))
    print("\n".join(changes) or "The plans say the same.")
    if changes:
        return cli.Exit.FINDING
    return cli.Exit.FINE


def _workload(options: SimpleNamespace) -> int:
    """Print and write production's workload. Raise CannotJudgeError if there is none."""
    loaded, now = load_config(options), time.time()
    tier = select_tier(loaded, options.tier)
    with open_history(loaded) as store:
        seen = read_production(store, build_tier_contexts(loaded)[tier], now - options.since, now)
    workload = derive_benchmark(seen, options.requests, options.top)
    if isinstance(workload, str):
        raise CannotJudgeError(workload)
    print(workload_text(tier, seen, workload))
    if options.out:
        model = ""
        if seen.context.plan:
            model = seen.context.plan.model
        ended = datetime.fromtimestamp(seen.until, UTC)
        head = f"Tier {tier}, {format_duration(seen.observed_seconds)} up to {ended:%Y-%m-%d %H:%M} UTC."
        with writing(options.out):
            options.out.mkdir(parents=True, exist_ok=True)
            texts = workload_files(workload, options.tool, model, head)
            write_files({options.out / name: text for name, text in texts.items()}, EVERYBODY_READS)
        print(f"Run on one replica without other traffic: sh {options.out / 'run.sh'}")
    return cli.Exit.FINE


def _calibration(options: SimpleNamespace) -> int:
    if len(options.files) == 2 and (options.tier or options.out):
        raise ConfigError(("--tier and --out are of the history: two files are compared whole",))
    files = list(map(_read_calibration_file, options.files))
    if len(files) > 2:
        raise click.UsageError("give at most two files")
    if len(files) == 2:
        lines = compare_calibrations(*files)
        cli.print_result(options, {"changes": lines}, "\n".join(lines) or "The files have no tier in common.")
        if lines:
            return cli.Exit.FINE
        return cli.Exit.CANNOT_JUDGE
    # It loads the libraries of the report's page.
    from agent.reporting.generate import read_calibration

    loaded, now = load_config(options), time.time()
    tier = None
    if options.tier:
        tier = select_tier(loaded, options.tier)
    with open_history(loaded) as store:
        made = read_calibration(store, loaded, now - options.since, now, tier)
    if options.out:
        write_calibration(options.out, made)
    text = "\n".join([calibration_text(made), *(line for old in files for line in compare_calibrations(old, made))])
    cli.print_result(options, CALIBRATION.dump_python(made, mode="json"), text)
    if made.calibrations:
        return cli.Exit.FINE
    return cli.Exit.CANNOT_JUDGE


def _read_calibration_file(path: Path) -> CalibrationFile:
    try:
        return CALIBRATION.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError((f"{path} cannot be read: {error.strerror}",)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError((f"{path} is no calibration file: {place + ': ' if place else ''}{first['msg']}",)) from None


MEASURED = (*SETUP, "measured_on")
"""Keys of `curve.measured` that `--measured` takes."""

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?%?(?![\w.]*/)(?!\w)")


def _import_parameters() -> cli.Parameters:
    seen = "a configuration whose store, or else history (minutes, kept 2 days), saw the engine meanwhile"
    chosen = "which of a planner's file, by parts of its name: 'tp4pp1, kvcache fp8'"
    measured = f"what was measured, where no file tells it: {', '.join(MEASURED)}; may be given several times"
    return (
        cli.argument("files", "FILE...", "result files; all together are one curve", nargs=-1, required=True),
        cli.option("--into", "PLAN", "write the curve into this plan; without it, it is printed", cli.PATH),
        cli.tier_option("the tier that was measured; default the plan's only one"),
        cli.option("-c --config", "FILE", seen, click.Path()),
        cli.option("--configuration", "PARTS", chosen, default=""),
        cli.option("--measured", "KEY=VALUE", measured, multiple=True),
    )


def _import(options: SimpleNamespace) -> int:
    """Import the curve, or raise BenchmarkError or ConfigError and write nothing."""
    if options.tier is not None and options.into is None and options.config is None:
        raise ConfigError(("--tier says nothing without --into or -c",))
    plan = None if options.into is None else open_plan(options.into)
    tier = options.tier if plan is None else chosen_tier(plan, options.tier)
    imported = _imported(options, tier)
    if plan is None:
        head, notes = _comments(imported)
        print("\n".join(curve_lines(imported.curve, 2, head=head, notes=notes)))
        return _tell(remarks_of(imported, observed=options.config is not None))
    return _put(options, imported, plan, tier)


def _imported(options: SimpleNamespace, tier: str | None) -> ImportedCurve:
    try:
        runs, errors = read_all_results(options.files)
    except NotAResultError as error:
        # Others are results that cannot be used.
        if not error.text.startswith(("is no benchmark", "is no JSON", "is no text")):
            raise
        raise NotAResultError(error.path, f"{error.text}. Formats, and how to convert: docs/plan-import.md") from None
    runs = select_configuration(runs, options.configuration)
    remarks = [ImportRemark(source=str(error.path), text=f"{error.text}; left out") for error in errors]
    kind = None
    if options.config is not None:
        # On demand: it imports the HTTP client, which no other part of `sizewatch plan` needs.
        from agent.benchmarks.telemetry import observe, open_source

        loaded = load(Path(options.config))
        source = open_source(loaded, select_tier(loaded, tier))
        kind = observe(runs, source)
        remarks.append(ImportRemark(source="", text=f"telemetry is from {source.name}"))
    folder = options.into.resolve().parent if options.into else Path.cwd()
    # File name bytes need not be text; a plan's are.
    for run in runs:
        run.source = os.path.relpath(Path(run.source).resolve(), folder).encode("utf-8", "replace").decode()
    imported = curve_of(runs, gpu_utilization_kind=kind)
    return _with_measured(imported._replace(remarks=(*imported.remarks, *remarks)), options.measured)


def _with_measured(imported: ImportedCurve, given: Sequence[str]) -> ImportedCurve:
    """Return the curve with the user's words on what was measured. Raise ConfigError."""
    if not given:
        return imported
    known = imported.curve.measured
    mapping: dict[str, Any] = known.model_dump(exclude_none=True) if known else {}
    for pair in given:
        key, _, value = pair.partition("=")
        if key not in MEASURED or not value:
            raise ConfigError((f"--measured {pair}: must be KEY=VALUE with a key of {', '.join(MEASURED)}",))
        is_whole = re.fullmatch(r"-?\d+", value)
        mapping[key] = int(value) if is_whole and key not in ("engine_version", "measured_on") else value
    try:
        measured = Provenance.model_validate(mapping)
    except ValidationError as error:
        raise ConfigError(tuple(f"--measured {problem}" for problem in problems_of(error, Provenance))) from None
    return imported._replace(curve=imported.curve.model_copy(update={"measured": measured}))


def _put(options: SimpleNamespace, imported: ImportedCurve, plan: PlanFile, name: str) -> int:
    """Write the curve into its tier. Raise ConfigError for another model or machine."""
    text, edited = replace_curve(plan, name, imported.curve, _comments(imported))
    tier = edited.tiers[name]
    kind = imported.curve.origin or "measured"
    refused = tuple(
        f"{where}: {kind} {imported_value}, tiers.{name}.{planned}: nothing was written. Correct the plan, or name the tier "
        f"that was {kind}"
        for where, imported_value, planned in differences(imported, tier)
    )
    if refused:
        raise ConfigError(refused)
    remarks = remarks_of(imported, tier, observed=options.config is not None)
    if tier.operating_point is not None and tier.operating_point.source == "production":
        outranked = "operating_point is what production measured before this benchmark, and outranks it: delete it"
        remarks.append(ImportRemark(source=str(options.into), text=outranked))
    state = "already as it was"
    if write(plan, text):
        state = "written"
    findings = check_plan(Plan(schema=1, tiers={name: tier}), CATALOGUE)
    for finding in findings:
        # `plan check` prints the rest, which is not repeated here.
        if finding.severity != "info":
            print(f"{finding.severity}: {finding.path}: {finding.text}")
    points, files = len(imported.curve.points), len(imported.curve.source)
    counted = f"{format_count(points, 'point')} from {format_count(files, 'file')}"
    point, capacity = operating_point(tier), ""
    if point:
        bound = " at least"
        if point.knee_reached:
            bound = ""
        capacity = f"; within the SLO{bound} {point.usable_rps:.4g} rps"
        capacity += f" at C_max {point.c_max:.4g}" if point.c_max else ""
    print(f"{options.into}: curve of {name}: {counted}, {state}{capacity}")
    code = _tell(remarks)
    if any(finding.severity == "mistake" for finding in findings):
        return cli.Exit.FINDING
    return code


def _comments(imported: ImportedCurve) -> tuple[list[str], list[list[str]]]:
    texts = [list(dict.fromkeys(note.text for note in notes)) for notes in imported.notes]
    common = [text for text in texts[0] if len(texts) > 1 and all(text in rows for rows in texts[1:])]
    about_points = [_about_point(notes, common) for notes in imported.notes]
    return [WRITTEN, *(f"Every point: {text}." for text in common)], about_points


def _about_point(notes: Sequence[ImportRemark], common: Sequence[str]) -> list[str]:
    by_file: dict[str, list[str]] = {}
    for note in notes:
        if note.text not in common:
            by_file.setdefault(Path(note.source).name, []).append(note.text)
    return [f"{source}: {'; '.join(dict.fromkeys(texts))}" for source, texts in by_file.items()]


def _tell(remarks: Sequence[ImportRemark]) -> int:
    alike: dict[str, list[ImportRemark]] = {}
    for remark in sorted(remarks, key=lambda remark: CONTRADICTION not in remark.text):
        alike.setdefault(_NUMBER.sub("0", remark.text), []).append(remark)
    for first, *rest in alike.values():
        place = ""
        if first.source:
            place = f"{first.source}: "
        more = ""
        if rest:
            more = f"; {format_count(len(rest), 'more remark')} of this kind"
        print(f"sizewatch plan: {place}{first.text}{more}", file=sys.stderr)
    if any(CONTRADICTION in remark.text for remark in remarks):
        return cli.Exit.FINDING
    return cli.Exit.FINE


PLAN = cli.argument("plan", "PLAN", "sizing plan (YAML or JSON)")
TIER = cli.tier_option("one tier; default all")

CHECK = (
    PLAN,
    TIER,
    cli.option("--page", "PAGE", "live or saved page of an engine of the tier: its KV tokens count"),
    *cli.connection_options("the page"),
)

INIT = (
    cli.argument("url", "URL...", "metrics pages of one tier's replicas", str, nargs=-1, required=True),
    cli.tier_option("name of the tier; default: of GPU and model"),
    *cli.connection_options("the addresses"),
)

WORKLOAD = (
    cli.tier_option("which tier; default the only one"),
    cli.since_option("how much of the history"),
    cli.CONFIG,
    cli.option("--out", "DIR", "write run.sh and the requests there; else print only", cli.PATH),
    cli.choice("--tool", LOAD_GENERATORS, "vllm-bench", "which load generator"),
    cli.option("--requests", "N", "of each load (default 300)", click.IntRange(1, 100_000), default=300),
    cli.option("--top", "RPS", "highest load of a replica; default twice production's", cli.number(1e-9, 1e7)),
)

CALIBRATION_FILES = (
    cli.argument("files", "[BEFORE [AFTER]]", "files to compare, of --out", nargs=-1),
    cli.tier_option("one tier; default all"),
    cli.since_option("how much of the history"),
    cli.CONFIG,
    cli.option("--out", "FILE", "write the factors there, for a planner", cli.PATH),
    *cli.FORMAT,
)

BEFORE_AND_AFTER = (
    cli.argument("before", "A", "one plan"),
    cli.argument("after", "B", "the other, such as plan.next.yaml"),
)

SUBCOMMANDS = (
    cli.make_command("check", "every problem of a plan, and what weakens it", CHECK, _check),
    cli.make_command(
        "show", "the curve as a table, with C_max, usable rps and the fleet arithmetic", (PLAN, TIER), _show
    ),
    cli.make_command("schema", "the JSON Schema of plans", (), _schema),
    cli.make_command(
        "import",
        "a tier's benchmark curve out of the result files of a load generator",
        _import_parameters(),
        _import,
    ),
    cli.make_command("init", "a plan to fill in, from what is running now", INIT, run_init),
    cli.make_command(
        "workload",
        "production's lengths, loads and prefix hits as a benchmark for a load generator",
        WORKLOAD,
        _workload,
    ),
    cli.make_command(
        "calibration",
        "measured / predicted by load and metric, with bounds, from production's history",
        CALIBRATION_FILES,
        _calibration,
    ),
    cli.make_command("diff", "what changed between two plans, in words, and what it costs", BEFORE_AND_AFTER, _diff),
)
