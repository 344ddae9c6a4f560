"""Command `sizewatch plan import`: a tier's benchmark curve from result files, printed or written into a plan."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from pydantic import ValidationError

from agent.benchmarks.aiconfigurator import select_configuration
from agent.benchmarks.curves import SETUP, ImportedCurve, ImportRemark, curve_of, differences, remarks_of
from agent.benchmarks.formats import read_all_results
from agent.benchmarks.plan_edit import PlanFile, chosen_tier, open_plan, replace_curve, write
from agent.benchmarks.run_model import CONTRADICTION
from agent.cli.arguments import PATH, Exit, Parameters, argument, option, tier_option
from agent.config.load import load, select_tier
from agent.errors import ConfigError
from exporters.documents.plan_files import WRITTEN, curve_lines
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.curve import operating_point
from rules.plan.schema import Plan, Provenance
from rules.plan.validation import problems_of
from rules.telemetry.wording import format_count

MEASURED = (*SETUP, "measured_on")
"""Keys of `curve.measured` that `--measured` takes."""

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?%?(?![\w.]*/)(?!\w)")


def parameters() -> Parameters:
    seen = "a configuration whose store, or else history (minutes, kept 2 days), saw the engine meanwhile"
    chosen = "which of a planner's file, by parts of its name: 'tp4pp1, kvcache fp8'"
    measured = f"what was measured, where no file tells it: {', '.join(MEASURED)}; may be given several times"
    return (
        argument("files", "FILE...", "result files; all together are one curve", nargs=-1, required=True),
        option("--into", "PLAN", "write the curve into this plan; without it, it is printed", PATH),
        tier_option("the tier that was measured; default the plan's only one"),
        option("-c --config", "FILE", seen, click.Path()),
        option("--configuration", "PARTS", chosen, default=""),
        option("--measured", "KEY=VALUE", measured, multiple=True),
    )


def run(options: SimpleNamespace) -> int:
    """Import the curve. Unusable input, or another model or machine, raises BenchmarkError or ConfigError (exit 2).

    Nothing is written then. A grave mistake in the written plan is exit 1.
    """
    if options.tier is not None and options.into is None and options.config is None:
        raise ConfigError(("--tier says nothing without --into or -c",))
    plan = None if options.into is None else open_plan(options.into)
    tier = options.tier if plan is None else chosen_tier(plan, options.tier)
    imported = _imported(options, tier)
    if plan is None:
        head, notes = _comments(imported)
        print("\n".join(curve_lines(imported.curve, 2, head=head, notes=notes)))
        code = _tell(remarks_of(imported, observed=options.config is not None))
    else:
        code = _put(options, imported, plan, tier)
    return code


def _imported(options: SimpleNamespace, tier: str | None) -> ImportedCurve:
    runs, errors = read_all_results(options.files)
    runs = select_configuration(runs, options.configuration)
    remarks = [ImportRemark(source=str(error.path), text=f"{error.text}; left out") for error in errors]
    kind = None
    if options.config is not None:
        # On demand: it imports the HTTP client, which no other part of `sizewatch plan` needs.
        from agent.benchmarks.telemetry import observe, open_source

        loaded = load(Path(options.config))
        source = open_source(loaded, select_tier(loaded, tier))
        kind = observe(runs, source)
        remarks.append(ImportRemark(source="", text=f"telemetry is from {source.name}"))
        if any(run.local_times and run.ended_at for run in runs):
            remarks.append(ImportRemark(source="", text="dates of files have no time zone and were read as UTC"))
    folder = options.into.resolve().parent if options.into else Path.cwd()
    # File name bytes need not be text; a plan's are.
    for run in runs:
        run.source = os.path.relpath(Path(run.source).resolve(), folder).encode("utf-8", "replace").decode()
    imported = curve_of(runs, gpu_utilization_kind=kind)
    return _with_measured(replace(imported, remarks=(*imported.remarks, *remarks)), options.measured)


def _with_measured(imported: ImportedCurve, given: Sequence[str]) -> ImportedCurve:
    """Return the curve with the user's words on what was measured, which win. Raise ConfigError for others."""
    if not given:
        return imported
    known = imported.curve.measured
    mapping: dict[str, Any] = known.model_dump(exclude_none=True) if known else {}
    for pair in given:
        key, _, value = pair.partition("=")
        if key not in MEASURED or not value:
            raise ConfigError((f"--measured {pair}: must be KEY=VALUE with a key of {', '.join(MEASURED)}",))
        mapping[key] = int(value) if value.isdecimal() and key not in ("engine_version", "measured_on") else value
    try:
        measured = Provenance.model_validate(mapping)
    except ValidationError as error:
        raise ConfigError(tuple(f"--measured {problem}" for problem in problems_of(error, Provenance))) from None
    return replace(imported, curve=imported.curve.model_copy(update={"measured": measured}))


