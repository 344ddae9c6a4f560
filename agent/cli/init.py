"""Command `sizewatch init`: a configuration and a plan from the engines that run on this machine. It asks nothing.

Engines are found by listening ports and by command lines, in this network namespace and in those of pods whose processes
can be seen. Each address is asked for its page once; what is no engine is left alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from agent.cli import plan
from agent.cli import run as run_command
from agent.cli.arguments import CANNOT_JUDGE, FINE, output_folder
from agent.config.discovery import PORTS
from agent.config.load import load
from agent.errors import ConfigError, ScrapeError
from agent.gpu.owners import PROC
from agent.http_client.options import TargetOptions
from agent.http_client.page import JSON, fetch_page
from agent.scrape.engine_probe import EngineProbe, probe_engine
from exporters.documents.plan_files import scalar, skeleton
from exporters.render.text import blank_unprintable, shorten

if TYPE_CHECKING:
    from rules.telemetry.snapshots import GpuReadout

TIMEOUT_SECONDS = 3.0
"""Time for one page. An engine that answers later cannot be scraped every 15 s either."""

PATHS = ("/metrics", "/prometheus/metrics")
"""Paths of metrics pages; the second is that of trtllm-serve."""

ENGINE_PORTS = tuple(port for port in PORTS if isinstance(port, int))
ALERTMANAGER = "http://127.0.0.1:9093"

COMMAND = re.compile(r"vllm|sglang|trtllm-serve|text-generation-(?:launcher|router)|llama-server|tritonserver|dynamo")
"""Words in the command line of an engine's process."""

PARALLEL = re.compile(r"--?(?:tensor|pipeline)[-_]parallel[-_]size[= ](\d+)|--?(?:tp|pp)(?:[-_]size)?[= ](\d+)")
MOST_ADDRESSES = 256
MOST_REFUSAL = 200
"""Maximum characters that are shown of why an address is no engine."""
LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Address where an engine may serve its page. `parallel` is the GPUs of an instance by its command line."""

    host: str
    port: int
    evidence: str
    parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEngine:
    """Engine that answered, and where it was found."""

    candidate: Candidate
    probe: EngineProbe


def parameters() -> tuple[click.Parameter, ...]:
    return (
        click.Option(["--out"], type=output_folder, default=".", metavar="DIR", help="where to write (default: here)"),
        click.Option(["--force"], is_flag=True, help="replace sizewatch.yaml and plan.yaml that are there"),
        click.Option(["--run", "start"], is_flag=True, help="then start the daemon, as `sizewatch run` does"),
    )


def run(options: SimpleNamespace) -> int:
    """Write both files and print what was found. Return 3 without an engine; raise ConfigError for files in the way."""
    config_path, plan_path = options.out / "sizewatch.yaml", options.out / "plan.yaml"
    there = [path for path in (config_path, plan_path) if os.path.lexists(path)]
    if there and not options.force:
        raise ConfigError(tuple(f"{path}: is there already; --force replaces it" for path in there))
    candidates = find_candidates()
    engines, refusals = ask_candidates(candidates)
    if not engines:
        _print_nothing(refusals)
        return CANNOT_JUDGE
    # On demand: NVML takes memory.
    from agent.gpu.nvml_reader import list_local_gpus

    gpus = list_local_gpus()
    tiers = group_by_tier(engines, gpus)
    alertmanager = has_alertmanager(ALERTMANAGER)
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        plan_path.write_text(plan_text(tiers, gpus, when), encoding="utf-8")
        config_path.write_text(config_text(tiers, gpus, alertmanager, when), encoding="utf-8")
    except OSError as error:
        raise ConfigError((f"{options.out}: cannot be written: {error.strerror}",)) from error
    load(config_path)
    _print_found(tiers, gpus, alertmanager, config_path, plan_path)
    if options.start:
        return run_command.run(SimpleNamespace(config=str(config_path), role=None))
    return FINE


def find_candidates(proc: Path = PROC) -> tuple[Candidate, ...]:
    """Return the addresses to ask: those of processes that look like engines, then the engines' usual ports."""
    found: dict[tuple[str, int], Candidate] = {}
    for one in _of_processes(proc):
        found.setdefault((one.host, one.port), one)
    listening = _listening(proc / "self" / "net")
    for port in ENGINE_PORTS:
        if port in listening:
            found.setdefault(("127.0.0.1", port), Candidate(host="127.0.0.1", port=port, evidence=f"port {port}"))
    return tuple(found.values())[:MOST_ADDRESSES]


