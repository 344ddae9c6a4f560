"""Command `sizewatch plan check|show|schema|import|init|diff|workload`. A new subcommand is a row of SUBCOMMANDS."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import click

from agent.cli import plan_import
from agent.cli.arguments import (
    CANNOT_JUDGE,
    CONFIG,
    FINDING,
    FINE,
    PATH,
    connection_options,
    make_command,
    number,
    option,
    since_option,
    tier_option,
    ways_in,
)
from agent.cli.inspect import read_page_body
from agent.cli.loading import load_config, open_history
from agent.config.files import fill_architectures, load_plan, read_document
from agent.config.load import build_tier_contexts, find, parse_config, select_tier, unknown_tier_error
from agent.config.peer import Peer
from agent.errors import ConfigError, ScrapeError
from agent.history.daily_queries import read_production
from agent.http_client.errors import place_of
from agent.scrape.engine_probe import EngineProbe, differences, probe_engine
from agent.scrape.scrapers import PageReader, Target, list_targets
from exporters.documents.plan_diff import plan_diff
from exporters.documents.plan_files import LOAD_GENERATORS, TierFacts, skeleton, workload_files
from exporters.documents.plan_show import show, workload_text
from exporters.render.text import format_duration
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.memory import BLOCKS_OF_HYBRID, engine_kv_tokens
from rules.plan.mistakes import SEVERITIES
from rules.plan.schema import Architecture, Plan, plan_schema, same_model
from rules.resize.production_summary import ProductionSummary, summarize_windows
from rules.resize.workload import derive_benchmark
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import HOUR_SECONDS
from rules.telemetry.wording import format_count

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAGE = "page"


def run_init(options: SimpleNamespace) -> int:
    """Print a plan skeleton. Report endpoints without a page and skip them; raise ConfigError if a tier has none (exit
    2)."""
    targets = _given(options) if options.url else _configured(options)
    # On demand: NVML takes memory.
    from agent.gpu.nvml_reader import list_local_gpus

    gpus = list_local_gpus()
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    tiers: dict[str | None, list[Target]] = {}
    for target in targets:
        tiers.setdefault(target.tier or None, []).append(target)
    facts = tuple(_facts(name, group, gpus) for name, group in tiers.items())
    print(skeleton(facts, when, ", ".join(place_of(t.peer.url) for t in targets)), end="")
    return FINE


def _given(options: SimpleNamespace) -> list[Target]:
    if options.config:
        raise ConfigError(("give addresses or -c, not both",))
    return [
        Target(tier=options.tier or "", replica=place_of(url), pool="mixed", peer=Peer.of(url=url, **ways_in(options)))
        for url in dict.fromkeys(options.url)
    ]


def _configured(options: SimpleNamespace) -> list[Target]:
    """Return the targets of the configuration; its plan need not exist yet."""
    path = find(options.config)
    document = read_document(path)
    try:
        config = parse_config(document.data, folder=path.parent)
    except ConfigError as bad:
        raise ConfigError(document.located(bad.problems)) from None
    targets = [target for target in list_targets(config) if options.tier in (None, target.tier)]
    if not targets:
        which = f"of tier {options.tier} " if options.tier else ""
        raise ConfigError((f"{path}: no target {which}is configured: name metrics pages, or add targets",))
    return targets


def _facts(name: str | None, targets: list[Target], gpus: tuple[GpuReadout, ...]) -> TierFacts:
    running: list[EngineProbe] = []
    failed: list[str] = []
    for target in targets:
        try:
            running.append(probe_engine(target.peer, target.engine))
        except ScrapeError as error:
            failed.append(str(error))
    if not running:
        raise ConfigError(tuple(failed))
    for text in failed:
        print(f"sizewatch plan: left out: {text}", file=sys.stderr)
    here = gpus if all(urlsplit(target.peer.url).hostname in LOOPBACK for target in targets) else ()
    pools = tuple(pool for pool in ("mixed", "prefill", "decode") if any(target.pool == pool for target in targets))
    per_replica = 1 if len(targets) == len(here) == 1 else None
    return replace(tier_facts(name, tuple(running), here, per_replica=per_replica), pools=pools)


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
    products = {gpu.product for gpu in here}
    product = products.pop() if len(products) == 1 else ""
    remarks = [f"{place_of(probe.url)}: {remark}" for probe in running for remark in probe.remarks]
    return TierFacts(
        name=name or tier_name(product, first.model),
        engine=first.engine.name,
        title=first.engine.label,
        release=first.page.facts.get("engine_versions", ""),
        model=first.model,
        pages=tuple(probe.page for probe in running),
        context_tokens=first.context_tokens,
        gpu_product=product,
        gpus_per_replica=per_replica,
        gpus_here=len(here),
        remarks=(*differences(running), *remarks),
        assumed=assumed,
    )


def tier_name(product: str, model: str) -> str:
    """Return a tier name from GPU and model, as in the guide: h100-llama70b-fp8."""
    gpu = re.sub(r"^NVIDIA |^AMD Instinct |^AMD ", "", product).split(" ")[0]
    words = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {Path(model).name}".casefold()).strip("-.")
    return words[:63].rstrip("-.") or "tier-1"


def _check(options: SimpleNamespace) -> int:
    """Check a plan. An invalid plan raises ConfigError (exit 2). A grave mistake or a page that contradicts itself fails the
    check; a weakness does not."""
    plan, problems = fill_architectures(_chosen(options), options.plan)
    plan, of_page = (plan, ()) if options.page is None else _with_engine_tokens(plan, options)
    findings = sorted(
        (*problems, *of_page, *check_plan(plan, CATALOGUE)), key=lambda each: SEVERITIES.index(each.severity)
    )
    for finding in findings:
        print(f"{finding.severity}: {finding.path}: {finding.text}")
    mistakes = sum(finding.severity == "mistake" for finding in findings)
    counted = f"{format_count(len(plan.tiers), 'tier')}, {format_count(len(findings) - mistakes, 'remark')}"
    if mistakes:
        grave = format_count(mistakes, "grave mistake")
        print(f"{options.plan}: {grave}; correct the plan before anything follows it ({counted})")
        return FINDING
    print(f"{options.plan}: a valid plan of {counted}")
    return FINDING if any(finding.path == PAGE for finding in of_page) else FINE


def _chosen(options: SimpleNamespace) -> Plan:
    """Return the plan with the tier that was asked for, or all of them."""
    plan = load_plan(options.plan)
    if options.tier is None:
        return plan
    if options.tier not in plan.tiers:
        raise ConfigError((f"{options.plan}: has no tier {options.tier}; it has {', '.join(plan.tiers)}",))
    return plan.model_copy(update={"tiers": {options.tier: plan.tiers[options.tier]}})


def _with_engine_tokens(plan: Plan, options: SimpleNamespace) -> tuple[Plan, tuple[PlanWarning, ...]]:
    """Return the plan with the KV tokens of the engine's page in its only tier, and what is wrong with the page."""
    if len(plan.tiers) > 1:
        raise ConfigError((f"{options.plan}: has several tiers; say whose page it is with --tier",))
    name, tier = next(iter(plan.tiers.items()))
    page = PageReader().read(read_page_body(options, options.page), time.time())
    wrong = [(PAGE, text) for text in page.problems if text.partition(": ")[0] in page.contradictory]
    models = [model for model in page.facts.get("model", "").split(",") if model]
    if models and not any(same_model(model, tier.model) for model in models):
        text = f"is {tier.model}, the page is of {', '.join(models)}: its KV cache is another model's"
        wrong.append((f"tiers.{name}.model", text))
    tokens = engine_kv_tokens(page.facts, tier.architecture)
    if tokens is not None:
        shape = (tier.architecture or Architecture.model_validate({})).model_copy(update={"kv_tokens": tokens})
        plan = plan.model_copy(update={"tiers": {name: tier.model_copy(update={"architecture": shape})}})
    elif engine_kv_tokens(page.facts):
        wrong.append((f"tiers.{name}.architecture.kv_tokens", f"is not known: {BLOCKS_OF_HYBRID}"))
    else:
        raise ConfigError((f"{options.page}: tells no number of KV tokens ({page.engine})",))
    return plan, tuple(PlanWarning(severity="warning", path=path, text=text) for path, text in wrong)


