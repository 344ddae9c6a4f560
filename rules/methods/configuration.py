"""Precision: number formats of the plan that the planned GPU has no hardware path for (guide 9.5).

Owns the comparison; the tables are `rules.methods.configuration`. It needs no telemetry: an FP8 artefact on an A100 runs, only not
on FP8 hardware, and nothing on the engine's page says so. A speed-up that was planned and is absent shows as
TpotDivergence; whether precision is its reason cannot be known from metrics.

Which number formats a GPU computes in hardware: by product name, as NVML and the exporters print it.

Owns two tables: PRODUCTS, name to compute capability (NVIDIA's table of CUDA GPUs) or, for AMD, to formats (CDNA 1-4 and RDNA
instruction set manuals); FORMATS, how plans write a format to what it needs. From which capability on NVIDIA computes a
format is a threshold of the rule. A new GPU or spelling is a row here.

Cold starts: how long replicas took, against the lead that the plan gives them (guide 9.2, 9.5).

Owns the comparison of each start of the last hour, and of the P95 of all that are known of the tier, one for each kind of timing
(`rules.replicas.start_quantiles`). The plan's number is the whole, from the request for a replica to Ready. A start that was
timed in
part is a lower bound: above the plan it is proof, below it is none. Restarts are rare, so one late start is told; it was
measured.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.replicas.start_quantiles import FROM_TO, StartQuantiles, quantiles_by_timing
from rules.replicas.starts import Timing
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, Status

_CDNA = frozenset({"fp16", "bf16", "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`capability` is NVIDIA's compute capability; where there is none, `formats` are what it computes."""

    name: str
    capability: float | None = None
    formats: frozenset[str] = frozenset()

    def computes(self, needed: str, since: float) -> bool:
        """Return whether it has a hardware path for a format, which NVIDIA has from capability `since` on."""
        return needed in self.formats if self.capability is None else self.capability >= since


def _nvidia(capability: float, *names: str) -> tuple[tuple[str, Product], ...]:
    return tuple((rf"{name}(?![A-Z0-9])", Product(name=name, capability=capability)) for name in names)


def _amd(formats: frozenset[str], *names: str) -> tuple[tuple[str, Product], ...]:
    return tuple((rf"{name}(?![0-9])", Product(name=name, formats=formats)) for name in names)


PRODUCTS: tuple[tuple[str, Product], ...] = (
    *_nvidia(6.0, "P100"),
    *_nvidia(6.1, "P40", "P4"),
    *_nvidia(7.0, "V100", "V100S", "TITAN V"),
    *_nvidia(7.5, "T4", "T4G", "RTX 2080", "RTX 2080 TI", "RTX 6000", "RTX 8000", "TITAN RTX"),
    *_nvidia(8.0, "A100", "A100X", "A800", "A30", "A30X"),
    *_nvidia(8.6, "A10", "A10G", "A10M", "A16", "A2", "A40", "RTX A4000", "RTX A5000", "RTX A5500", "RTX A6000"),
    *_nvidia(8.6, "RTX 3080", "RTX 3080 TI", "RTX 3090", "RTX 3090 TI"),
    *_nvidia(8.9, "L4", "L20", "L40", "L40S", "L2", "RTX 4000 ADA", "RTX 5000 ADA", "RTX 6000 ADA"),
    *_nvidia(8.9, "RTX 4080", "RTX 4080 SUPER", "RTX 4090", "RTX 4090 D"),
    *_nvidia(9.0, "H100", "H200", "H20", "H800", "GH200"),
    *_nvidia(10.0, "B100", "B200", "GB200"),
    *_nvidia(10.3, "B300", "GB300"),
    *_nvidia(12.0, "RTX PRO 6000 BLACKWELL", "RTX PRO 5000 BLACKWELL", "RTX 5080", "RTX 5090"),
    *_nvidia(12.1, "GB10"),
    *_amd(_CDNA, "MI100", "MI210", "MI250X?"),
    *_amd(_CDNA | {"fp8"}, "MI300[AX]?", "MI308X", "MI325X"),
    *_amd(_CDNA | {"fp8", "fp4"}, "MI350X?", "MI355X?"),
)
"""Pattern of the name without the maker's words, and what it is."""

