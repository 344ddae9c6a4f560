"""A report from the history that the daemon keeps: asked, written, put into its place.

Owns the way from a configuration to files. What is asked of the history is `agent.reporting.queries`'s, which files there are
`agent.reporting.writing`'s. It loads the page's and the forecast's libraries, and so it is loaded only when a report is written.
"""

from __future__ import annotations

from agent.config.load import LoadedConfig
from agent.config.views import build_tier_contexts, plan_versions
from agent.errors import ConfigError, SizewatchError
from agent.history.store import HistoryStore
from agent.reporting import storage
from agent.reporting.jobs import GenerateJob
from agent.reporting.prewarming import prewarming
from agent.reporting.queries import ReportQuery, query_report_inputs
from agent.reporting.writing import files_of, picture_of
from agent.version import VERSION
from exporters.report.inputs import ReportInputs

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
