"""Pages that are not of one engine: those of several engines, of a router, and of mixed origin.

A label of `TELLING` tells the engines of a page apart, and each is a replica. Without one the page is no replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rules.engines.reader import SeriesLayout, SeriesName, compile_layout, to_printable_line
from rules.engines.registry import ENGINES, EngineTable, SourceRow, detect_engine, normalize_name, strip_wrapper_prefix

MOST_ENGINES = 256
"""Maximum engines of one page. More values of a label are no engines."""

TELLING = (
    *("worker_addr", "worker_url", "worker_id", "worker", "WorkerId", "ReplicaId", "replica_id", "replica"),
    *("server", "backend", "backend_url", "upstream", "api_base", "endpoint", "address", "addr", "url", "target"),
    *("exported_instance", "instance", "service_instance_id", "exported_pod", "pod", "pod_name", "model_server_pod"),
    *("kubernetes_pod_name", "k8s_pod_name", "pod_ip", "worker_name", "server_url", "upstream_host"),
    *("container_id", "container_name", "hostname", "host", "node"),
)
"""Labels whose values are engines: of SGLang's gateway, of Ray, of proxies, of a Prometheus server or a collector."""

PLACED = ("kv_utilization", "requests_running")
"""Families of which an engine has one value for each of its parts."""

INFO = frozenset(info for engine in ENGINES for info in engine.info)

COUNTED = frozenset({*PLACED, "requests_waiting", "requests_finished", "prompt_tokens", "generation_tokens"})

STACK_ROUTER = (
    *("vllm_current_qps", "vllm_avg_decoding_length", "vllm_num_prefill_requests", "vllm_num_decoding_requests"),
    *("vllm_avg_itl", "vllm_avg_latency", "vllm_num_incoming_requests_total", "router_cpu_usage_percent"),
)
"""Begins of the names of the vLLM production-stack's router, which prints names of its engines beside them."""

MODELS = "{} share one tier and its plan: give each model its own address, and that target its own tier"


class SeveralEnginesError(Exception):
    """Page of several engines that no label tells apart."""


def is_router(families: Iterable[str]) -> bool:
    """Return whether a page is of the vLLM production-stack's router. Other routers print no names of engines."""
    return any(normalize_name(name).startswith(STACK_ROUTER) for name in families)


def restore_labels(names: Sequence[SeriesName]) -> Sequence[SeriesName]:
    """Return a page's series with the labels that Prometheus renamed. Those of their target, which differ, stay."""
    restored = [(name, dict(labels)) for name, labels in names]
    renamed = {label for _, labels in names for label in labels if label.startswith("exported_")}.difference(TELLING)
    for label in sorted(renamed, key=len, reverse=True):
        own = label.removeprefix("exported_")
        for _, labels in restored:
            labels |= {f"{own} of the target": labels.get(own, ""), own: labels.pop(label, "")}
    return restored


def split_page(
    names: Sequence[SeriesName], engines: tuple[EngineTable, ...] = ENGINES
) -> tuple[str, dict[str, SeriesLayout]]:
    """Return the label that tells the engines of a page apart, and their layouts by its values.

    A page of one engine has no label, and "" as its name; one without has none. SeveralEnginesError: no label tells."""
    names = restore_labels(names)
    plain = [(normalize_name(name), labels) for name, labels in names]
    engine = detect_engine(plain, engines)
    if engine is None:
        return "", {}
    kinds = (engine, *(table for table in engines if not table.carries_engines and detect_engine(plain, (table,))))
    label, values = _find_label(_placed(plain, kinds, COUNTED), TELLING)
    known = _placed(plain, kinds, {row.family for table in kinds for row in table.rows})
    if label and {family for family, own in known if label in own} <= {"requests_running", "requests_waiting"}:
        raise SeveralEnginesError(f"a router's page: only the queues of {len(values)} backends, no engine")
    if not label and engine.name != "dynamo":
        # A frontend of Dynamo serves several models, and is one replica.
        label, values = _find_label(_placed(plain, kinds, PLACED), (engine.model_label or "model", "version"))
    if len(values) > MOST_ENGINES:
        raise SeveralEnginesError(f"the page holds {len(values)} engines by their label {label}, more than can be read")
    parts = []
    for value in values:
        name = to_printable_line(value.split("://", 1)[-1].rstrip("/") or value)
        parts.append((name, _select_series(label, value, names)))
    if len(parts) < 2:
        label, parts = "", [("", parts[0][1] if parts else names)]
    layouts = {name: _compile_engine(series, engine, engines, () if label else plain) for name, series in parts}
    models = sorted({layout.facts.get("model", "") for layout in layouts.values()} - {""})
    if len(models) > 1:
        name, layout = next(iter(layouts.items()))
        layouts[name] = replace(layout, doubts=(MODELS.format(" and ".join(models)), *layout.doubts))
    return label, layouts