def _put(options: SimpleNamespace, imported: ImportedCurve, plan: PlanFile, name: str) -> int:
    """Write the curve into the plan's tier. Raise ConfigError where another model or machine was measured."""
    head, notes = _comments(imported)
    text, edited = replace_curve(plan, name, imported.curve, head=head, notes=notes)
    tier = edited.tiers[name]
    kind = imported.curve.origin or "measured"
    refused = tuple(
        f"{where}: {kind} {imported_value}, tiers.{name}.{planned}: nothing was written. Correct the plan, or name the tier "
        f"that was {kind}"
        for where, imported_value, planned in differences(imported, tier)
    )
    if refused:
        raise ConfigError(refused)
    remarks = remarks_of(imported, tier, observed=options.config is not None)
    if tier.operating_point is not None and tier.operating_point.source == "production":
        outranked = "operating_point is what production measured before this benchmark, and outranks it: delete it"
        remarks.append(ImportRemark(source=str(options.into), text=outranked))
    state = "written" if write(plan, text) else "already as it was"
    findings = check_plan(Plan(schema=1, tiers={name: tier}), CATALOGUE)
    for finding in findings:
        # `plan check` prints the rest, which is not repeated here.
        if finding.severity != "info":
            print(f"{finding.severity}: {finding.path}: {finding.text}")
    points, files = len(imported.curve.points), len(imported.curve.source)
    counted = f"{format_count(points, 'point')} from {format_count(files, 'file')}"
    point, capacity = operating_point(tier), ""
    if point:
        bound = "" if point.knee_reached else " at least"
        capacity = f"; within the SLO{bound} {point.usable_rps:.4g} rps"
        capacity += f" at C_max {point.c_max:.4g}" if point.c_max else ""
    print(f"{options.into}: curve of {name}: {counted}, {state}{capacity}")
    code = _tell(remarks)
    return Exit.FINDING if any(finding.severity == "mistake" for finding in findings) else code


def _comments(imported: ImportedCurve) -> tuple[list[str], list[list[str]]]:
    """Return the comments on the curve and on each point. Remarks on every load appear once."""
    texts = [list(dict.fromkeys(note.text for note in load.notes)) for load in imported.loads]
    common = [text for text in texts[0] if len(texts) > 1 and all(text in rows for rows in texts[1:])]
    notes = [_about_point(load.notes, common) for load in imported.loads]
    return [WRITTEN, *(f"Every point: {text}." for text in common)], notes


def _about_point(notes: Sequence[ImportRemark], common: Sequence[str]) -> list[str]:
    by_file: dict[str, list[str]] = {}
    for note in notes:
        if note.text not in common:
            by_file.setdefault(Path(note.source).name, []).append(note.text)
    return [f"{source}: {'; '.join(dict.fromkeys(texts))}" for source, texts in by_file.items()]


def _tell(remarks: Sequence[ImportRemark]) -> int:
    """Print the remarks on stderr, contradictions first. Those that differ in numbers appear once. Return the exit code."""
    alike: dict[str, list[ImportRemark]] = {}
    for remark in sorted(remarks, key=lambda remark: CONTRADICTION not in remark.text):
        alike.setdefault(_NUMBER.sub("0", remark.text), []).append(remark)
    for first, *rest in alike.values():
        place = f"{first.source}: " if first.source else ""
        more = f"; {format_count(len(rest), 'more remark')} of this kind" if rest else ""
        print(f"sizewatch plan: {place}{first.text}{more}", file=sys.stderr)
    return Exit.FINDING if any(CONTRADICTION in remark.text for remark in remarks) else Exit.FINE
