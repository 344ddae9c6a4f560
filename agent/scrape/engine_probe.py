"""Probe of a running engine for `init` and `plan init`: its page and its model card."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from agent.config.peer import Peer
from agent.errors import ScrapeError
from agent.http_client.client import JSON, PageFetcher, fetch_page
from agent.scrape.scrapers import PageReader, fetch_version
from exporters.render.safe_text import quote_external_text
from rules.engines.registry import EngineTable
from rules.telemetry.snapshots import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """Facts of one engine instance, the first where its page holds several. `holds` says how many those are.

    `context_tokens` is None if neither page nor model card has it. `model` has several names joined, at most 300 letters.
    """

    url: str
    engine: EngineTable
    page: Snapshot
    model: str
    context_tokens: int | None
    holds: str = ""


def probe_engine(peer: Peer) -> EngineProbe:
    """Probe one endpoint. Raise ScrapeError if it has no page of an engine."""
    reader, body = PageReader(), fetch_page(peer)
    reader.read_engines(body, time.time())
    reader.set_version(fetch_version(PageFetcher, peer, reader.engine.version_path))
    page = next(iter(reader.read_engines(body, time.time()).values()))
    # That of an OpenAI-compatible server. vLLM and SGLang include `max_model_len`.
    models = peer.model_copy(update={"url": urlunsplit(urlsplit(peer.url)._replace(path="/v1/models", query=""))})
    try:
        card = dict(json.loads(fetch_page(models, JSON))["data"][0])
    except (ScrapeError, ValueError, LookupError, TypeError, RecursionError):
        card = {}
    context = str(card.get("max_model_len") or page.facts.get("max_model_len", ""))
    return EngineProbe(
        url=peer.url,
        engine=reader.engine,
        page=page,
        model=quote_external_text(page.facts.get("model") or str(card.get("id") or ""), 300),
        context_tokens=int(context) if context.isdecimal() and len(context) < 10 else None,
        holds=reader.describe_engines(),
    )
