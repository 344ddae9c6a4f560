"""Files for people: benchmark curves with comments, a skeleton plan, a first configuration, files of load generators.

Required unknown values of a skeleton stay empty, so that `plan check` names their line. Optional unknown values are
comments. Observed values are no planned ones.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from exporters.render.safe_text import blank_unprintable, printable_line, replace_undecodable
from exporters.render.text import dump_object
from rules.plan.gpus import engine_kv_tokens
from rules.plan.schema import BenchmarkCurve
from rules.resize.workload import BenchmarkWorkload
from rules.telemetry import histograms
from rules.telemetry.readings import read, window_since_start
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.snapshots import Snapshot

WIDTH = 108
"""Columns of a comment, from its margin on."""

DUMP_WIDTH = 80
"""Columns after which PyYAML begins a new line; the entry at which they end may exceed them."""

WRITTEN = "Written by `sizewatch plan import`, which replaces all of it, comments too, when a curve is imported again."
"""First comment of an imported curve. Without it, the comments of a curve are manual."""

_PLAIN = re.compile(r"(?i)(?!(y|n|yes|no|on|off|true|false|null)$)[a-z][a-z0-9_./+@-]*( [a-z0-9_./+@-]+)*")
"""Pattern of text that no YAML parser takes for a number, date or truth value."""


def curve_lines(
    curve: BenchmarkCurve, margin: int, *, head: Sequence[str] = (), notes: Sequence[Sequence[str]] = ()
) -> list[str]:
    """Return the lines of `curve:` without line ends. All but the first have a margin of so many columns.

    `head` are comments on the whole, `notes` are comments above each point. Unmeasured values are omitted.
    """
    fields = curve.model_dump(mode="json", exclude_defaults=True)
    if curve.source:
        fields["source"] = list(map(replace_undecodable, curve.source))
    lines, remarks = _comments(head), iter(notes)
    text = dump_object(fields, allow_unicode=True, width=DUMP_WIDTH, default_flow_style=None)
    for line in text.splitlines():
        if line.startswith("  - {"):
            lines += [f"  {comment}" for comment in _comments(next(remarks, ()))]
        lines.append(line)
    return ["curve:", *(" " * margin + line for line in lines)]


def _comments(texts: Iterable[str]) -> list[str]:
    lines = []
    for text in texts:
        # A line end or control character in a file name must not end the comment.
        wrapped = textwrap.wrap(printable_line(text), WIDTH, break_on_hyphens=False, break_long_words=False)
        lines += [f"# {line}" for line in wrapped]
    return lines


def scalar(text: str) -> str:
    """Return a text that YAML reads back unchanged: plain if safe, else in double quotes."""
    # Undecodable bytes of a file name are replaced by a mark.
    readable = replace_undecodable(text)
    if _PLAIN.fullmatch(readable):
        return readable
    return dump_object(readable, default_style='"', allow_unicode=True).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """Known facts of a tier. `title` is the engine with its release, `gpu_product` is empty and numbers None if unknown."""

    name: str
    engine: str
    title: str
    model: str
    pages: tuple[Snapshot, ...]
    context_tokens: int | None
    gpu_product: str = ""
    gpus_per_replica: int | None = None
    gpus_here: int = 0
    remarks: tuple[str, ...] = ()
    assumed: bool = False
    """Whether required keys that nobody knows from here get a value, marked as assumed."""


def config_text(
    urls: Mapping[str, Iterable[str]], when: str, ways: Mapping[str, Any], *, gpus: bool, alertmanager: str
) -> str:
    """Return a configuration of these pages by tier. `ways` are further keys of each target, `alertmanager` may be ""."""
    targets = [{"url": url, "tier": tier, **ways} for tier, pages in urls.items() for url in pages]
    config: dict[str, Any] = {"plan": "plan.yaml", "data_dir": "sizewatch-data", "targets": targets}
    if not gpus:
        config["gpus"] = {"source": "none"}
    if alertmanager:
        config["alerting"] = {"path": "posts", "alertmanagers": [{"url": alertmanager}]}
    head = f"# Written by `sizewatch init`, {when}. All keys: `sizewatch` documentation, configuration."
    return f"{head}\n{dump_object(config)}"


HEAD = """\
# A sizing plan of what runs now, read {when} from {source}.
# FILL IN marks what only people know: `sizewatch plan check FILE` names each line that is still empty.
# Keys and units: docs/plan.schema.json (`sizewatch plan schema`). The curve comes from a benchmark:
#   sizewatch plan import RESULTS... --into FILE --tier TIER
schema: 1
tiers:"""
TIER = """\
model:{model}
engine: {engine}  # {title}
# precision: {{weights: , kv: }}  # FILL IN; the KV cache is {kv_format}
gpu:
  product:{product}
  per_replica:{per_replica}
