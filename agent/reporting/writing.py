"""The report's files by name: which there are, and which exporter writes each.

Owns the list. Where they are put, served or sent is decided by whoever asks.
"""

from __future__ import annotations

from exporters.report.build import report, report_json
from exporters.report.html import report_html
from exporters.report.inputs import ReportInputs
from exporters.report.markdown import report_markdown
from exporters.report.next_plan import next_plan_text
from exporters.report.picture import png
from exporters.report.records import Report


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