_MAKERS = re.compile(r"^(NVIDIA|AMD|TESLA|GEFORCE|QUADRO|INSTINCT|GRACE|HOPPER|\s)+\s*")

FORMATS: tuple[tuple[str, str], ...] = (
    (r"awq|gptq|gguf|w[48]a16|int4|int3|bitsandbytes|bnb|nf4|q[2-8]_", ""),
    (r"fp4|nvfp4|mxfp4", "fp4"),
    (r"fp8|f8|e4m3|e5m2", "fp8"),
    (r"int8", "int8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|float32|^auto$", ""),
)
"""How a plan writes it, and what it is computed in. Weight-only formats are unpacked to 16 bits before they are multiplied
(guide 4.2), so they need no path of their own. The first that is found counts."""


def product(name: str) -> Product | None:
    """The GPU by its printed name, None where the table has none; the longest name that begins it counts."""
    plain = _MAKERS.sub("", " ".join(re.split(r"[\s_-]+", name.strip().upper())))
    fitting = [(found.end(), one) for pattern, one in PRODUCTS if (found := re.match(pattern, plain))]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def needed(written: str) -> str | None:
    """What a written format must be computed in: "" for nothing special, None where the spelling is not known."""
    return next((needs for pattern, needs in FORMATS if re.search(pattern, written.lower())), None)


UNPACKED = frozenset({"fp4"})
"""Formats whose weights are often unpacked on purpose, to save memory (MXFP4 models on Hopper): no more than likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One part in a format that the GPU does not compute. `certain` where nothing but speed can have been meant."""

    text: str
    certain: bool


def judge_precision(case: RuleContext) -> RuleResult:
    """Weights and KV cache of the plan against what the planned GPU computes."""
    plan = case.view.plan
    if plan is None or plan.precision is None or not (plan.precision.weights or plan.precision.kv):
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no precision")
    written = {"weights": plan.precision.weights, "KV cache": plan.precision.kv}
    parts = {part: format for part, format in written.items() if format}
    strange = [format for format in parts.values() if needed(format) is None]
    gpu = product(plan.gpu.product)
    if gpu is None:
        text = f"{plan.gpu.product} is not in the table of GPUs: what it computes in hardware is not known"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    found = [one for part, format in parts.items() if (one := _mismatch(case, gpu, part, format)) is not None]
    if strange and not found:
        return case.unknown(Gap.NOT_IN_PLAN, f"{' and '.join(strange)} is no format whose needs are known")
    capability = Reading(value=gpu.capability, low=gpu.capability, high=gpu.capability, n=1.0)
    wanted = max((_since(case, format) for format in parts.values()), default=0.0)
    expected = Reading(value=None, low=wanted, high=None, n=1.0)
    if found:
        certainty = Certainty.CERTAIN if any(one.certain for one in found) else Certainty.LIKELY
        sentence = f"{plan.gpu.product}{_has(gpu)}: {'; '.join(one.text for one in found)}"
        return case.verdict(Status.WARNING, certainty, capability, expected, sentence)
    told = ", ".join(f"{part} in {format}" for part, format in parts.items())
    sentence = f"{plan.gpu.product} computes what is planned: {told}"
    return case.verdict(Status.OK, Certainty.CERTAIN, capability, expected, sentence)


def _mismatch(case: RuleContext, gpu: Product, part: str, format: str) -> Mismatch | None:
    needs = needed(format)
    if not needs or gpu.computes(needs, case.limit(needs)):
        return None
    since = f" (NVIDIA has it from {case.limit(needs):g} on)" if gpu.capability is not None else ""
    text = f"no hardware path for {part} in {format}{since}"
    if part == "KV cache":
        return Mismatch(text=f"{text}: memory is saved, time is not", certain=False)
    return Mismatch(text=f"{text}: they run converted, without the planned speed-up", certain=needs not in UNPACKED)


