"""A report from the history that the daemon keeps: asked, written, put into its place.

Owns the way from a configuration to files. What is asked of the history is `agent.reporting.queries`'s, which files there are
`agent.reporting.generate`'s. It loads the page's and the forecast's libraries, and so it is loaded only when a report is written.

What pre-warming was worth to each tier, for the report: simulated on the history's own weeks.

Owns the way from what the forecast found to the report's record. The numbers' libraries are loaded where a forecast is made, and
not where forecasting is switched off.

The report's files by name: which there are, and which exporter writes each.

Owns the list. Where they are put, served or sent is decided by whoever asks.
"""

from __future__ import annotations

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.errors import ConfigError, SizewatchError
from agent.forecasting.messages import ForecastResponse
from agent.history.store import HistoryStore
from agent.reporting import storage
from agent.reporting.jobs import GenerateJob
from agent.reporting.queries import ReportQuery, query_report_inputs
from agent.version import VERSION
from exporters.report.build import report, report_json
from exporters.report.html import report_html
from exporters.report.inputs import Prewarming, ReportInputs
from exporters.report.markdown import report_markdown
from exporters.report.next_plan import next_plan_text
from exporters.report.picture import png
from exporters.report.records import Report


def prewarming(loaded: LoadedConfig, now: float) -> dict[str, Prewarming]:
    """By tier, as of `now` (unix seconds); a tier of which nothing could be found is left out, and the report says why."""
    if not loaded.config.forecast.enabled:
        return {}
    from agent.forecasting.prewarm_result import PlanOverrides, prewarm_from_history

    nothing_said = PlanOverrides(usable_rps=None, start_seconds=None)
    found: dict[str, Prewarming] = {}
    for tier in build_tier_contexts(loaded):
        try:
            told = prewarming_from_response(prewarm_from_history(loaded, tier, nothing_said, now))
        except SizewatchError:
            # What is wrong with the history is the report's own first question; it says so there.
            continue
        if told is not None:
            found[tier] = told
    return found


def prewarming_from_response(answer: ForecastResponse) -> Prewarming | None:
    """None where neither a forecast nor a comparison could be made."""
    worth, told = answer.prewarm.worth, answer.forecast
    if worth is None and told is None:
        return None
    projection = told.projection if told is not None else None
    counted = projection is not None and projection.forecasts > 0
    return Prewarming(
        worth=worth,
        method=projection.method if projection is not None else "",
        naive=projection.naive if projection is not None else "",
        covered_ratio=projection.covered / projection.forecasts if projection is not None and counted else None,
        error_ratio=projection.error_ratio if projection is not None else None,
        forecasts=projection.forecasts if projection is not None else 0,
    )


def files_of(past: ReportInputs) -> tuple[dict[str, str], Report]:
    """Every file's text, and the report itself. Without a plan there is no plan.next.yaml."""
    found, proposed = report(past)
    texts = {
        "report.html": report_html(found),
        "report.md": report_markdown(found),
        "report.json": report_json(found),
    }
    if proposed is not None:
        texts["plan.next.yaml"] = next_plan_text(past, proposed)
    return texts, found


def picture_of(found: Report) -> bytes:
    """report.png: the key charts, for a chat or a mail that shows no page."""
    return png(found)


HOUR_SECONDS, LONGEST_SECONDS = 3600.0, 91 * 86_400.0
"""No older hour is kept (`agent.history.schema`); a report of a longer time is one of this."""


class ReportError(SizewatchError):
    """The report cannot be written where it should stand."""


def load_report_inputs(loaded: LoadedConfig, seconds: float, now: float) -> ReportInputs:
    """What a report of the last `seconds` before `now` is made from. Raises BadConfig, HistoryTrouble."""
    if loaded.config.history_path is None:
        raise ConfigError(
            (f"{loaded.path}: data_dir: there is no history to report on; role node keeps none unless it is given",)
        )
    # Full hours: the history keeps no smaller part of a tier's load bins for weeks.
    until = now // HOUR_SECONDS * HOUR_SECONDS
    span = min(LONGEST_SECONDS, max(HOUR_SECONDS, seconds // HOUR_SECONDS * HOUR_SECONDS))
    with HistoryStore.open_reader(loaded.config.history_path) as store:
        asked = ReportQuery(
            views=build_tier_contexts(loaded),
            versions=plan_versions(loaded),
            plan=loaded.plan,
            since=until - span,
            until=until,
            zone=loaded.config.forecast.zone,
            version=VERSION,
            forecasting=loaded.config.forecast.enabled,
            prewarming=prewarming(loaded, now),
        )
        return query_report_inputs(store, asked)


def generate_report(job: GenerateJob) -> str:
    """Writes the report, throws away old ones, and gives the headline. Raises SizewatchError."""
    keys = job.loaded.config.report
    texts, found = files_of(load_report_inputs(job.loaded, keys.since_seconds, job.due))
    files = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    files[storage.PICTURE] = picture_of(found)
    try:
        storage.publish(job.folder, job.name, files)
        storage.prune(job.folder, keys.keep)
    except OSError as error:
        where = f"{job.folder} cannot be written: {error.strerror or error}"
        raise ReportError(f"{where}; make room, or name another report.directory") from error
    return found.headline
