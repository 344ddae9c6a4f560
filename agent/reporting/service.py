"""Service of the weekly reports in the daemon: what is due, retries and pending deliveries. `agent.daemon.jobs` calls it.

`agent.reporting.storage` holds the stored state. Each step runs in a process of its own (`agent.reporting.jobs`),
because the libraries of pages and numbers must not load in the daemon. One thread calls `run` when a report is due and
at the times that `run` returns; any thread may call `health`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from agent.config.load import LoadedConfig
from agent.config.report import DAY, WEEKDAYS, Destination
from agent.durations import retry_delay
from agent.errors import SizewatchError
from agent.reporting import storage
from agent.reporting.jobs import JobRunner
from agent.reporting.records import DeliveryJob, GenerateJob, Job, JobResult
from agent.reporting.storage import STATE_FILE, Delivery, ReportState
from exporters.status.records import DeliveryHealth, ReportHealth

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 60.0, 3600.0
"""Retry delays in seconds. The delay doubles with each further failure, up to the maximum."""

SENT, FAILED, GIVEN_UP = "sent", "failed", "given_up"

_log = logging.getLogger(__name__)


class ReportStateError(SizewatchError):
    """Unreadable or unwritable report state. Nothing is made or sent, because a delivery could be repeated."""


class WeeklyTrigger(CronTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Weekly time: `weekday` 0 is Monday, `at` is local time in `zone`.

    A local time that summer time skips counts as the same time before the change (02:30 becomes 03:30). A repeated
    local time counts once, at its first occurrence. CronTrigger with a zone fires twice then, and it leaves a week out
    where a day of 23 hours precedes a time before 01:00. So it gets local times as if they were UTC.
    """

    def __init__(self, weekday: int, at: time, zone: str) -> None:
        super().__init__(day_of_week=weekday, hour=at.hour, minute=at.minute, timezone=UTC)
        self.zone = ZoneInfo(zone)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the first time after the previous one, or at or after `now` without one."""
        after = now if previous_fire_time is None else previous_fire_time + timedelta(microseconds=1)
        # A day earlier: a skipped time comes when its local time has passed.
        local = (after.astimezone(self.zone) - timedelta(days=1)).replace(tzinfo=UTC, fold=0)
        while True:
            local = super().get_next_fire_time(None, local)
            fire: datetime = local.replace(tzinfo=self.zone).astimezone(UTC)
            if fire >= after:
                return fire
            local += timedelta(microseconds=1)

    def next(self, now: float) -> float:
        """Return the first time after `now` (unix seconds)."""
        start = datetime.fromtimestamp(now, UTC)
        return self.get_next_fire_time(start, start).timestamp()

    def latest(self, now: float) -> float:
        """Return the last time at or before `now` (unix seconds)."""
        latest, following = 0.0, self.next(now - 8 * DAY)
        while following <= now:
            latest, following = following, self.next(following)
        return latest

    def name(self, t: float) -> str:
        """Return the report name of a time: its local date."""
        return datetime.fromtimestamp(t, self.zone).date().isoformat()


class ReportService:
    """Reports of one history in `data_dir`. `runner` runs jobs; `stop` kills the running job and ends the service."""

    def __init__(self, data_dir: Path, runner: JobRunner | None = None) -> None:
        self.data_dir = data_dir
        self._runner = runner or JobRunner()
        self._state: ReportState | None = None
        self._trouble = ""
        self._memory_bytes = 0
        self._failures = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def weekly(self, loaded: LoadedConfig) -> WeeklyTrigger:
        """Return the times of the weekly report."""
        keys = loaded.config.report
        weekday, zone = WEEKDAYS.index(keys.weekday), keys.zone or loaded.config.forecast.zone
        return WeeklyTrigger(weekday, time.fromisoformat(keys.at), zone)

    def run(self, loaded: LoadedConfig, clock: Callable[[], float]) -> float:
        """Run all due steps and wait for them. Return when the next step is due (unix seconds)."""
        weekly = self.weekly(loaded)
        try:
            now = clock()
            self._correct_state(weekly, loaded, now)
            self._make(weekly, loaded, now)
            self._deliver(loaded, clock)
            self._trouble = ""
        except ReportStateError as error:
            if str(error) != self._trouble:
                _log.error('report state failed error="%s"', error)
            self._trouble = str(error)
            return clock() + FIRST_RETRY_SECONDS
        state = self._known
        retries = [delivery.next_at for delivery in state.deliveries.values() if delivery.report]
        if weekly.latest(now) > max(state.made_for, state.begun_at):
            retries.append(state.next_at)
        return min((weekly.next(now), *retries))

    def stop(self) -> None:
        """Kill the running job. Its work is repeated after the next start."""
        self._runner.kill()

    def _correct_state(self, weekly: WeeklyTrigger, loaded: LoadedConfig, now: float) -> None:
        """Read the stored state once, and correct times that a wrong clock left."""
        state = self._state if self._state is not None else self._read(now)
        longest = now + LAST_RETRY_SECONDS
        given_up_at = now + loaded.config.report.retry_seconds
        deliveries = {
            name: replace(one, next_at=min(one.next_at, longest), until=min(one.until, given_up_at))
            for name, one in state.deliveries.items()
        }
        state = replace(
            state, begun_at=min(state.begun_at, now), next_at=min(state.next_at, longest), deliveries=deliveries
        )
        if state.made_for > weekly.next(now):
            # A clock weeks ahead made this report. The true state of the present week is unknown.
            state = replace(state, made_for=0.0, begun_at=now, made_at=None)
        self._keep(state)

    def _read(self, now: float) -> ReportState:
        path = self.data_dir / STATE_FILE
        try:
            found = storage.read_state(path)
        except OSError as error:
            raise ReportStateError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            # Sent reports are unknown now. Prefer a missing report to a repeated one.
            _log.error('report state reset error="%s"', error)
            try:
                path.replace(path.with_name(f"{path.name}.damaged"))
            except OSError as error:
                raise ReportStateError(f"{path} cannot be put aside: {error.strerror or error}") from error
            found = None
        return found or ReportState(begun_at=now)

    def _keep(self, state: ReportState) -> None:
        if state == self._state:
            return
        path = self.data_dir / STATE_FILE
        try:
            storage.write_state(path, state)
        except OSError as error:
            raise ReportStateError(f"{path} cannot be written: {error.strerror or error}") from error
        self._state = state

    @property
    def _known(self) -> ReportState:
        assert self._state is not None
        return self._state

    def _make(self, weekly: WeeklyTrigger, loaded: LoadedConfig, now: float) -> None:
        state, folder = self._known, loaded.config.report_folder
        due = weekly.latest(now)
        if folder is None or due <= max(state.made_for, state.begun_at) or now < state.next_at:
            return
        name = weekly.name(due)
        job = GenerateJob(loaded=loaded, due=due, folder=folder.absolute(), name=name)
        done = self._run(job)
        if done is None:
            return
        if done.trouble:
            wait = retry_delay(state.attempts + 1, FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
            _log.warning('report failed name=%s error="%s" retry_seconds=%.0f', name, done.trouble, wait)
            failed = replace(state, attempts=state.attempts + 1, next_at=now + wait, trouble=done.trouble)
            self._keep(failed)
            self._failures += 1
            return
        _log.info('report written name=%s folder=%s headline="%s"', name, folder / name, done.text)
        for destination, delivery in state.deliveries.items():
            if delivery.report:
                self._give_up(destination, delivery, "a newer report takes its place")
        until = now + loaded.config.report.retry_seconds
        deliveries = {
            each.name: replace(
                self._known.deliveries.get(each.name, Delivery()), report=name, attempts=0, next_at=now, until=until
            )
            for each in loaded.config.report.deliver
        }
        self._keep(
            ReportState(begun_at=state.begun_at, made_for=due, made_at=now, headline=done.text, deliveries=deliveries)
        )

    def _deliver(self, loaded: LoadedConfig, clock: Callable[[], float]) -> None:
        known = {each.name: each for each in loaded.config.report.deliver}
        for name, delivery in self._known.deliveries.items():
            now = clock()
            if name not in known:
                if delivery.report:
                    self._give_up(name, delivery, "it is no destination any more")
            elif delivery.report and now >= delivery.next_at:
                self._send(loaded, known[name], delivery, now)
        kept = {name: delivery for name, delivery in self._known.deliveries.items() if name in known}
        self._keep(replace(self._known, deliveries=kept))

    def _send(self, loaded: LoadedConfig, destination: Destination, delivery: Delivery, now: float) -> None:
        folder, name = loaded.config.report_folder, destination.name
        if folder is None:
            return
        taken = storage.receipt(self.data_dir, delivery.report, name)
        link = loaded.config.alerting.external_url
        job = DeliveryJob(
            folder=folder.absolute(),
            name=delivery.report,
            destination=destination,
            link=f"{link.rstrip('/')}/reports/{delivery.report}/report.html" if link else "",
            receipt=taken.absolute(),
        )
        wait = retry_delay(delivery.attempts + 1, FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        # Record the attempt before sending: a daemon that dies here must not repeat it at once.
        tried = replace(delivery, attempts=delivery.attempts + 1, next_at=now + wait)
        self._set(name, tried)
        done = self._run(job)
        if done is None:
            self._set(name, delivery)
        elif not done.trouble:
            self._counts[name, SENT] += 1
            _log.info("report sent name=%s destination=%s", delivery.report, name)
            self._set(name, Delivery(sent_at=now))
            taken.unlink(missing_ok=True)
        elif now + wait > tried.until:
            self._give_up(name, tried, done.trouble)
        else:
            self._counts[name, FAILED] += 1
            _log.warning(
                'report delivery failed report=%s destination=%s error="%s" retry_seconds=%.0f',
                *(delivery.report, name, done.trouble, wait),
            )
            self._set(name, replace(tried, trouble=done.trouble))

    def _give_up(self, name: str, delivery: Delivery, why: str) -> None:
        self._counts[name, GIVEN_UP] += 1
        _log.error('report delivery abandoned name=%s destination=%s reason="%s"', delivery.report, name, why)
        text = f"the report of {delivery.report} was given up: {why}"
        self._set(name, Delivery(sent_at=delivery.sent_at, trouble=text))

    def _set(self, name: str, delivery: Delivery) -> None:
        self._keep(replace(self._known, deliveries={**self._known.deliveries, name: delivery}))

    def _run(self, job: Job) -> JobResult | None:
        """Run a job. Return None if the shutdown of the daemon killed it."""
        done = self._runner.run(job)
        if self._runner.was_killed:
            return None
        self._memory_bytes = max(self._memory_bytes, done.memory_bytes)
        return done

    def health(self, loaded: LoadedConfig, now: float) -> ReportHealth:
        """Return the health of reports for pages and metrics."""
        state, weekly = self._state, self.weekly(loaded)
        made = state is not None and state.made_for > 0
        return ReportHealth(
            next_at=weekly.next(now),
            made_at=state.made_at if state is not None else None,
            newest=weekly.name(state.made_for) if state is not None and made else "",
            headline=state.headline if state is not None else "",
            trouble=self._trouble or (state.trouble if state is not None else ""),
            failures=self._failures,
            memory_bytes=self._memory_bytes,
            deliveries=tuple(self._delivery(one.name) for one in loaded.config.report.deliver),
        )

    def _delivery(self, name: str) -> DeliveryHealth:
        known = self._state.deliveries if self._state is not None else {}
        delivery = known.get(name, Delivery())
        return DeliveryHealth(
            destination=name,
            sent=self._counts[name, SENT],
            failed=self._counts[name, FAILED],
            given_up=self._counts[name, GIVEN_UP],
            pending=int(bool(delivery.report)),
            next_at=delivery.next_at if delivery.report else None,
            last_success_at=delivery.sent_at,
            trouble=delivery.trouble,
        )
