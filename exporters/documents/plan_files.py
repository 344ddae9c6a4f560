"""Files for people: benchmark curves with comments, a skeleton plan, a first configuration, files of load generators.

Numbers follow YAML 1.1, as common parsers do (`1e-05` would be text). Required unknown values of a skeleton stay empty,
so that `plan check` names their line. Optional unknown values are comments. Observed values are no planned ones.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from random import Random
from statistics import fmean, pstdev

from exporters.render.text import blank_unprintable, printable_line, replace_undecodable
from rules.plan.gpus import engine_kv_tokens, read_count
from rules.plan.schema import BenchmarkCurve, Point, Provenance
from rules.resize.workload import BenchmarkWorkload
from rules.telemetry import histograms
from rules.telemetry.readings import read, window_since_start
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.wording import number

WIDTH = 116

WRITTEN = "Written by `sizewatch plan import`, which replaces all of it, comments too, when a curve is imported again."
"""First comment of an imported curve. Without it, the comments of a curve are manual."""

LOAD = ("concurrency", "requested_rps", "completed_rps", "requests")
"""Load keys of a point, written first."""

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+@-]*")
_NOT_TEXT = re.compile(r"(?i)[-+.0-9_:eox]*|\.?(inf|nan)|y|n|yes|no|on|off|true|false|null|0x[0-9a-f_]+|[0-9-]+(t.*)?")
"""Pattern of text that a YAML 1.1 parser may take for a number, date or truth value. It matches slightly more."""

_ESCAPES = {'"': '\\"', "\\": "\\\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlIndentation:
    """YAML layout of the surrounding file: columns before the key, columns per level, and list indentation."""

    margin: int = 0
    step: int = 2
    lists_indented: bool = True


def curve_lines(
    curve: BenchmarkCurve,
    layout: YamlIndentation,
    *,
    head: Sequence[str] = (),
    notes: Sequence[Sequence[str]] = (),
) -> list[str]:
    """Return the lines of `curve:` without line ends. The first line has no margin, all others have it.

    `head` are comments on the whole, `notes` are comments above each point. Unmeasured values are omitted.
    """
    inner = " " * (layout.margin + layout.step)
    item = inner + " " * (layout.step if layout.lists_indented else 0)
    lines = ["curve:", *_comments(head, inner)]
    for key in ("loop", "gpu_utilization_kind"):
        if value := getattr(curve, key):
            lines.append(f"{inner}{key}: {value}")
    if curve.source:
        lines += [f"{inner}source:", *(f"{item}- {scalar(name)}" for name in curve.source)]
    lines += _measured(curve.measured, inner, " " * layout.step)
    lines.append(f"{inner}points:")
    for place, point in enumerate(curve.points):
        lines += _comments(notes[place] if place < len(notes) else (), item)
        lines += _point(point, item)
    return lines


def _measured(measured: Provenance | None, inner: str, step: str) -> list[str]:
    """Return the lines of what was benchmarked. Text is quoted: a release such as 0.32 would be read as a number."""
    lines = []
    for name, value in measured.model_dump(exclude_none=True).items() if measured else ():
        if isinstance(value, dict):
            value = f"{{{', '.join(f'{key}: {yaml_number(each)}' for key, each in value.items())}}}"
        lines.append(
            f"{inner}{step}{name}: {json.dumps(value) if name in ('engine_version', 'measured_on') else value}"
        )
    return [f"{inner}measured:", *lines] if lines else []


def scalar(text: str) -> str:
    """Return a text that YAML reads back unchanged: plain if safe, else in double quotes."""
    # Undecodable bytes of a file name are replaced by a mark.
    readable = replace_undecodable(text)
    if _PLAIN.fullmatch(readable) and not _NOT_TEXT.fullmatch(readable):
        return readable
    escaped = (_ESCAPES.get(sign) or (sign if sign.isprintable() else f"\\U{ord(sign):08x}") for sign in readable)
    return f'"{"".join(escaped)}"'


def yaml_number(value: float) -> str:
    """Return a number without exponent and without a meaningless fraction."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _point(point: Point, margin: str) -> list[str]:
    loads = [name for name in LOAD if getattr(point, name) is not None]
    texts = [name for name in Point.model_fields if name not in (*LOAD, "censored")]
    parts = [f"{name}: {yaml_number(getattr(point, name))}" for name in loads]
    parts += ["censored: true"] if point.censored else []
    parts += [f"{name}: {yaml_number(value)}" for name in texts if (value := getattr(point, name)) is not None]
    # Keep a key on the line of its value.
    text = ", ".join(parts).replace(": ", ":\0")
    wrapped = textwrap.wrap(text, WIDTH - len(margin) - 4, break_long_words=False, break_on_hyphens=False)
    lines = [line.replace("\0", " ") for line in wrapped]
    lines[-1] += "}"
    return [f"{margin}{'   ' if place else '- {'}{line}" for place, line in enumerate(lines)]


