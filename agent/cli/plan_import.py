"""Command `sizewatch plan import`: a tier's benchmark curve from result files, printed or written into a plan."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import click
from pydantic import ValidationError

from agent.benchmarks.curve_remarks import CHECKS, differences, remarks_of
from agent.benchmarks.curves import SETUP, ImportedCurve, ImportRemark, curve_of
from agent.benchmarks.formats import AUTO, NAMES, read_all_results
from agent.benchmarks.plan_edit import (
    PlanFile,
    chosen_tier,
    open_plan,
    replace_curve,
    write,
)
from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.run_model import CONTRADICTION, LOCAL_CLOCK
from agent.cli.arguments import FINDING, FINE, PATH, tier_option
from agent.config.load import LoadedConfig, load, parse_config, select_tier
from agent.errors import ConfigError
from exporters.documents.plan_files import WRITTEN, YamlIndentation, curve_lines
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import PlanWarning, check_tier
from rules.plan.curve import operating_point
from rules.plan.schema import Provenance, TierPlan
from rules.plan.validation import problems_of
from rules.telemetry.wording import format_count

MEASURED = (*SETUP, "measured_on")
"""Keys of `curve.measured` that `--measured` takes."""

NAMED = 3
"""Highest number of files that a remark names one by one."""

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?%?(?![\w.]*/)(?!\w)")

ANY_REPLICA = 'instance=~".+"'

NO_TIER = "measured"
"""Tier of the series of `--telemetry`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Plan and tier that receive the curve."""

    plan: PlanFile
    tier: str


def parameters() -> tuple[click.Parameter, ...]:
    return (
        click.Argument(
            ["files"],
            nargs=-1,
            required=True,
            type=PATH,
            metavar="FILE...",
            help="result files; all together are one curve",
        ),
        click.Option(
            ["--from", "tool"],
            type=click.Choice((AUTO, *NAMES)),
            default=AUTO,
            help="which tool wrote them; told by what they hold unless given",
        ),
        click.Option(
            ["--into"], type=PATH, metavar="PLAN", help="write the curve into this plan; without it, it is printed"
        ),
        tier_option("the tier that was measured; default the plan's only one"),
        click.Option(
            ["-c", "--config"],
            type=click.Path(),
            metavar="FILE",
            help="a configuration whose store, or else history (minutes, kept 2 days), saw the engine meanwhile",
        ),
        click.Option(
            ["--telemetry"],
            metavar="URL",
            help="the address of a Prometheus server that scraped the engine meanwhile, in place of -c",
        ),
        click.Option(
            ["--telemetry-selector"],
            metavar="SELECTOR",
            help='labels of the replica that was measured, such as {instance="10.0.0.5:8000"}',
        ),
        click.Option(
            ["--measured"],
            multiple=True,
            metavar="KEY=VALUE",
            help=f"what was measured, where no file tells it: {', '.join(MEASURED)}; may be given several times",
        ),
        click.Option(
            ["--accept"],
            multiple=True,
            type=click.Choice(CHECKS),
            help="what the files tell otherwise than the tier, and is the same all the same; may be given several times",
        ),
    )


def run(options: SimpleNamespace) -> int:
    """Import the curve. Unusable input, or another model or machine, raises BenchmarkError or ConfigError (exit 2).

    Nothing is written then. A grave mistake in the written plan is exit 1.
    """
    _check(options)
    target, code = None, FINE
    if options.into is not None:
        plan = open_plan(options.into)
        target = _Target(plan=plan, tier=chosen_tier(plan, options.tier))
    imported = _imported(options, target)
    if target is None:
        _print_curve(options, imported)
    else:
        code = _put(options, imported, target)
    notes = (*imported.remarks, *(note for load in imported.loads for note in load.notes))
    contradicts = any(CONTRADICTION in note.text for note in notes)
    return max(code, FINDING if contradicts else FINE)


def _check(options: SimpleNamespace) -> None:
    if options.tier is not None and options.into is None and options.config is None:
        raise ConfigError(("--tier says nothing without --into or -c",))
    if options.telemetry_selector is not None and options.telemetry is None:
        raise ConfigError(("--telemetry-selector says nothing without --telemetry",))
    if options.telemetry is not None and options.config is not None:
        raise ConfigError(("--telemetry and -c both name a source of telemetry: give one",))


def _imported(options: SimpleNamespace, target: _Target | None) -> ImportedCurve:
    measured, others = read_all_results(options.files, options.tool)
    kind, source = None, ""
    if _is_observed(options):
        measured, kind, source = _observed(measured, options, target)
    else:
        # The clock of a file matters only for telemetry.
        measured = [replace(one, remarks=tuple(t for t in one.remarks if t != LOCAL_CLOCK)) for one in measured]
    folder = (options.into.resolve().parent if options.into else Path.cwd()).resolve()
    names = _names([one.source for one in measured], folder)
    imported = curve_of(measured, gpu_utilization_kind=kind, named=names.__getitem__)
    left_out = tuple(ImportRemark(source=str(one.path), text=f"left out: {_with_subject(one.text)}") for one in others)
    seen = [ImportRemark(source="", text=f"telemetry is from {source}")] if source else []
    return _with_measured(replace(imported, remarks=(*imported.remarks, *left_out, *seen)), options.measured)


def _with_subject(text: str) -> str:
    """Return a sentence about a file or load: its place, or a word for the whole."""
    return (
        f"it {text}"
        if text.startswith(("is ", "has ", "holds ", "tells ", "does ", "ramps ", "contradicts "))
        else text
    )


def _with_measured(imported: ImportedCurve, given: Sequence[str]) -> ImportedCurve:
    """Return the curve with the user's words on what was measured, which win. Raise ConfigError for others."""
    if not given:
        return imported
    known = imported.curve.measured
    found: dict[str, Any] = known.model_dump(exclude_none=True) if known else {}
    for pair in given:
        key, _, value = pair.partition("=")
        if key not in MEASURED or not value:
            raise ConfigError((f"--measured {pair}: must be KEY=VALUE with a key of {', '.join(MEASURED)}",))
        found[key] = int(value) if value.isdecimal() and key not in ("engine_version", "measured_on") else value
    try:
        measured = Provenance.model_validate(found)
    except ValidationError as error:
        raise ConfigError(tuple(f"--measured {problem}" for problem in problems_of(error, Provenance))) from None
    return replace(imported, curve=imported.curve.model_copy(update={"measured": measured}))


