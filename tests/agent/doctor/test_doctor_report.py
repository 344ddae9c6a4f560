"""What the doctor says of the weekly report: when, where to, and of each address whether it is one; nothing is sent."""

from __future__ import annotations

from pathlib import Path

from report_runs import CANARY, configured
from report_servers import webhook

from agent.config.load import LoadedConfig
from agent.doctor import background_jobs
from agent.doctor.check_result import CheckLevel, format_text


def told(loaded: LoadedConfig) -> list[tuple[CheckLevel, str]]:
    found = list(background_jobs.check_report(background_jobs.probe_report(loaded.config), loaded))
    assert CANARY not in format_text(found)
    return [(one.level, one.text) for one in found]


def test_each_address_is_looked_at_and_nothing_is_sent(tmp_path: Path) -> None:
    with webhook() as hook:
        loaded = configured(
            tmp_path,
            {
                "chat": f"json://u:{CANARY}@{hook.place}/{CANARY}",
                "mail": f"mailtos://u:{CANARY}@example.com",
                "phone": f"clicksend://user:{CANARY}@15555555555",
                "typo": f"jsno://{CANARY}",
                "two": f"json://{CANARY} json://{CANARY}",
            },
        )
        (tmp_path / "chat.url").chmod(0o644)
        (tmp_path / "mail.url").unlink()
        found = told(loaded)
        assert hook.asked == 0
    assert found[0][0] is CheckLevel.OK
    assert found[0][1].startswith("every Monday 07:00 UTC, of the last 7d, into ")
    assert found[1:] == [
        (CheckLevel.OK, "deliver to chat: JSON, with report"),
        (CheckLevel.WARN, f"{tmp_path / 'chat.url'} can be read by everybody on this machine"),
        (CheckLevel.FAIL, f"deliver to mail: {tmp_path / 'mail.url'} cannot be read (No such file or directory)"),
        (CheckLevel.OK, "deliver to phone: ClickSend, the sentences alone: it takes no files"),
        (
            CheckLevel.FAIL,
            "deliver to typo: is no address that Apprise understands (such as mailtos://, slack://, json://)",
        ),
        (CheckLevel.FAIL, f"deliver to two: {tmp_path / 'two.url'} must hold one address and nothing else"),
    ]


def test_without_destinations_no_process_is_begun_and_a_place_that_is_none_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    loaded = configured(tmp_path, report={"directory": "file/reports", "weekday": "friday", "at": "18:30"})
    (place, when) = told(loaded)
    assert place == (CheckLevel.FAIL, f"{tmp_path / 'file'} cannot be written")
    assert when[1].startswith("every Friday 18:30 UTC")


def test_where_it_is_off_that_is_all_there_is_to_say(tmp_path: Path) -> None:
    assert told(configured(tmp_path, report={"enabled": False})) == [(CheckLevel.OK, "off (report.enabled: false)")]