def _comments(texts: Iterable[str], margin: str) -> list[str]:
    lines = []
    for text in texts:
        # A line end or control character in a file name must not end the comment.
        clean = printable_line(text)
        wrapped = textwrap.wrap(clean, max(WIDTH - len(margin) - 2, 40), break_on_hyphens=False, break_long_words=False)
        lines += [f"{margin}# {line}" for line in wrapped]
    return lines


HEAD = """\
# A sizing plan of what runs now, read {when} from {source}.
# FILL IN marks what only people know: `sizewatch plan check FILE` names each line that is still empty.
# Keys and units: docs/plan.schema.json (`sizewatch plan schema`). The curve comes from a benchmark:
#   sizewatch plan import RESULTS... --into FILE --tier TIER
schema: 1
tiers:"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """Known facts of a tier. `release` and `gpu_product` are empty and numbers None if unknown."""

    name: str
    engine: str
    title: str
    release: str
    model: str
    pages: tuple[Snapshot, ...]
    context_tokens: int | None
    gpu_product: str = ""
    gpus_per_replica: int | None = None
    gpus_here: int = 0
    remarks: tuple[str, ...] = ()
    assumed: bool = False
    """Whether required keys that nobody knows from here get a value, marked as assumed."""


def config_text(urls: Mapping[str, Iterable[str]], when: str, *, gpus: bool, alertmanager: str) -> str:
    """Return a configuration of these pages by tier. `alertmanager` is its address, "" without one."""
    lines = [f"# Written by `sizewatch init`, {when}. All keys: `sizewatch` documentation, configuration."]
    lines += ["plan: plan.yaml", "data_dir: sizewatch-data", "targets:"]
    for tier, pages in urls.items():
        lines += [f"  - {{url: {json.dumps(url)}, tier: {scalar(tier)}}}" for url in pages]
    if not gpus:
        lines.append("gpus: {source: none}  # no NVIDIA driver answers here")
    if alertmanager:
        lines.append(f"alerting: {{path: posts, alertmanagers: [{{url: {json.dumps(alertmanager)}}}]}}")
    return "\n".join(map(blank_unprintable, lines)) + "\n"


def skeleton(tiers: tuple[TierFacts, ...], when: str, source: str) -> str:
    """Return the whole file. `when` and `source` are words for its first line."""
    lines = [HEAD.format(when=when, source=source)]
    for tier in tiers:
        lines += [f"  {scalar(tier.name)}:", *(f"    {blank_unprintable(line)}".rstrip() for line in _tier(tier))]
    return "\n".join(lines) + "\n"


def _tier(tier: TierFacts) -> Iterator[str]:
    facts = tier.pages[0].facts
    yield from (f"# {remark}" for remark in tier.remarks)
    yield _filled("model", tier.model or ("unknown" if tier.assumed else ""), "the name the engine serves it under")
    text = f"{tier.title}{f', release {tier.release} by its page' if tier.release else ''}"
    yield f"engine: {_text(tier.engine)}  # {text}"
    yield f"# precision: {{weights: , kv: }}  # FILL IN; {_kv_format(facts)}"
    yield "gpu:"
    product = tier.gpu_product or ("cpu" if tier.assumed and not tier.gpus_here else "")
    yield "  " + _filled("product", product, "product name as NVML or the GPU exporter prints it")
    count = "" if tier.gpus_per_replica is None else str(tier.gpus_per_replica)
    here = f"; this machine has {tier.gpus_here}" if tier.gpus_here else ""
    note = "  # ASSUMED" if tier.assumed else "" if count else f"  # FILL IN: GPUs of one engine instance{here}"
    yield f"  per_replica: {count}".rstrip() + note
    yield from _cache(facts, tier.context_tokens)
    yield "slo:"
    promised = "what users were promised for the first token"
    if tier.assumed:
        yield f"  ttft_p99_seconds: 2.0  # ASSUMED, from the sizing guide's 8.3: put {promised}"
    else:
        yield f"  ttft_p99_seconds:  # FILL IN: {promised}, such as 2.0"
    yield "  # tpot_p99_seconds:  # and for each token after it, such as 0.08"
    yield "  # e2e_p99_seconds:  # and for the whole request, such as 30"
    yield from _workload(tier)
    yield "# curve: comes from a benchmark of one replica (sizewatch plan import)"
    yield f"# fleet: {{instances: {len(tier.pages)}, safety_factor: 1.3, minimum_warm: 1}}  # {len(tier.pages)} run now"
    yield "# cost: {gpu_hour_price: , currency: USD}  # what one GPU costs an hour"
    yield from _cold_start(tier.pages)
    yield from _guardrails(tier.context_tokens)


def _filled(key: str, value: str, what: str) -> str:
    return f"{key}: {_text(value)}" if value else f"{key}:  # FILL IN: {what}"


def _text(value: str) -> str:
    """Return a YAML string that stays a string. A model may be named `true`, `1.0` or `a: b`."""
    plain = value.replace("-", "").replace("_", "").replace("/", "").replace(".", "").replace(" ", "")
    safe = plain.isalnum() and plain.isascii() and value[0].isalpha() and value.strip() == value
    reserved = value.casefold() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return value if safe and not reserved else json.dumps(value)


def _kv_format(facts: Mapping[str, str]) -> str:
    kv = facts.get("cache_dtype", "")
    if kv in ("", "auto"):
        return "the page does not tell them" if not kv else "the KV cache is of the model's own type"
    return f"the KV cache is {kv}"


def _cache(facts: Mapping[str, str], context: int | None) -> Iterator[str]:
    blocks = read_count(facts.get("num_gpu_blocks", "") or facts.get("num_pages", ""))
    size = read_count(facts.get("block_size", "") or facts.get("page_size", ""))
    tokens = engine_kv_tokens(facts)
    if tokens:
        of = f" ({blocks} blocks of {size})" if blocks and size else ""
        full = f"; {tokens / context:.1f} requests of the whole context length fit" if context else ""
        yield f"# KV cache: {tokens} tokens{of}{full}"
    if context:
        yield f"# context length: {context} tokens"


LENGTHS = ("prompt_tokens", "generation_tokens")


def _workload(tier: TierFacts) -> Iterator[str]:
    """Yield the observed workload as a comment. The plan holds the sized workload, not the observed workload."""
    yield "# workload:  # FILL IN: the traffic this tier was sized for"
    seen = {stem: _seen(tier.pages[0], stem) for stem in LENGTHS}
    for stem in LENGTHS:
        yield f"#   {stem}: {{mean: , p50: , p95: , p99: }}{seen[stem]}"
    yield "#   requests_per_second: {average: , peak: }"


def _seen(page: Snapshot, stem: str) -> str:
    window = window_since_start(page)
    readings = [read(BY_NAME[f"{stem}_p{q}"], window) for q in (50, 95, 99)]
    known = [reading for reading in readings if isinstance(reading, Reading) and reading.value is not None]
    if len(known) < len(readings):
        return ""
    values = ", ".join(f"{reading.value:.0f}" for reading in known)
    mean = histograms.mean(window.histograms[f"{stem}_per_request"])
    exact = "" if mean is None else f"{mean:.0f} on average, "
    return f"  # since its start this engine saw {exact}about {values} ({known[0].n:.0f} requests)"


def _cold_start(pages: tuple[Snapshot, ...]) -> Iterator[str]:
    values = [page.ready_at - page.started_at for page in pages if page.ready_at and page.started_at]
    seconds = max((s for s in values if s > 0), default=None)
    if seconds is None:
        yield "# cold_start_seconds:  # from asking for a replica to its first answer; the page does not tell it"
    else:
        text = f"process start to ready took {number(seconds, 'seconds')}; add the time to get a node and the image"
        yield f"# cold_start_seconds:  # {text}"


def _guardrails(context: int | None) -> Iterator[str]:
    limit = f"{context}" if context else ""
    yield f"# guardrails: {{max_prompt_tokens: {limit}, max_generation_tokens: }}  # what the gateway enforces"


WARM_UP = 50
"""Requests before the first load. Ours: enough for what an engine does once."""

RUN = """\
#!/bin/sh
# Written by `sizewatch plan workload` for {needs}. {head}
# Set URL, MODEL and TOKENIZER for another place than below.
set -eu
cd "$(dirname "$0")"
: "${{URL:=http://127.0.0.1:8000}}" "${{MODEL:={model}}}"
: "${{TOKENIZER:=$MODEL}}"
"""
_VLLM = """\
PYTHONHASHSEED=0 vllm bench serve --backend openai --base-url "$URL" --endpoint /v1/completions --model "$MODEL" \\
  --tokenizer "$TOKENIZER" --dataset-name timed_trace --dataset-path requests_{tag}.jsonl \\
  --timed-trace-chunk-hash-size {block} --no-self-timed --num-prompts {requests} {load} --seed {seed} \\
  --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --save-result --save-detailed \\
  --result-dir . --result-filename {result}.json