def _is_observed(options: SimpleNamespace) -> bool:
    return options.telemetry is not None or options.config is not None


def _observed(
    measured: Sequence[BenchmarkMeasurement], options: SimpleNamespace, target: _Target | None
) -> tuple[list[BenchmarkMeasurement], str | None, str]:
    """Return the runs with telemetry, the kind of GPU utilisation, and the name of the source."""
    # On demand: it imports the HTTP client, which no other part of `sizewatch plan` needs.
    from agent.benchmarks.telemetry import observe, open_source

    if options.telemetry is None:
        loaded = load(Path(options.config))
        tier = select_tier(loaded, target.tier if target else options.tier)
    else:
        loaded, tier = _of_address(options.telemetry, options.telemetry_selector), NO_TIER
    source = open_source(loaded, tier)
    return *observe(measured, source), source.name


def _of_address(url: str, selector: str | None) -> LoadedConfig:
    """Return a configuration of the engines' own series in a store. Raise ConfigError."""
    if "@" in urlsplit(url).netloc:
        raise ConfigError(("--telemetry: takes no login: give -c FILE, whose store: has basic_auth",))
    series = {"from": "engines", "selector": (selector or ANY_REPLICA).strip().removeprefix("{").removesuffix("}")}
    try:
        config = parse_config({"role": "fleet", "store": {"url": url}, "tiers": {NO_TIER: series}})
    except ConfigError as error:
        raise ConfigError(tuple(f"--telemetry: {problem}" for problem in error.problems)) from None
    return LoadedConfig(path=Path("--telemetry"), config=config, plan=None, warnings=())