def _of_processes(proc: Path) -> Iterator[Candidate]:
    here = _link(proc / "self" / "ns" / "net")
    for folder in sorted((one for one in proc.iterdir() if one.name.isdigit()), key=lambda one: int(one.name)):
        try:
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
        except OSError:
            continue
        if not COMMAND.search(words) or folder.name == str(os.getpid()):
            continue
        listening = _listening(folder / "net")
        sockets = _sockets(folder)
        # Without leave to see its sockets the usual ports of its network count.
        ports = [p for p, inode in listening.items() if inode in sockets] or [p for p in ENGINE_PORTS if p in listening]
        host = "127.0.0.1" if _link(folder / "ns" / "net") in (here, "") else _address(folder / "net" / "fib_trie")
        sizes = [int(a or b) for a, b in PARALLEL.findall(words)]
        parallel = sizes[0] * (sizes[1] if len(sizes) > 1 else 1) if sizes else None
        for port in ports if host else ():
            yield Candidate(host=host, port=port, evidence=f"process {folder.name}", parallel=parallel)


def _listening(net: Path) -> dict[int, str]:
    """Return the listening TCP ports of a network namespace that loopback reaches, with the inodes of their sockets."""
    found: dict[int, str] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for cells in (line.split() for line in lines):
            address, _, port = cells[1].partition(":")
            if cells[3] == LISTENING and (not address.strip("0") or address.endswith(("7F", "01000000"))):
                found.setdefault(int(port, 16), cells[9])
    return found


def _sockets(folder: Path) -> set[str]:
    try:
        links = [_link(one) for one in (folder / "fd").iterdir()]
    except OSError:
        return set()
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _address(fib_trie: Path) -> str:
    """Return the first address of another network namespace that is not loopback, "" where there is none."""
    try:
        text = fib_trie.read_text(encoding="ascii")
    except OSError:
        return ""
    local = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", text)
    return next((one for one in local if not one.startswith("127.")), "")


def ask_candidates(candidates: tuple[Candidate, ...]) -> tuple[tuple[FoundEngine, ...], tuple[str, ...]]:
    """Return the candidates that serve the page of an engine, and for each other one why it does not."""
    if not candidates:
        return (), ()
    with ThreadPoolExecutor(max_workers=min(16, len(candidates)), thread_name_prefix="init") as pool:
        answers = tuple(pool.map(_ask, candidates))
    engines = tuple(one for one in answers if isinstance(one, FoundEngine))
    return engines, tuple(one for one in answers if isinstance(one, str))


def _ask(candidate: Candidate) -> FoundEngine | str:
    refusal = ""
    for path in PATHS:
        url = f"http://{candidate.host}:{candidate.port}{path}"
        try:
            return FoundEngine(
                candidate=candidate, probe=probe_engine(TargetOptions(url=url, timeout_seconds=TIMEOUT_SECONDS))
            )
        except ScrapeError as error:
            refusal = refusal or error.text
    place = f"{candidate.host}:{candidate.port}"
    return refusal if place in refusal else f"{place}: {refusal}"


def has_alertmanager(url: str) -> bool:
    """Return whether an Alertmanager answers there."""
    try:
        told = json.loads(fetch_page(TargetOptions(url=f"{url}/api/v2/status", timeout_seconds=TIMEOUT_SECONDS), JSON))
    except (ScrapeError, ValueError, RecursionError):
        return False
    return isinstance(told, dict) and {"cluster", "versionInfo"} <= told.keys()


def group_by_tier(engines: tuple[FoundEngine, ...], gpus: tuple[GpuReadout, ...]) -> dict[str, list[FoundEngine]]:
    """Return the engines by tier: one model on one engine and one kind of GPU. Names are those of `plan init`."""
    grouped: dict[tuple[str, str], list[FoundEngine]] = {}
    for one in engines:
        grouped.setdefault((one.probe.engine.name, one.probe.model), []).append(one)
    products = {gpu.product for gpu in gpus}
    product = products.pop() if len(products) == 1 else ""
    named: dict[str, list[FoundEngine]] = {}
    for (engine, model), group in grouped.items():
        name = plan.tier_name(product, model)
        named[name if name not in named else f"{name}-{engine}"] = group
    return named