# {memory}
slo:
  ttft_p99_seconds:{ttft}
  # tpot_p99_seconds:  # and for each token after it, such as 0.08
  # e2e_p99_seconds:  # and for the whole request, such as 30
# workload:  # FILL IN: the traffic this tier was sized for
#   prompt_tokens: {{mean: , p50: , p95: , p99: }}{prompts}
#   generation_tokens: {{mean: , p50: , p95: , p99: }}{outputs}
#   requests_per_second: {{average: , peak: }}
# curve: comes from a benchmark of one replica (sizewatch plan import)
# fleet: {{instances: {instances}, safety_factor: 1.3, minimum_warm: 1}}  # {instances} run now
# cost: {{gpu_hour_price: , currency: USD}}  # what one GPU costs an hour
# cold_start_seconds:  # from asking for a replica to its first answer
# guardrails: {{max_prompt_tokens: {limit}, max_generation_tokens: }}  # what the gateway enforces"""


def skeleton(tiers: tuple[TierFacts, ...], when: str, source: str) -> str:
    """Return the whole file. `when` and `source` are words for its first line."""
    lines = [HEAD.format(when=when, source=source)]
    for tier in tiers:
        text = TIER.format_map(_tier_values(tier))
        tier_lines = [*(f"# {remark}" for remark in tier.remarks), *text.split("\n")]
        lines += [f"  {scalar(tier.name)}:", *(f"    {blank_unprintable(line)}" for line in tier_lines)]
    return "\n".join(lines) + "\n"


def _tier_values(tier: TierFacts) -> dict[str, object]:
    page, kv = tier.pages[0], tier.pages[0].facts.get("cache_dtype", "")
    count_note = "FILL IN: GPUs of one engine instance"
    if tier.gpus_here:
        count_note += f"; this machine has {tier.gpus_here}"
    if tier.assumed:
        unknown, count_note = "unknown", "ASSUMED"
        ttft = " 2.0  # ASSUMED, from the sizing guide's 8.3: put what users were promised for the first token"
    else:
        unknown, ttft = "", "  # FILL IN: what users were promised for the first token, such as 2.0"
    product = tier.gpu_product
    if tier.assumed and not tier.gpus_here:
        product = product or "cpu"
    kv_tokens = engine_kv_tokens(page.facts)
    memory = "KV cache: not told"
    if kv_tokens:
        memory = f"KV cache: {kv_tokens} tokens"
    if tier.context_tokens:
        memory += f"; context length: {tier.context_tokens} tokens"
    gpus = "" if tier.gpus_per_replica is None else f" {tier.gpus_per_replica}"
    if tier.assumed or not gpus:
        gpus += f"  # {count_note}"
    return {
        "model": _filled(tier.model or unknown, "the name the engine serves it under"),
        "engine": scalar(tier.engine),
        "title": tier.title,
        "kv_format": {"": "not told by the page", "auto": "of the model's own type"}.get(kv, kv),
        "product": _filled(product, "product name as NVML or the GPU exporter prints it"),
        "per_replica": gpus,
        "memory": memory,
        "ttft": ttft,
        "prompts": _seen(page, "prompt_tokens"),
        "outputs": _seen(page, "generation_tokens"),
        "instances": len(tier.pages),
        "limit": tier.context_tokens or "",
    }


def _filled(value: str, what: str) -> str:
    if value:
        return f" {scalar(value)}"
    return f"  # FILL IN: {what}"