def _names(sources: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the file names for the plan: relative paths if near its folder, else the names alone."""
    short = {source: _near(Path(source), folder) for source in dict.fromkeys(sources)}
    names = list(short.values())
    called = {source: name if names.count(name) == 1 else Path(source).as_posix() for source, name in short.items()}
    # File name bytes need not be text; a plan's are.
    return {source: name.encode("utf-8", "replace").decode() for source, name in called.items()}


def _near(source: Path, folder: Path) -> str:
    path = source.resolve()
    for root, before in ((folder, ""), (folder.parent, "../")):
        if root != root.parent and path.is_relative_to(root):
            return before + path.relative_to(root).as_posix()
    return path.name


def _print_curve(options: SimpleNamespace, imported: ImportedCurve) -> None:
    remarks = remarks_of(imported, observed=_is_observed(options))
    head, notes = _comments(imported)
    print("\n".join(curve_lines(imported.curve, YamlIndentation(), head=head, notes=notes)))
    _tell(imported, remarks)


def _of_the_tier(
    options: SimpleNamespace, imported: ImportedCurve, tier: TierPlan, name: str
) -> tuple[ImportRemark, ...]:
    """Return remarks on accepted differences from the tier. Raise ConfigError for the others."""
    found = differences(imported, tier)
    refused = [
        f"{where}: measured {measured}, tiers.{name}.{planned}: nothing was written. Correct the plan, name the tier that was "
        f"measured, or, where they are the same, say --accept {what}"
        for what, several in found.items()
        if what not in options.accept
        for where, measured, planned in several
    ]
    if refused:
        raise ConfigError(tuple(refused))
    return tuple(
        ImportRemark(
            source=where, text=f"measured {measured}, tiers.{name}.{planned}; taken to be the same (--accept {what})"
        )
        for what, several in found.items()
        for where, measured, planned in several
    )


def _put(options: SimpleNamespace, imported: ImportedCurve, target: _Target) -> int:
    head, notes = _comments(imported)
    edited = replace_curve(target.plan, target.tier, imported.curve, head=head, notes=notes)
    tier = edited.plan.tiers[target.tier]
    accepted = _of_the_tier(options, imported, tier, target.tier)
    remarks = (*accepted, *remarks_of(imported, tier, observed=_is_observed(options)))
    if tier.operating_point is not None and tier.operating_point.source == "production":
        text = "operating_point is what production measured before this benchmark, and outranks it: delete it"
        remarks = (*remarks, ImportRemark(source=str(options.into), text=text))
    changed = write(target.plan, edited.text)
    found = check_tier(target.tier, tier, CATALOGUE)
    code = FINDING if any(finding.severity == "mistake" for finding in found) else FINE
    _print_outcome(options, imported, tier, found, changed, target.tier)
    others = sum(finding.severity == "info" for finding in found)
    if others:
        more = f"sizewatch plan check {shlex.quote(str(options.into))} has {format_count(others, 'more remark')}"
        remarks = (*remarks, ImportRemark(source="", text=more))
    _tell(imported, remarks)
    return code


def _print_outcome(
    options: SimpleNamespace,
    imported: ImportedCurve,
    tier: TierPlan,
    found: Sequence[PlanWarning],
    changed: bool,
    name: str,
) -> None:
    # `plan check` prints the rest, which is not repeated here.
    for finding in (one for one in found if one.severity != "info"):
        print(f"{finding.severity}: {finding.path}: {finding.text}")
    points, files = len(imported.curve.points), len(imported.curve.source)
    counted = f"{format_count(points, 'point')} from {format_count(files, 'file')}"
    point, capacity = operating_point(tier), ""
    if point:
        bound = "" if point.knee_reached else " at least"
        capacity = f"; within the SLO{bound} {point.usable_rps:.4g} rps"
        capacity += f" at C_max {point.c_max:.4g}" if point.c_max else ""
    state = "written" if changed else "already as it was"
    print(f"{options.into}: curve of {name}: {counted}, {state}{capacity}")


def _comments(imported: ImportedCurve) -> tuple[list[str], list[list[str]]]:
    """Return the comments on the curve and on each point. Remarks on every load appear once."""
    texts = [
        list(dict.fromkeys(note.text for note in load.notes if note.text != LOCAL_CLOCK)) for load in imported.loads
    ]
    common = [text for text in texts[0] if len(texts) > 1 and all(text in other for other in texts[1:])]
    notes = [_about_point(load.notes, (LOCAL_CLOCK, *common)) for load in imported.loads]
    return [WRITTEN, *(f"Every point: {text}." for text in common)], notes


def _about_point(notes: Sequence[ImportRemark], common: Sequence[str]) -> list[str]:
    by_file: dict[str, list[str]] = {}
    for note in notes:
        if note.text not in common:
            by_file.setdefault(Path(note.source).name, []).append(note.text)
    return [f"{source}: {'; '.join(dict.fromkeys(texts))}" for source, texts in by_file.items()]


def _tell(imported: ImportedCurve, remarks: Sequence[ImportRemark]) -> None:
    """Print each remark on stderr. Those that differ in numbers appear once."""
    measured = {run.location for load in imported.loads for run in load.runs}
    said: dict[str, list[ImportRemark]] = {}
    # Contradictions come before weaknesses.
    for remark in sorted(remarks, key=lambda one: CONTRADICTION not in one.text):
        said.setdefault(_NUMBER.sub("0", remark.text), []).append(remark)
    for several in said.values():
        named = _named([one.source for one in several if one.source], measured)
        print(f"sizewatch plan: {named}{_with_ranges([one.text for one in several])}", file=sys.stderr)


def _named(sources: Sequence[str], measured: set[str]) -> str:
    """Return the files in words: all loads, the first of many, or each."""
    names = list(dict.fromkeys(sources))
    if len(names) > 1 and set(names) == measured:
        return f"{'both' if len(names) == 2 else f'all {len(names)}'} loads: "
    if len(names) > NAMED:
        return f"{names[0]} and {len(names) - 1} more: "
    return f"{', '.join(names)}: " if names else ""


def _with_ranges(texts: Sequence[str]) -> str:
    """Return one text for several that differ in numbers only: "P99 of 16 to 40 requests"."""
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = []
    for column in columns:
        least, most = (pick(column, key=lambda one: float(one.rstrip("%").replace(",", ""))) for pick in (min, max))
        ranges.append(least if least == most else f"{least} to {most}")
    found = iter(ranges)
    return _NUMBER.sub(lambda _: next(found), texts[0])
