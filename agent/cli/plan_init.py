"""`sizewatch plan init`: a plan skeleton from what is running now."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from agent.cli.arguments import add_config
from agent.cli.connecting import add_ways_in, target_options
from agent.config.files import read_document
from agent.config.load import find, parse_config
from agent.errors import ConfigError, ScrapeError
from agent.scrape.engine_probe import EngineProbe, differences, list_local_gpus, probe_engine
from agent.scrape.scrapers import Target
from exporters.documents.plan_skeleton import TierFacts, skeleton
from rules.telemetry.gpu_readout import GpuReadout

FINE = 0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TIMEOUT_SECONDS = 10.0


def add_init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="*", metavar="URL", help="metrics pages of one tier's replicas; default: the targets"
    )
    add_config(parser)
    parser.add_argument("--tier", metavar="T", help="name of the tier, or which of the configured ones; default: all")
    add_ways_in(parser, "the addresses")


def run_init(options: argparse.Namespace) -> int:
    """Endpoints that give no page are told and left out; where none of a tier gives one, BadConfig (exit 2)."""
    targets = _given(options) if options.url else _configured(options)
    gpus = list_local_gpus()
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    tiers: dict[str | None, list[Target]] = {}
    for target in targets:
        tiers.setdefault(target.tier or None, []).append(target)
    facts = tuple(_facts(name, group, gpus) for name, group in tiers.items())
    print(skeleton(facts, when, ", ".join(_place(t.options.url) for t in targets)), end="")
    return FINE


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _given(options: argparse.Namespace) -> list[Target]:
    if options.config:
        raise ConfigError(("give addresses or -c, not both",))
    return [
        Target(
            tier=options.tier or "",
            replica=_place(url),
            pool="mixed",
            options=target_options(options, url, TIMEOUT_SECONDS),
        )
        for url in dict.fromkeys(options.url)
    ]


def _configured(options: argparse.Namespace) -> list[Target]:
    """The targets of the configuration; its plan need not exist yet."""
    path = find(options.config)
    document = read_document(path)
    if document.problems:
        raise ConfigError(document.problems)
    try:
        config = parse_config(document.data, folder=path.parent)
    except ConfigError as bad:
        raise ConfigError(document.located(bad.problems)) from None
    targets = [target for target in config.list_targets() if options.tier in (None, target.tier)]
    if not targets:
        which = f"of tier {options.tier} " if options.tier else ""
        raise ConfigError((f"{path}: no target {which}is configured: name metrics pages, or add targets",))
    return targets


def _facts(name: str | None, targets: list[Target], gpus: tuple[GpuReadout, ...]) -> TierFacts:
    running = _asked(targets)
    first = running[0]
    here = gpus if all(urlsplit(t.options.url).hostname in LOOPBACK for t in targets) else ()
    products = {gpu.product for gpu in here}
    product = products.pop() if len(products) == 1 else ""
    alone = len(targets) == 1 and len(here) == 1
    remarks = [f"{_place(one.url)}: {remark}" for one in running for remark in one.remarks]
    return TierFacts(
        name=name or _slug(product, first.model),
        engine=first.engine.name,
        title=first.engine.label,
        release=first.page.facts.get("engine_versions", ""),
        model=first.model,
        pages=tuple(one.page for one in running),
        context_tokens=first.context_tokens,
        pools=tuple(pool for pool in ("mixed", "prefill", "decode") if any(t.pool == pool for t in targets)),
        gpu_product=product,
        gpus_per_replica=1 if alone else None,
        gpus_here=len(here),
        remarks=(*differences(running), *remarks),
    )


def _asked(targets: list[Target]) -> tuple[EngineProbe, ...]:
    running: list[EngineProbe] = []
    failed: list[str] = []
    for target in targets:
        try:
            running.append(probe_engine(target.options, target.engine))
        except ScrapeError as error:
            failed.append(str(error))
    if not running:
        raise ConfigError(tuple(failed))
    for text in failed:
        print(f"sizewatch plan: left out: {text}", file=sys.stderr)
    return tuple(running)


def _slug(product: str, model: str) -> str:
    """A tier's name from GPU and model, as the guide names tiers: h100-llama70b-fp8."""
    gpu = re.sub(r"^NVIDIA |^AMD Instinct |^AMD ", "", product).split(" ")[0]
    words = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {Path(model).name}".casefold()).strip("-.")
    return words[:63].rstrip("-.") or "tier-1"