def _since(case: RuleContext, format: str) -> float:
    needs = needed(format)
    return case.limit(needs) if needs else 0.0


def _has(gpu: Product) -> str:
    return "" if gpu.capability is None else f" has compute capability {gpu.capability:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartQuantile:
    """A start of the hold, or the mean of several of one replica within one minute: its seconds at least."""

    replica: str | None
    seconds: float
    count: float


def judge_cold_start(case: RuleContext) -> RuleResult:
    """The slowest start of the hold above the planned lead."""
    planned = case.view.plan.cold_start_seconds if case.view.plan else None
    if planned is None:
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no cold_start_seconds{_measured(case)}")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    allowed = planned * case.limit("factor")
    recent = {timing: found for timing in _RECENT if (found := _starts(case, timing))}
    for timing, starts in recent.items():
        if any(one.seconds > allowed for one in starts):
            return _verdict(case, starts, timing, planned)
    known = {one.timing: one for one in _known(case)}
    late = [one for one in known.values() if one.p95_seconds > allowed]
    if late:
        return _of_all_known(case, max(late, key=lambda one: (one.proven_seconds > allowed, one.p95_seconds)), planned)
    if recent and (Timing.POD in recent or Timing.POD not in known):
        timing, starts = next(iter(recent.items()))
        return _verdict(case, starts, timing, planned)
    if known:
        return _of_all_known(case, next(iter(known.values())), planned)
    told = _as_told(case)
    if told:
        return _by_engine(case, told, planned)
    restarts = math.fsum(s.window.counters.get("restarts", 0.0) for s in case.slices)
    if restarts:
        text = f"{_times(restarts)}, and the page does not tell when the engine was ready"
        return case.unknown(Gap.NOT_EXPOSED, text)
    return case.unknown(Gap.NO_TRAFFIC, "no start was seen")


_RECENT = (Timing.POD, Timing.UNREADY, Timing.PROCESS)
"""Starts of the hold are judged one by one where they have a value or a lower bound that is not the engine's word."""


def _known(case: RuleContext) -> tuple[StartQuantiles, ...]:
    return tuple(one for one in quantiles_by_timing(case.starts) if one.timing is not Timing.ENGINE)


def _of_all_known(case: RuleContext, known: StartQuantiles, planned: float) -> RuleResult:
    """The P95 of all starts of a kind that are known of the tier: what is wrong with a lead does not end with the hour of one
    start."""
    allowed, slow, proven = planned * case.limit("factor"), known.p95_seconds, known.proven_seconds
    observed = Reading(value=slow, low=proven, high=None, n=float(known.count))
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    said = f"{_known_word(known)}; {_planned_words(planned, known.timing, fine=slow <= allowed)}"
    if slow <= allowed:
        return case.verdict(Status.OK, _of_fine(known.timing), observed, expected, said)
    certainty = Certainty.CERTAIN if proven > allowed else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, observed, expected, said)


def _of_fine(timing: Timing) -> Certainty:
    """How sure a start within the plan is: a part of it that is shorter proves nothing."""
    return Certainty.CERTAIN if timing is Timing.POD else Certainty.LIKELY


def _planned_words(planned: float, timing: Timing, *, fine: bool) -> str:
    words = f"{number(planned, 'seconds')} are planned"
    if timing is Timing.POD:
        return words
    return f"{words} for the whole, which was not timed" if fine else f"{words} for the whole"


def _known_word(known: StartQuantiles) -> str:
    took, how = number(known.p95_seconds, "seconds"), f"timed {FROM_TO[known.timing]}"
    if known.count == 1:
        return f"The one start that is known, {how}, took {took}"
    if not known.has_p95:
        return f"The slowest of {known.count} starts {how} took {took}"
    return f"Of {known.count} starts {how} 95% took at most {took}"