def plan_text(tiers: Mapping[str, list[FoundEngine]], gpus: tuple[GpuReadout, ...], when: str) -> str:
    """Return a plan that can be used at once: what nobody can know from here is assumed, and marked so."""
    engines = sum(map(len, tiers.values()))
    facts = tuple(
        plan.tier_facts(
            name,
            tuple(one.probe for one in group),
            gpus,
            per_replica=group[0].candidate.parallel or max(1, len(gpus) // engines),
            assumed=True,
        )
        for name, group in tiers.items()
    )
    return skeleton(facts, when, ", ".join(one.probe.url for group in tiers.values() for one in group))


def config_text(
    tiers: Mapping[str, list[FoundEngine]], gpus: tuple[GpuReadout, ...], alertmanager: bool, when: str
) -> str:
    lines = [f"# Written by `sizewatch init`, {when}. All keys: `sizewatch` documentation, configuration."]
    lines += ["plan: plan.yaml", "data_dir: sizewatch-data", "targets:"]
    for name, group in tiers.items():
        lines += [f"  - {{url: {json.dumps(one.probe.url)}, tier: {scalar(name)}}}" for one in group]
    if not gpus:
        lines.append("gpus: {source: none}  # no NVIDIA driver answers here")
    if alertmanager:
        lines.append(f"alerting: {{path: posts, alertmanagers: [{{url: {json.dumps(ALERTMANAGER)}}}]}}")
    return "\n".join(map(blank_unprintable, lines)) + "\n"


def _print_nothing(refusals: tuple[str, ...]) -> None:
    ports = ", ".join(map(str, ENGINE_PORTS))
    lines = (
        "no engine answers on this machine" + (":" if refusals else f": nothing listens on {ports}."),
        *(f"  {shorten(one, MOST_REFUSAL)}" for one in refusals),
        "Is the engine up? SGLang needs --enable-metrics, llama.cpp --metrics.",
        "An engine elsewhere: sizewatch plan init http://HOST:PORT/metrics > plan.yaml",
    )
    for line in lines:
        print(f"sizewatch init: {blank_unprintable(line)}", file=sys.stderr)


def _print_found(
    tiers: Mapping[str, list[FoundEngine]],
    gpus: tuple[GpuReadout, ...],
    alertmanager: bool,
    config_path: Path,
    plan_path: Path,
) -> None:
    for name, group in tiers.items():
        for one in group:
            release = one.probe.page.facts.get("engine_versions", "")
            title = " ".join(filter(None, (one.probe.engine.title, release)))
            print(
                f"found    {one.probe.url}: {title}, {one.probe.model or 'model unknown'}, tier {name} ({one.candidate.evidence})"
            )
            if one.probe.holds:
                print(f"         {one.probe.holds}: each is a replica of the tier")
    products = {gpu.product for gpu in gpus}
    print(f"GPUs     {len(gpus)}: {', '.join(sorted(products))}" if gpus else "GPUs     none seen")
    if sum(map(len, tiers.values())) > 1 and gpus:
        print(f"         which engine owns which is not known: add gpus to the targets in {config_path}")
    told = (
        f"alerts are posted to {ALERTMANAGER}"
        if alertmanager
        else f"no Alertmanager at {urlsplit(ALERTMANAGER).netloc}"
    )
    print(f"alerts   {told}")
    print(f"wrote    {config_path}, {plan_path}")
    print(f"assumed  lines marked ASSUMED in {plan_path}: GPUs of a replica, and a TTFT P99 of 2 s")
    where = f" -c {shlex.quote(str(config_path))}" if config_path.parent != Path() else ""
    print(f"next     sizewatch run{where}      then http://127.0.0.1:9095/")
    tier = next(iter(tiers))
    print(f"then     sizewatch plan import RESULTS... --into {shlex.quote(str(plan_path))} --tier {shlex.quote(tier)}")
