"""Names in one PromQL expression, and their check against the metric and label names that the tables list."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from exporters.metrics.names import ALL as OWN_METRICS
from rules.engines.registry import ENGINES, NAMESPACES
from rules.engines.table import SourceRow
from rules.engines.vllm_v0 import VLLM_V0
from rules.gpu_sources.registry import EXPORTERS
from rules.telemetry.families import FamilyKind

MAX_CHARACTERS = 20_000
MAX_STEPS = 800
"""Limit of operators and brackets. The parser recurses, and its stack overflows at about 5,000."""
_STEP = re.compile(r"[-+*/%^(]|[<>=!]=?|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|#[^\n]*")


class LintInputError(Exception):
    """File or expression that cannot be read; `line` is 0 where it is unknown."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class QueryNames:
    """Metric names of an expression, labels with the metrics that have them, and labels that the expression adds."""

    metrics: tuple[str, ...]
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    added_labels: frozenset[str]


def read_query(text: str) -> QueryNames:
    """Return the names in an expression. Raise LintInputError for text that is not PromQL."""
    try:
        if len(text) > MAX_CHARACTERS or len(_STEP.findall(_QUOTED.sub("", text))) > MAX_STEPS:
            raise LintInputError("is no PromQL: too long or nested too deeply")
        nodes = tuple(walk_query(promql_parser.parse(text)))
    except ValueError as error:
        raise LintInputError(f"is no PromQL: {error}") from error
    except RecursionError:
        raise LintInputError("is no PromQL: too long or nested too deeply") from None
    uses = tuple(use for node in nodes for use in _label_uses(node))
    metrics = dict.fromkeys(name for node in nodes if (name := _metric(node)))
    return QueryNames(tuple(metrics), uses, frozenset(label for node in nodes for label in _added_labels(node)))


def walk_query(node: Any) -> Iterator[Any]:
    """Return every node of a parsed expression, the outermost first."""
    yield node
    inner = [getattr(node, part, None) for part in ("expr", "param", "lhs", "rhs", "vector_selector")]
    for child in (*inner, *getattr(node, "args", ())):
        if child is not None:
            yield from walk_query(child)


def _metric(node: Any) -> str:
    if not isinstance(node, promql_parser.VectorSelector):
        return ""
    named = (m.value for m in node.matchers.matchers if m.name == "__name__" and m.op == promql_parser.MatchOp.Equal)
    return str(node.name or next(named, ""))