def _show(options: SimpleNamespace) -> int:
    plan, problems = fill_architectures(_chosen(options), options.plan)
    for problem in problems:
        print(f"sizewatch plan: {problem.path}: {problem.text}", file=sys.stderr)
    print("\n\n".join(show(plan, name) for name in plan.tiers))
    return FINE


def _schema(options: SimpleNamespace) -> int:
    json.dump(plan_schema(), sys.stdout, indent=2, ensure_ascii=False)
    print()
    return FINE


def _diff(options: SimpleNamespace) -> int:
    changes = plan_diff(load_plan(options.before), load_plan(options.after))
    print("\n".join(changes) or "The plans say the same.")
    return FINDING if changes else FINE


def _workload(options: SimpleNamespace) -> int:
    """Print production's workload for a benchmark, and write its files. Exit 3 if production shows no workload."""
    seen = _recorded(options) if options.recording else _from_history(options)
    workload = derive_benchmark(seen, options.requests, options.top) if seen else "nothing was seen"
    if isinstance(workload, str) or seen is None:
        print(f"sizewatch plan: {workload}", file=sys.stderr)
        return CANNOT_JUDGE
    tier, closed = seen.context.tier, options.loop == "closed"
    if closed and workload.loads[0].clients is None:
        text = "requests in the system are not exposed, so no number of clients: give --loop open"
        raise ConfigError((f"{tier}: {text}",))
    print(workload_text(tier, seen, workload))
    if options.out:
        model = seen.context.plan.model if seen.context.plan else ""
        ended = datetime.fromtimestamp(seen.until, UTC)
        head = f"Tier {tier}, {format_duration(seen.observed_seconds)} up to {ended:%Y-%m-%d %H:%M} UTC."
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            for name, text in workload_files(workload, options.tool, model, head, closed).items():
                (options.out / name).write_text(text)
        except OSError as error:
            raise ConfigError((f"{options.out} cannot be written: {error.strerror}; give another --out",)) from None
        print(f"Run on one replica without other traffic: sh {options.out / 'run.sh'}")
    return FINE


