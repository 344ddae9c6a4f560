"""What a suspect is examined with, and what it comes to: the types of `rules.causes.checks`.

Owns these records and the sum of slices that suspects read. It examines nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rules.methods.availability import judge_cascade
from rules.methods.bands import judge_band
from rules.methods.burn_rate import judge_burn
from rules.methods.errors import judge_availability, judge_refused
from rules.methods.events import judge_event_ratio, judge_excess
from rules.methods.load import judge_beyond
from rules.methods.means import judge_mean
from rules.methods.representative import judge_representative
from rules.methods.shape import judge_shape
from rules.methods.tails import judge_tail
from rules.methods.trend import judge_trend
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import Workload
from rules.telemetry import outcomes, windows
from rules.telemetry.windows import Window
from rules.verdicts.rule import Method, Rule

USERS = frozenset({judge_burn, judge_shape})
"""A latency above what users were promised, whatever the load."""

LATENCY = frozenset({judge_tail}) | USERS
SLOW = LATENCY | frozenset({judge_representative})
"""A latency above the benchmark's, in the tail or as a whole."""

PRESSURE = frozenset({judge_cascade, judge_event_ratio, judge_excess, judge_beyond, judge_trend})
EITHER = SLOW | PRESSURE
FAILING, TURNED_AWAY = frozenset({judge_availability}), frozenset({judge_refused})
UNSERVED = FAILING | TURNED_AWAY
HITS = frozenset({judge_mean, judge_band})
OF_ONE_FAMILY = LATENCY | HITS
"""Ways of judging whose rules are about one family; a suspect says which of them it can explain."""

EVERY_LATENCY = ("ttft_seconds", "tpot_seconds", "itl_seconds")
PREFIX_HITS = ("prefix_hit_ratio",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseResult:
    """What one suspect came to: `supported` True, False (excluded), or None (cannot be known).

    `proven` says that counters or bucket edges prove the evidence; such causes are named before mere suspicions. What is
    not supported has no text where another suspect says the same.
    """

    supported: bool | None
    text: str = ""
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseContext:
    """What suspects are examined with: the rule that fired, the tier, and the slices with their sum."""

    rule: Rule
    view: TierContext
    slices: tuple[BinnedWindow, ...]
    total: Window

    @classmethod
    def from_windows(cls, rule: Rule, view: TierContext, slices: tuple[BinnedWindow, ...]) -> CauseContext:
        """The scene over at least one slice; only what suspects read is added up."""
        return cls(rule=rule, view=view, slices=slices, total=windows.sum_families((s.window for s in slices), READ))

    @property
    def workload(self) -> Workload | None:
        return self.view.plan.workload if self.view.plan else None


READ = frozenset(
    {
        *("requests_finished", "in_system_change", "preemptions", "prefix_hit_tokens", "prefix_queried_tokens"),
        *("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens", "adapters_running"),
        *("requests_waiting", "requests_waiting_capacity", "requests_waiting_deferred"),
        *("prompt_tokens_per_request", "generation_tokens_per_request"),
        *("ttft_seconds", "queue_seconds", "prefill_seconds", "gpu_throttled_covered_seconds"),
        *("gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds"),
        *("kv_transfer_failures", "restarts", "gpu_fault_events", "gpu_ecc_uncorrectable_errors"),
        *outcomes.READ,
    }
)
"""The families that suspects read of the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseCheck:
    """One row: its name in verdicts, the ways of judging it can explain, the families it can spoil, its examination."""

    cause: str
    methods: frozenset[Method]
    families: tuple[str, ...] = EVERY_LATENCY
    examine: Callable[[CauseContext], CauseResult]

    def explains(self, rule: Rule) -> bool:
        return rule.method in self.methods and (rule.method not in OF_ONE_FAMILY or rule.family in self.families)