def _label_uses(node: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    if metric := _metric(node):
        yield from ((matcher.name, (metric,)) for matcher in node.matchers.matchers)
    elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        metrics = tuple(name for inner in walk_query(node.expr) if (name := _metric(inner)))
        yield from ((label, metrics) for label in node.modifier.labels)


def _added_labels(node: Any) -> tuple[str, ...]:
    if isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None:
        return tuple(node.modifier.group_labels or ())
    if isinstance(node, promql_parser.Call) and node.func.name in ("label_replace", "label_join"):
        return (getattr(node.args[1], "val", ""),)
    return ()


_NAMESPACES = {**NAMESPACES, **{prefix: prefix for prefix in ("DCGM_", "nvidia_smi_", "sizewatch_")}}
"""Printed prefixes by table prefix. For Prometheus 2 newer engines print `vllm_` where they have `vllm:` else."""
_PARTS = ("_bucket", "_sum", "_count")


def _namespace(key: str) -> str:
    """Return the prefix of an exporter that a table's name begins with, or an empty string."""
    return next((prefix for prefix in _NAMESPACES if key.startswith(prefix)), "")


def _samples(name: str, is_histogram: bool) -> tuple[str, ...]:
    return tuple(name + part for part in _PARTS) if is_histogram else (name,)


def _row_samples(row: SourceRow) -> tuple[str, ...]:
    return (*_samples(row.source, row.kind is FamilyKind.HISTOGRAM or bool(row.part)), *row.plus)


_ROWS = tuple(row for engine in ENGINES for row in engine.rows if _namespace(row.source))
_CURRENT = tuple(row for row in _ROWS if row not in VLLM_V0.rows and (row.part or not row.until))

_FORMER_NAMES = {
    **dict.fromkeys(("vllm_cpu_prefix_cache_hit_rate", "vllm_prompt_tokens_recomputed_total"), ""),
    **dict.fromkeys(("vllm_request_params_best_of", "llamacpp_kv_cache_usage_ratio", "llamacpp_kv_cache_tokens"), ""),
    "vllm_gpu_prefix_cache_hit_rate": "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])",
    **dict.fromkeys(("vllm_cpu_cache_usage_perc", "vllm_num_requests_swapped"), "rate(vllm:num_preemptions_total[5m])"),
    "vllm_avg_prompt_throughput_toks_per_s": "rate(vllm:prompt_tokens_total[5m])",
    "vllm_avg_generation_throughput_toks_per_s": "rate(vllm:generation_tokens_total[5m])",
    "vllm_tokens_total": "(vllm:prompt_tokens_total + vllm:generation_tokens_total)",
    "vllm_time_in_queue_requests": "vllm:request_queue_time_seconds",
    **{
        f"vllm_model_{step}_time_milliseconds": "vllm:request_inference_time_seconds" for step in ("forward", "execute")
    },
    **{
        f"vllm_spec_decode_{name}": "vllm:spec_decode_num_accepted_tokens_total"
        for name in ("draft_acceptance_rate", "efficiency", "num_emitted_tokens_total")
    },
    "vllm_request_failure_total": 'vllm:request_success_total{finished_reason=~"abort|error"}',
    "vllm_request_latency_seconds": "vllm:e2e_request_latency_seconds",
    "sglang_time_per_output_token_seconds": "sglang:inter_token_latency_seconds",
    "sglang_avg_request_queue_latency": "rate(sglang:queue_time_seconds_sum[5m]) / rate(sglang:queue_time_seconds_count[5m])",
    "sglang_engine_startup_time": 'max(sglang:startup_time_seconds{phase=~"scheduler_e2e|tokenizer_e2e"})',
    "sglang_engine_load_weights_time": 'sglang:startup_time_seconds{phase="load_weight"}',
    "sglang_num_prefill_prealloc_queue_reqs": "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang_gpu_execution_seconds_total": "sglang:forward_execution_seconds_total",
}
"""PromQL to write instead of names that ended, or an empty text. Keys have '_' for ':' and no part of a histogram.
Sources: the released wheels of vLLM 0.6.6 to 0.33.0 and SGLang 0.4.1 to 0.5.23."""

_OTHER_EXPORTERS = (
    *("vllm_current_qps", "vllm_avg_decoding_length", "vllm_avg_latency", "vllm_avg_itl", "vllm_avg_ttft"),
    *("vllm_num_prefill_requests", "vllm_num_decoding_requests", "vllm_healthy_pods_total", "vllm_deployment_replicas"),
    *("vllm_num_incoming_requests_total", "vllm_request_errors_total"),
)
"""Names with an engine's prefix that production-stack's router or AIBrix exports."""

_SAMPLES = frozenset(
    {
        *(name for row in _CURRENT for name in _row_samples(row)),
        *(name for engine in ENGINES for name in (*engine.info, *engine.signatures)),
        *(name for engine in ENGINES for _, name in engine.fact_gauges),
        *(name for table in EXPORTERS for field in table.fields for name in field.names),
        *(name for table in EXPORTERS for name in table.also_read),
        *(name for one in OWN_METRICS for name in _samples(one.name, one.kind is FamilyKind.HISTOGRAM)),
        *_OTHER_EXPORTERS,
    }
)
"""Names that current releases print, histograms with their part."""

_PREFIXES = tuple(
    {prefix for engine in ENGINES for prefix, _ in engine.ignored} - set(_NAMESPACES)
    | {prefix for exporter in EXPORTERS for prefix, _ in exporter.ignored}
    | {marker.source for engine in ENGINES for marker in engine.markers}
)
"""Beginnings of names that the tables list without reading them."""


def _identity(row: SourceRow) -> tuple[object, ...]:
    return row.family, row.kind, row.where, row.matches, row.part, _namespace(row.source)


_CURRENT_ROWS = {_identity(row): row for row in reversed(_CURRENT)}

_SUCCESSORS = _FORMER_NAMES | {
    name: successor
    for row in _ROWS
    if _identity(row) in _CURRENT_ROWS
    for name, successor in zip(_row_samples(row), _row_samples(_CURRENT_ROWS[_identity(row)]), strict=False)
    if name not in _SAMPLES
}
"""Current name of each sample that only older releases print."""

_LABELS = frozenset(
    {
        *((_namespace(row.source), label) for row in _ROWS for label, _ in (*row.where, (row.by, ""))),
        *((_namespace(row.source), match.label) for row in _ROWS for match in row.matches),
        *((_namespace(row.source), engine.model_label) for engine in ENGINES for row in engine.rows),
        *(("sizewatch_", label) for metric in OWN_METRICS for label in metric.labels),
        *(("DCGM_", label) for label in ("UUID", "uuid", "Hostname", "modelName", "model_name", "gpu", "GPU_I_ID")),
        ("nvidia_smi_", "uuid"),
    }
)
"""Labels that the tables name, each with the namespace of its metrics."""

_WRAPPERS = tuple({wrapper for engine in ENGINES for wrapper in engine.wrappers})
_NAME = re.compile(r"[A-Za-z_][\w:]*")
_MODEL_LABELS = ("model", "model_name", "modelName")


@dataclass(frozen=True, slots=True)
class WrongName:
    """A wrong metric or label name, and PromQL to write instead, which may be empty."""

    kind: str
    name: str
    text: str
    fix: str = ""


def check_names(query: QueryNames, recorded: Container[str], target_labels: Container[str]) -> Iterator[WrongName]:
    """Return the wrong names of an expression. Names in `recorded` and labels in `target_labels` are right."""
    keys = {_split(name)[1] for name in query.metrics}
    for wrong in filter(None, (_check_metric(name) for name in query.metrics if name not in recorded)):
        instead = {key for word in _NAME.findall(wrong.fix) if _namespace(key := _split(word)[1])}
        # An expression with both names of a metric serves old and new releases.
        if not (wrong.kind == "renamed" and instead and instead <= keys):
            yield wrong
    for label, metrics in dict.fromkeys(query.labels):
        fixes = ["" if name in recorded else _correct_label(name, label) for name in metrics]
        if fixes and all(fixes) and label not in target_labels and label not in query.added_labels:
            yield WrongName("label", label, f"{metrics[0]} has no label {label}", fixes[0])


def _split(name: str) -> tuple[str, str]:
    """Return the prefix that Ray or KServe adds, and the name as the tables spell it."""
    key = name.replace(":", "_")
    wrapper = next((one for one in _WRAPPERS if key.startswith(one)), "")
    return wrapper, key.removeprefix(wrapper)


def _check_metric(name: str) -> WrongName | None:
    wrapper, key = _split(name)
    namespace = _namespace(key)
    if not namespace or name.count(":") > 1 or key.endswith("_created"):
        return None

    def spelt(text: str) -> str:
        """Return PromQL with the metrics of this namespace in the spelling of `name`."""
        printed = _NAMESPACES[namespace]
        wanted = printed if ":" in name else namespace
        return text.replace(printed, namespace).replace(namespace, wrapper + wanted)

    stem, part = next(((key.removesuffix(end), end) for end in _PARTS if key.endswith(end)), (key, ""))
    ended = next((one for one in (key, f"{key}_total", stem) if one in _SUCCESSORS), "")
    if ended and key not in _SAMPLES:
        fix = _SUCCESSORS[ended] + (part if ended == stem != key else "")
        return WrongName("renamed", name, f"no current release prints {name}", spelt(fix))
    if key in _SAMPLES:
        return None if spelt(key) == name else WrongName("spelling", name, f"{name} has no colon", spelt(key))
    bare = key.removesuffix("_total") if key.endswith("_total") else stem
    if fix := next((one for one in (f"{key}_total", f"{key}_bucket", bare) if one in _SAMPLES), ""):
        return WrongName("suffix", name, f"no current release prints {name}: its suffix is wrong", spelt(fix))
    if key.startswith(_PREFIXES):
        return None
    names = {one.removeprefix(namespace): one for one in sorted(_SAMPLES) if one.startswith(namespace)}
    near = names.get(_nearest(key.removeprefix(namespace), names, 0.8), "")
    if namespace == "DCGM_" and not near:
        return None  # A counters file of dcgm-exporter may name any field of DCGM.
    return WrongName("dead-name", name, f"no release prints {name} and no given file records it", spelt(near))


def _correct_label(metric: str, label: str) -> str:
    """Return the label to write instead, or an empty string for a label that may be right."""
    namespace = _namespace(_split(metric)[1])
    known = sorted(name for owner, name in _LABELS if owner == namespace and name)
    if not namespace or label in known or metric.endswith("_info"):
        return ""
    if label in _MODEL_LABELS:
        return next((one for one in _MODEL_LABELS if one in known), "")
    same = next((one for one in known if one.lower() == label.lower()), "")
    return same or _nearest(label, known, 0.9)


def _nearest(word: str, known: Iterable[str], min_ratio: float) -> str:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=min_ratio)), "")
