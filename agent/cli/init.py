"""Command `sizewatch init`: a configuration and a plan from engines that run. It asks nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent.cli import plan
from agent.cli import run as run_command
from agent.cli.arguments import PATH, WAYS_IN, Exit, Parameters, argument, connection_options, flag, option, ways_in
from agent.cli.loading import writing
from agent.config.load import load
from agent.config.peer import Peer
from agent.config.targets import normalize_url
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.doctor.engine_hosts import ENGINE_PORTS, Candidate, find_candidates, find_host
from agent.doctor.engine_pages import find_engine, find_pages, read_release
from agent.errors import CannotJudgeError, ConfigError, ScrapeError, ScrapeFailure
from agent.files import EVERYBODY_READS, OWNER_ONLY, write_files
from agent.http_client.client import JSON, fetch_page, place_of
from agent.scrape.engine_probe import EngineProbe
from exporters.documents.plan_files import config_text, skeleton
from exporters.render.safe_text import blank_unprintable, shorten
from exporters.status.tier_overview import numbers_text, overview_text

if TYPE_CHECKING:
    from rules.telemetry.snapshots import GpuReadout

TIMEOUT_SECONDS = 3.0
"""Time for one page, a fifth of the scrape interval."""

ALERTMANAGER = "http://127.0.0.1:9093"

CYCLES_WITH_TRAFFIC = 3
"""Cycles with traffic before the first view, which are 30 to 45 s."""

TRAFFIC = ("completed_rps", "generation_tokens_per_second", "requests_running")
"""Signals above zero while an engine serves requests. No engine exposes all."""

TIERS_SHOWN = 2

NO_REQUESTS = "no requests were served yet; what is seen of the first ones will stand here"

MOST_REFUSAL = 200
"""Maximum characters shown of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEngine:
    """Engine that answered, and where it was found."""

    candidate: Candidate
    probe: EngineProbe


def parameters() -> Parameters:
    places = "engines to watch: http://HOST:PORT/metrics or HOST:PORT; default those of this machine"
    return (
        argument("url", "[URL]...", places, str, nargs=-1),
        option("--out", "DIR", "where to write (default: here)", PATH, default="."),
        flag("--force", "replace sizewatch.yaml and plan.yaml that are there"),
        flag("--run start", "then start the daemon, as `sizewatch run` does"),
        *connection_options("the given engines"),
    )


def run(options: SimpleNamespace) -> int:
    """Write both files. Raise CannotJudgeError without an engine, else ConfigError."""
    config_path, plan_path = options.out / "sizewatch.yaml", options.out / "plan.yaml"
    where = ""
    if config_path.parent != Path():
        where = f" -c {shlex.quote(str(config_path))}"
    there = [path for path in (config_path, plan_path) if os.path.lexists(path)]
    if there and not options.force:
        problems = [f"{path}: is there already; --force replaces it" for path in there]
        if config_path in there:
            problems.append(f"start with `sizewatch run{where}`")
        raise ConfigError(tuple(problems))
    ways = _read_ways(options)
    if options.url:
        engines, refusals = _ask_places(options.url, ways)
    elif ways:
        raise ConfigError(("credentials are only for engines that are given: sizewatch init HOST:PORT",))
    else:
        engines, refusals = ask_candidates(find_candidates())
    if not engines:
        raise CannotJudgeError(_explain_nothing(refusals, options.url))
    # On demand: NVML takes memory.
    from agent.gpu.nvml_reader import list_local_gpus

    hosts = list_hosts(engines)
    gpus = list_local_gpus() if len(hosts) < len(engines) else ()
    tiers = group_by_tier(engines, () if hosts else gpus)
    urls = {name: [engine.probe.url for engine in group] for name, group in tiers.items()}
    mode, readers = EVERYBODY_READS, ""
    if any("?" in engine.probe.url for engine in engines):
        # A query may hold a secret.
        mode, readers = OWNER_ONLY, ", for you alone to read"
    alertmanager = ""
    if has_alertmanager():
        alertmanager = ALERTMANAGER
    config = config_text(urls, plan.written_at(), ways, gpus=bool(gpus), alertmanager=alertmanager)
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        write_files({plan_path: plan_text(tiers, gpus), config_path: config}, mode)
    load(config_path)
    _print_found(tiers, gpus, alertmanager)
    if options.url:
        print("".join(f"no page  {blank_unprintable(text)}\n" for text in refusals), end="")
    print(f"wrote    {config_path}, {plan_path}{readers}")
    print(f"assumed  lines marked ASSUMED in {plan_path}: GPUs of a replica, and a TTFT P99 of 2 s")
    print(f"next     sizewatch run{where}      then http://127.0.0.1:19095/")
    tier = shlex.quote(next(iter(tiers)))
    print(f"then     sizewatch plan import RESULTS... --into {shlex.quote(str(plan_path))} --tier {tier}")
    if not options.start:
        return Exit.FINE
    view = FirstView(where, shlex.quote(str(plan_path)))
    return run_command.run(SimpleNamespace(config=str(config_path), role=None), DaemonOptions(on_cycle=view.show))


