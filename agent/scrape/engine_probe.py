"""Probe of a running engine for `sizewatch plan init`: its page, its model card and its configuration facts.

Facts that only users have are not guessed. An unreadable model card becomes a remark. An endpoint without a page raises
ScrapeError.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agent.config.peer import Peer
from agent.errors import ScrapeError
from agent.http_client.page import JSON, fetch_page
from agent.scrape.scrapers import PageReader
from exporters.render import text
from rules.engines.table import EngineTable
from rules.telemetry.snapshots import Snapshot

MODELS = "/v1/models"
"""Path of the model list of an OpenAI-compatible server. vLLM and SGLang include `max_model_len`."""

MOST_MODEL = 300
"""Maximum letters of a model name. A page with several names has them joined."""

LONGEST_CONTEXT = 100_000_000
"""Upper bound of a plausible context length in tokens."""

FACTS = ("num_gpu_blocks", "block_size", "cache_dtype", "gpu_memory_utilization", "enable_prefix_caching")
"""Page facts that belong to the configuration of a tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """Facts of one engine instance, the first where its page holds several. `holds` says how many those are.

    `context_tokens` is None if neither page nor model card has it.
    """

    url: str
    engine: EngineTable
    page: Snapshot
    model: str
    context_tokens: int | None
    remarks: tuple[str, ...] = ()
    holds: str = ""


def probe_engine(peer: Peer, engine: str | None = None) -> EngineProbe:
    """Probe one endpoint. Raise ScrapeError if it has no page of an engine."""
    reader = PageReader(engine)
    page = next(iter(reader.read_engines(fetch_page(peer), time.time()).values()))
    holds = reader.describe_engines()
    remarks = [f"{holds}; these facts are of the first"] if holds else []
    card = _card(peer, remarks)
    printed = page.facts.get("max_model_len", "")
    context = _tokens(card.get("max_model_len")) or (_tokens(int(printed)) if printed.isdecimal() else None)
    return EngineProbe(
        url=peer.url,
        engine=reader.engine,
        page=page,
        model=text.quote_external_text(page.facts.get("model") or str(card.get("id") or ""), MOST_MODEL),
        context_tokens=context,
        remarks=tuple(remarks),
        holds=holds,
    )


def _card(peer: Peer, remarks: list[str]) -> dict[str, Any]:
    """Return the first model card of the server. Without one, add a remark and return an empty dict."""
    url = urlunsplit(urlsplit(peer.url)._replace(path=MODELS, query=""))
    try:
        return dict(json.loads(fetch_page(peer.model_copy(update={"url": url}), JSON))["data"][0])
    except ScrapeError as error:
        remarks.append(f"model card not read: {error.text}")
    except (ValueError, LookupError, TypeError, RecursionError):
        remarks.append(f"model card not read: {url} is not the list of models of an OpenAI-compatible server")
    return {}


def _tokens(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LONGEST_CONTEXT else None


def differences(running: tuple[EngineProbe, ...]) -> Iterator[str]:
    """Yield the differences between the replicas of a tier: a tier is one configuration, measured once."""
    values = {
        "engine": [f"{probe.engine.name} {probe.engine.generation}" for probe in running],
        "model": [probe.model for probe in running],
        "context length": [str(probe.context_tokens or "") for probe in running],
        **{fact: [probe.page.facts.get(fact, "") for probe in running] for fact in FACTS},
    }
    for name, texts in values.items():
        if len(set(texts)) > 1:
            listed = ", ".join(text or "not told" for text in dict.fromkeys(texts))
            yield f"{name} differs between the replicas: {listed}; a tier is one configuration"