"""
_GUIDELLM = """\
# One process: each of several draws the same arrival times, so that they come in groups.
GUIDELLM__MAX_WORKER_PROCESSES=1 guidellm run \\
  --backend "kind=openai_http,target=$URL,model=$MODEL,request_format=/v1/completions" \\
  --tokenizer "kind=huggingface_auto,model=$TOKENIZER" --profile kind={load} \\
  --data kind=mooncake,hash_id_block_size={block},source.kind=json_file,source.path=requests_{tag}.jsonl \\
  --constraint kind=max_requests,count={requests} --seed kind=static,value={seed} --output kind=json,path={result}.json
"""
_AIPERF = """\
aiperf profile --model "$MODEL" --tokenizer "$TOKENIZER" --url "$URL" --endpoint-type completions --streaming \\
  --input-file requests_{tag}.jsonl --custom-dataset-type mooncake_trace --isl-block-size {block} --no-fixed-schedule \\
  --ignore-trace-delays {load} --request-count {requests} --random-seed {seed} --extra-inputs ignore_eos:true \\
  --use-server-token-count --output-artifact-dir . --profile-export-prefix {result}
"""
_INFERENCE_PERF = """\
cat > run_{tag}.yaml <<END
api: {{type: completion, streaming: true}}
server: {{type: vllm, model_name: "$MODEL", base_url: "$URL", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: "$TOKENIZER"}}
data:
  type: shared_prefix
  shared_prefix: {{num_groups: 1, num_prompts_per_group: {most}, system_prompt_len: {shared}, seed: {seed},
    question_len: {questions}, output_len: {outputs}}}