def _seen(page: Snapshot, stem: str) -> str:
    """Return the observed lengths as a comment. The plan holds the sized workload, not the observed one."""
    window = window_since_start(page)
    readings = [read(BY_NAME[f"{stem}_p{q}"], window) for q in (50, 95, 99)]
    known = [reading for reading in readings if isinstance(reading, Reading) and reading.value is not None]
    if len(known) < len(readings):
        return ""
    values = ", ".join(f"{reading.value:.0f}" for reading in known)
    mean = histograms.mean(window.histograms[f"{stem}_per_request"])
    return (
        f"  # since its start this engine saw {mean or 0.0:.0f} on average, about {values} ({known[0].n:.0f} requests)"
    )


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
  --timed-trace-chunk-hash-size {block} --no-self-timed --num-prompts {requests} --request-rate {rps:g} --seed {seed} \\
  --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --save-result --save-detailed \\
  --result-dir . --result-filename {result}.json
"""
_GUIDELLM = """\
# One process: each of several draws the same arrival times, so that they come in groups.
GUIDELLM__MAX_WORKER_PROCESSES=1 guidellm run \\
  --backend "kind=openai_http,target=$URL,model=$MODEL,request_format=/v1/completions" \\
  --tokenizer "kind=huggingface_auto,model=$TOKENIZER" --profile kind=poisson,rate={rps:g} \\
  --data kind=mooncake,hash_id_block_size={block},source.kind=json_file,source.path=requests_{tag}.jsonl \\
  --constraint kind=max_requests,count={requests} --seed kind=static,value={seed} --output kind=json,path={result}.json
"""
_AIPERF = """\
aiperf profile --model "$MODEL" --tokenizer "$TOKENIZER" --url "$URL" --endpoint-type completions --streaming \\
  --input-file requests_{tag}.jsonl --custom-dataset-type mooncake_trace --isl-block-size {block} --no-fixed-schedule \\
  --ignore-trace-delays --request-rate {rps:g} --arrival-pattern poisson --request-count {requests} \\
  --random-seed {seed} --extra-inputs ignore_eos:true --use-server-token-count \\
  --output-artifact-dir . --profile-export-prefix {result}
"""
LOAD_GENERATORS: Mapping[str, tuple[str, str]] = {
    "vllm-bench": ("vLLM 0.32", _VLLM),
    "guidellm": ("GuideLLM 0.8", _GUIDELLM),
    "aiperf": ("AIPerf 0.13", _AIPERF),
}
"""Load generators by the names of the result formats: version and command."""


def workload_files(workload: BenchmarkWorkload, tool: str, model: str, head: str) -> dict[str, str]:
    """Return the files of a benchmark by name: `run.sh`, and the requests of each load.

    Requests are lines of Mooncake's trace format; a hash id is a block of the prompt. No two loads have a block in common
    but the shared ones, else the prefix cache would answer.
    """
    needs, command = LOAD_GENERATORS[tool]
    # The model's name must not end the quotes and braces of the script.
    safe = re.sub(r"[^A-Za-z0-9_./:@+-]", "_", model)
    script, files = [RUN.format(needs=needs, head=printable_line(head), model=safe)], {}
    own = count(workload.shared_blocks)
    # The engine compiles, and the shared prefix is computed, before the first load.
    for seed, rps in enumerate((workload.loads[0], *workload.loads)):
        tag = "warm_up"
        if seed:
            tag = f"r{rps:g}"
        lines = _requests(workload, rps, Random(seed), own)[: None if seed else WARM_UP]
        values = {
            "tag": tag,
            "result": f"bench_{tag}" if seed else tag,
            "seed": seed,
            "block": workload.block_tokens,
            "requests": len(lines),
            "rps": rps,
        }
        script.append(command.format(**values))
        files[f"requests_{tag}.jsonl"] = "\n".join(map(json.dumps, lines)) + "\n"
    return {"run.sh": "".join(script), **files}


def _requests(workload: BenchmarkWorkload, rps: float, chance: Random, own: Iterator[int]) -> list[dict[str, object]]:
    lines = []
    prompts = chance.sample(workload.prompts, len(workload.prompts))
    generations = chance.sample(workload.generations, len(workload.generations))
    for place, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        blocks = math.ceil(prompt / workload.block_tokens)
        shared = min(workload.shared_blocks, blocks - 1)
        ids = [*range(shared), *(next(own) for _ in range(blocks - shared))]
        when = round(1000 * place / rps)
        lines.append({"timestamp": when, "input_length": prompt, "output_length": generation, "hash_ids": ids})
    return lines