def _find_label(series: Sequence[SeriesName], labels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the label with the most values of those that differ within a family, and its values."""
    best: tuple[str, ...] = ()
    telling = ""
    for label in labels:
        values = {(name, of.get(label, "")) for name, of in series}
        texts = tuple(sorted({value for _, value in values} - {""}))
        if len(values) > len({name for name, _ in series}) and len(texts) > len(best):
            telling, best = label, texts
    return telling, best


def _placed(plain: Iterable[SeriesName], engines: tuple[EngineTable, ...], families: Iterable[str]) -> list[SeriesName]:
    """Return the labels of the series that feed some families of some engines, each with its family."""
    rows: dict[str, list[SourceRow]] = {}
    for row in (row for engine in engines for row in engine.rows if row.family in families):
        rows.setdefault(row.sample, []).append(row)
    series_names = []
    for name, labels in plain:
        plain_names = {strip_wrapper_prefix(name, engine) for engine in engines}
        family = next((row.family for own in plain_names for row in rows.get(own, ()) if row.reads(labels)), "")
        series_names += [(family, labels)] if family else []
    return series_names


def _select_series(label: str, value: str, names: Sequence[SeriesName]) -> Sequence[SeriesName]:
    """Return the series of a page, those of other engines without a name. Of others infos are of each."""
    return [
        (name, labels)
        if labels.get(label, "") == value or (label not in labels and normalize_name(name) in INFO)
        else ("", {})
        for name, labels in names
    ]


def _compile_engine(
    series: Sequence[SeriesName], page_engine: EngineTable, engines: tuple[EngineTable, ...], page: Sequence[SeriesName]
) -> SeriesLayout:
    """Return the layout of an engine's series. Raise SeveralEnginesError where they or `page` are of several."""
    plain = [(normalize_name(name), labels) for name, labels in series if name]
    engine = detect_engine(plain, engines) or page_engine
    # The names of TensorRT-LLM v1.0 may be any engine's.
    tables = [table for table in engines if table.generation != "v1.0" and detect_engine(page or plain, (table,))]
    titles = sorted({table.title for table in tables})
    if len(titles) > 1 and not any(table.carries_engines for table in tables):
        raise SeveralEnginesError(f"the page is of mixed origin: it has names of {' and of '.join(titles)}")
    if engine.name == "dynamo":
        return compile_layout(series, engine)
    # A stage is of vLLM-Omni. What an unknown rank counts may be its own, or what others count too.
    parts = {*engine.repeats, engine.rank_label, "stage"}
    for families, ending in ((PLACED, ""), ({row.family for row in engine.rows}, "rank")):
        placed = _placed(plain, (engine,), families)
        for label in sorted({label for _, labels in placed for label in labels if label.endswith(ending)} - parts):
            if _find_label(placed, (label,))[0]:
                raise SeveralEnginesError(f"nothing tells whether the page is one engine's (its label {label} differs)")
    return compile_layout(series, engine)