class FirstView:
    """View of the daemon, printed once after the first requests."""

    def __init__(self, where: str, plan_file: str) -> None:
        self._commands = (f"sizewatch status{where}", f"sizewatch plan check {plan_file}")
        self._cycles_without = self._cycles_with = 0

    def show(self, daemon: Daemon) -> None:
        if self._cycles_with >= CYCLES_WITH_TRAFFIC or (status := daemon.status()) is None:
            return
        text = ""
        serving = [tier for tier in status.tiers if any(map(tier.estimate, TRAFFIC))]
        if serving:
            self._cycles_with += 1
            if self._cycles_with == CYCLES_WITH_TRAFFIC:
                # On demand: the page takes memory.
                from exporters.status.page import status_json

                page = [] if daemon.web is None else [daemon.web.url]
                seen = (overview_text(status_json(status)), *map(numbers_text, serving[:TIERS_SHOWN]))
                text = "\n".join(("", *seen, "", "next:", *self._commands, *page, ""))
        else:
            self._cycles_without += 1
            if self._cycles_without == CYCLES_WITH_TRAFFIC:
                text = NO_REQUESTS
        if text:
            # Nobody may read the terminal any more.
            with suppress(OSError):
                print(text, flush=True)


def _read_ways(options: SimpleNamespace) -> dict[str, Any]:
    for name, metavar, _ in WAYS_IN:
        value = getattr(options, name)
        if metavar == "FILE" and value is not None:
            setattr(options, name, os.path.abspath(value))
    return {name: value for name, value in ways_in(options).items() if value is not None}


def _ask_places(places: tuple[str, ...], ways: dict[str, Any]) -> tuple[tuple[FoundEngine, ...], tuple[str, ...]]:
    pages = find_pages(places, {"timeout_seconds": TIMEOUT_SECONDS, **ways})
    here = {f"localhost:{candidate.port}": candidate for candidate in find_candidates()}
    hosts = (urlsplit(normalize_url(probe.url)).netloc for probe in pages.engines)
    known = zip(hosts, pages.engines, strict=True)
    return tuple(
        FoundEngine(candidate=here.get(host, Candidate()), probe=probe) for host, probe in known
    ), pages.problems


def ask_candidates(candidates: tuple[Candidate, ...]) -> tuple[tuple[FoundEngine, ...], tuple[str, ...]]:
    """Return the candidates that are engines, and why the others that answer are none."""
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="init") as pool:
        answers = tuple(pool.map(_ask, candidates))
    engines = tuple(answer for answer in answers if isinstance(answer, FoundEngine))
    return engines, tuple(answer for answer in answers if isinstance(answer, str))