def _starts(case: RuleContext, timing: Timing) -> tuple[StartQuantile, ...]:
    """The starts of the hold with this timing. Windows count those from process start to ready, of every replica."""
    if timing is not Timing.PROCESS:
        since = case.now - case.rule.window_seconds
        return tuple(
            StartQuantile(replica=one.replica, seconds=one.seconds.low or 0.0, count=1.0)
            for one in case.starts
            if one.source is timing and one.t > since
        )
    found = [(s.replica, s.window.counters) for s in case.slices if s.window.counters.get("cold_starts", 0.0) > 0]
    return tuple(
        StartQuantile(
            replica=replica,
            seconds=counters.get("cold_start_seconds", 0.0) / counters["cold_starts"],
            count=counters["cold_starts"],
        )
        for replica, counters in found
    )


def _as_told(case: RuleContext) -> dict[str | None, float]:
    """What engines say of their own start, by replica, as it stands at the end."""
    gauges = [(s.replica, s.window.gauges.get("engine_startup_seconds")) for s in case.slices]
    return {replica: gauge.maximum for replica, gauge in gauges if gauge is not None and gauge.maximum > 0}


def _verdict(case: RuleContext, starts: tuple[StartQuantile, ...], timing: Timing, planned: float) -> RuleResult:
    allowed = planned * case.limit("factor")
    count = math.fsum(one.count for one in starts)
    mean = math.fsum(one.seconds * one.count for one in starts) / count
    slowest = max(starts, key=lambda one: one.seconds)
    late = math.fsum(one.count for one in starts if one.seconds > allowed)
    observed = Reading(value=slowest.seconds, low=slowest.seconds, high=None, n=count)
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    took = f"{number(slowest.seconds, 'seconds')} {FROM_TO[timing]}"
    if not late:
        most = f"at most {took}" if count > 1 else took
        sentence = f"{_starts_word(count)} took {most}; {_planned_words(planned, timing, fine=True)}"
        return case.verdict(Status.OK, _of_fine(timing), observed, expected, sentence)
    sentence = (
        f"{late:.0f} of {_starts_word(count)} took longer than the planned {number(planned, 'seconds')}: "
        f"{slowest.replica or case.view.tier} {took}"
    )
    sentence += f" (mean {number(mean, 'seconds')})" if count > 1 else ""
    return case.verdict(Status.WARNING, Certainty.CERTAIN, observed, expected, sentence)


def _by_engine(case: RuleContext, told: dict[str | None, float], planned: float) -> RuleResult:
    """The engine's own clock starts after container and interpreter: above the plan is proof, below it is none."""
    replica, seconds = max(told.items(), key=lambda item: item[1])
    late = seconds > planned * case.limit("factor")
    observed = Reading(value=None, low=seconds, high=None, n=float(len(told)))
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    sentence = (
        f"{replica or case.view.tier} says that its own start took {number(seconds, 'seconds')}; what came before it is "
        f"not counted, and {number(planned, 'seconds')} are planned for all of it"
    )
    status, certainty = (Status.WARNING, Certainty.CERTAIN) if late else (Status.OK, Certainty.LIKELY)
    return case.verdict(status, certainty, observed, expected, sentence)


def _measured(case: RuleContext) -> str:
    """What is known where nothing is planned: the whole where it was timed, else the part that took longest."""
    known = _known(case)
    if known:
        one = next((each for each in known if each.timing is Timing.POD), max(known, key=lambda each: each.p95_seconds))
        return f"; {number(one.p95_seconds, 'seconds')} were measured {FROM_TO[one.timing]}"
    seconds = [one.seconds for one in _starts(case, Timing.PROCESS)]
    return f"; {number(max(seconds), 'seconds')} were measured {FROM_TO[Timing.PROCESS]}" if seconds else ""


def _starts_word(count: float) -> str:
    return f"{count:.0f} start" if count == 1 else f"{count:.0f} starts"


def _times(restarts: float) -> str:
    return "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
