"""Generator of reports: history queries, the pre-warming simulation, and the files of a report.

It loads the libraries of the page and the forecast. Import it only to write a report. The libraries for numbers load
only if forecasting is enabled. Pre-warming is simulated on the weeks of the history itself. The history queries are in
`agent.reporting.queries`, the files' storage in `agent.reporting.storage`.
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
    """Return the pre-warming results by tier at `now` (unix seconds). Tiers without a result are left out."""
    if not loaded.config.forecast.enabled:
        return {}
    from agent.forecasting.prewarm_result import PlanOverrides, prewarm_from_history

    nothing_said = PlanOverrides(usable_rps=None, start_seconds=None)
    found: dict[str, Prewarming] = {}
    for tier in build_tier_contexts(loaded):
        try:
            told = prewarming_from_response(prewarm_from_history(loaded, tier, nothing_said, now))
        except SizewatchError:
            # The report's own queries meet the same history error and report it.
            continue
        if told is not None:
            found[tier] = told
    return found


def prewarming_from_response(answer: ForecastResponse) -> Prewarming | None:
    """Return the pre-warming result, or None without a forecast and a comparison."""
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
    """Return the text of every file, and the report. Without a plan there is no plan.next.yaml."""
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
    """Return report.png: the main charts, for chats and mails without HTML."""
    return png(found)


HOUR_SECONDS, LONGEST_SECONDS = 3600.0, 91 * 86_400.0
"""Maximum length of a report in seconds: the history keeps hours no longer (`agent.history.schema`)."""


class ReportError(SizewatchError):
    """Failure to write a report to its folder."""


def load_report_inputs(loaded: LoadedConfig, seconds: float, now: float) -> ReportInputs:
    """Return the inputs of a report over the last `seconds` before `now`. Raise ConfigError or HistoryError."""
    if loaded.config.history_path is None:
        raise ConfigError(
            (f"{loaded.path}: data_dir: there is no history to report on; role node keeps none unless it is given",)
        )
    # Round to full hours: the history keeps no shorter parts of load bins for weeks.
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
    """Write the report, remove old reports, and return the headline. Raise SizewatchError."""
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