def _ask(candidate: Candidate) -> FoundEngine | str | None:
    place = f"127.0.0.1:{candidate.port}"
    answer = find_engine(place, {"timeout_seconds": TIMEOUT_SECONDS})
    if isinstance(answer, EngineProbe):
        return FoundEngine(candidate=candidate, probe=answer)
    if answer.kind is ScrapeFailure.CONNECT:
        return None
    if place in answer.text:
        return answer.text
    return f"{place}: {answer.text}"


def has_alertmanager() -> bool:
    target = Peer(url=f"{ALERTMANAGER}/api/v2/status", timeout_seconds=TIMEOUT_SECONDS)
    try:
        return b'"versionInfo"' in fetch_page(target, JSON)
    except ScrapeError:
        return False


def group_by_tier(engines: tuple[FoundEngine, ...], gpus: tuple[GpuReadout, ...]) -> dict[str, list[FoundEngine]]:
    """Return the engines by tier: one model on one engine. Names are those of `plan init`."""
    product = plan.common_product(gpus)
    named: dict[str, list[FoundEngine]] = {}
    for engine in engines:
        name = plan.tier_name(product, engine.probe.model)
        if name in named and named[name][0].probe.engine.name != engine.probe.engine.name:
            name = f"{name}-{engine.probe.engine.name}"
        named.setdefault(name, []).append(engine)
    return named


def list_hosts(engines: Iterable[FoundEngine]) -> list[str]:
    return [host for engine in engines if (host := find_host(engine.probe.url))]


def plan_text(tiers: Mapping[str, list[FoundEngine]], gpus: tuple[GpuReadout, ...]) -> str:
    """Return a plan that can be used at once. What is assumed is marked."""
    facts = []
    local = sum(not find_host(engine.probe.url) for group in tiers.values() for engine in group)
    for name, group in tiers.items():
        probes, hosts = tuple(engine.probe for engine in group), list_hosts(group)
        share = 1 if hosts else max(1, len(gpus) // local)
        per_replica = group[0].candidate.parallel or share
        known = plan.tier_facts(name, probes, gpus, per_replica=per_replica, assumed=True)
        facts.append(replace(known, gpu_product="unknown") if hosts else known)
    source = ", ".join(place_of(engine.probe.url) for group in tiers.values() for engine in group)
    return skeleton(tuple(facts), plan.written_at(), source)


def _explain_nothing(refusals: tuple[str, ...], given: Sequence[str]) -> str:
    ports = ", ".join(map(str, ENGINE_PORTS))
    lines = [f"no engine answers on this machine: nothing listens on {ports}."]
    if refusals:
        lines = ["no engine answers:", *(f"  {shorten(text, MOST_REFUSAL)}" for text in refusals)]
    lines.append("Is the engine up? SGLang needs --enable-metrics, llama.cpp --metrics.")
    if not given:
        lines.append("An engine on another port or machine: sizewatch init HOST:PORT")
    return "\n".join(map(blank_unprintable, lines))


def _print_found(tiers: Mapping[str, list[FoundEngine]], gpus: tuple[GpuReadout, ...], alertmanager: str) -> None:
    for name, group in tiers.items():
        for engine in group:
            probe, evidence = engine.probe, engine.candidate.evidence
            title = f"{probe.engine.title} {read_release(probe.page)}".strip()
            print(
                f"found    {place_of(probe.url)}: {title}, {probe.model or 'model unknown'}, tier {name} ({evidence})"
            )
            if probe.holds:
                print(f"         {probe.holds}: each is a replica of the tier")
    products = ", ".join(sorted({gpu.product for gpu in gpus}))
    engines = [*chain.from_iterable(tiers.values())]
    hosts = list_hosts(engines)
    nothing = f"not read, for {hosts[0]} is not called localhost" if len(hosts) == len(engines) else "none seen"
    print(f"GPUs     {len(gpus)}: {products}" if gpus else f"GPUs     {nothing}")
    if len(engines) > 1 and gpus:
        print("         which engine owns which is not known: add gpus to the targets")
    print(f"alerts   are posted to {alertmanager}" if alertmanager else "alerts   no Alertmanager at 127.0.0.1:9093")