load: {{{load}, base_seed: {seed}}}
storage: {{local_storage: {{path: reports_{tag}}}}}
END
inference-perf --config_file run_{tag}.yaml
mv reports_{tag}/stage_0_lifecycle_metrics.json {result}.json
"""
LOAD_GENERATORS: Mapping[str, tuple[str, str, str]] = {
    "vllm-bench": ("vLLM 0.32", _VLLM, "--request-rate {rps:g}"),
    "guidellm": ("GuideLLM 0.8", _GUIDELLM, "poisson,rate={rps:g}"),
    "inference-perf": (
        "inference-perf 0.7",
        _INFERENCE_PERF,
        "type: poisson, stages: [{{rate: {rps:g}, duration: {seconds}}}]",
    ),
    "aiperf": ("AIPerf 0.13", _AIPERF, "--request-rate {rps:g} --arrival-pattern poisson"),
}
"""Load generators by the names of the result formats: version, command, and its load."""


def workload_files(workload: BenchmarkWorkload, tool: str, model: str, head: str) -> dict[str, str]:
    """Return the files of a benchmark by name: `run.sh`, and the requests of each load.

    Requests are lines of Mooncake's trace format; a hash id is a block of the prompt. No two loads have a block in common
    but the shared ones, else the prefix cache would answer. inference-perf takes no lengths beside a shared prefix, only
    their shape.
    """
    needs, command, arrivals = LOAD_GENERATORS[tool]
    # The model's name must not end the quotes and braces of the script.
    safe = re.sub(r"[^A-Za-z0-9_./:@+-]", "_", model)
    script, files = [RUN.format(needs=needs, head=printable_line(head), model=safe)], {}
    own, shared = count(workload.shared_blocks), workload.shared_blocks * workload.block_tokens
    # The engine compiles, and the shared prefix is computed, before the first load.
    for seed, rps in enumerate((workload.loads[0], *workload.loads)):
        tag = f"r{rps:g}" if seed else "warm_up"
        lines = _requests(workload, rps, Random(seed), own)[: None if seed else WARM_UP]
        seconds = math.ceil(len(lines) / rps)
        values = {
            "tag": tag,
            "result": f"bench_{tag}" if seed else tag,
            "seed": seed,
            "block": workload.block_tokens,
            "requests": len(lines),
            "most": max(len(lines), math.ceil(seconds * rps)),
            "shared": shared,
            "questions": _shape([max(1, prompt - shared) for prompt in workload.prompts]),
            "outputs": _shape(workload.generations),
            "load": arrivals.format(rps=rps, seconds=seconds),
        }
        script.append(command.format(**values))
        if "requests_{tag}" in command:
            files[f"requests_{tag}.jsonl"] = "\n".join(json.dumps(line) for line in lines) + "\n"
    return {"run.sh": "".join(script), **files}


def _requests(workload: BenchmarkWorkload, rps: float, chance: Random, own: Iterator[int]) -> list[dict[str, object]]:
    lines = []
    prompts, generations = (
        chance.sample(lengths, len(lengths)) for lengths in (workload.prompts, workload.generations)
    )
    for place, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        blocks = math.ceil(prompt / workload.block_tokens)
        shared = min(workload.shared_blocks, blocks - 1)
        ids = [*range(shared), *(next(own) for _ in range(blocks - shared))]
        when = round(1000 * place / rps)
        lines.append({"timestamp": when, "input_length": prompt, "output_length": generation, "hash_ids": ids})
    return lines


def _shape(lengths: Sequence[int]) -> str:
    shape = f"mean: {fmean(lengths):.5g}, std_dev: {pstdev(lengths):.5g}"
    return f"{{type: lognormal, min: {min(lengths)}, max: {max(lengths)}, {shape}}}"