def _from_history(options: SimpleNamespace) -> ProductionSummary:
    loaded = load_config(options)
    tier, now = select_tier(loaded, options.tier), time.time()
    with open_history(loaded, "ask") as store:
        # The history sums by full hours; the present hour counts as far as it went.
        since = (now - options.since) // HOUR_SECONDS * HOUR_SECONDS
        return read_production(store, build_tier_contexts(loaded)[tier], since, now)


def _recorded(options: SimpleNamespace) -> ProductionSummary | None:
    # On demand: other subcommands need no replay.
    from agent.replay.replay import replay
    from agent.sources.recording import load as load_recording

    recording, problems = load_recording(options.recording)
    result = replay(recording, load_plan(options.plan) if options.plan else None, problems=problems)
    for problem in result.problems:
        print(f"sizewatch plan: {problem}", file=sys.stderr)
    tier = options.tier or (min(result.contexts) if len(result.contexts) == 1 else "")
    if tier not in result.contexts:
        raise unknown_tier_error(tier or "without --tier", result.contexts)
    windows = (window.window for window in result.windows if window.tier == tier and window.replica is None)
    return summarize_windows(result.contexts[tier], windows)


PLAN = click.Argument(["plan"], type=PATH, metavar="PLAN", help="sizing plan (YAML or JSON)")
TIER = tier_option("one tier; default all")

_PAGE = option("--page", "FILE-or-URL", "page of a running engine: its own number of KV tokens is checked")
_URLS = "metrics pages of one tier's replicas; default: the targets"

INIT = (
    click.Argument(["url"], nargs=-1, metavar="[URL]...", help=_URLS),
    CONFIG,
    tier_option("name of the tier, or which of the configured ones; default: all"),
    *connection_options("the addresses"),
)

WORKLOAD = (
    option("--recording", "FOLDER", "a recording in place of the history", PATH),
    option("--plan", "PLAN", "plan of the recording, for the model's name", PATH),
    tier_option("which tier; default the only one"),
    since_option("how much of the history"),
    CONFIG,
    option("--out", "DIR", "write run.sh and the requests there; else print only", PATH),
    click.Option(
        ["--tool"], type=click.Choice(tuple(LOAD_GENERATORS)), default="vllm-bench", help="which load generator"
    ),
    click.Option(
        ["--loop"], type=click.Choice(("open", "closed")), default="open", help="arrivals at a rate, or clients"
    ),
    option("--requests", "N", "of each load (default 300)", click.IntRange(1, 100_000), default=300),
    option("--top", "RPS", "highest load of a replica; default twice production's", number(1e-9, 1e7)),
)

BEFORE_AND_AFTER = (
    click.Argument(["before"], type=PATH, metavar="A", help="one plan"),
    click.Argument(["after"], type=PATH, metavar="B", help="the other, such as plan.next.yaml"),
)

SUBCOMMANDS = (
    make_command(
        "check",
        "every problem of a plan, and what weakens it",
        (PLAN, TIER, _PAGE, *connection_options("the page")),
        _check,
        "0 a valid plan; 1 a grave mistake was found",
    ),
    make_command("show", "the curve as a table, with C_max, usable rps and the fleet arithmetic", (PLAN, TIER), _show),
    make_command("schema", "the JSON Schema of plans", (), _schema),
    make_command(
        "import",
        "a tier's benchmark curve out of the result files of a load generator",
        plan_import.parameters(),
        plan_import.run,
        "0 imported; 1 imported, with a grave mistake in the plan or a contradiction in the telemetry",
    ),
    make_command("init", "a plan to fill in, from what is running now", INIT, run_init),
    make_command(
        "workload",
        "production's lengths, loads and prefix hits as a benchmark for a load generator",
        WORKLOAD,
        _workload,
        "0 printed; 3 nothing was seen of the workload",
    ),
    make_command(
        "diff",
        "what changed between two plans, in words, and what it costs",
        BEFORE_AND_AFTER,
        _diff,
        "0 they say the same; 1 they differ",
    ),
)
