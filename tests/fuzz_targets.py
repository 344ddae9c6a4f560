"""The table of all fuzz targets, by name."""

from __future__ import annotations

from collections.abc import Mapping

import fuzz_answers
import fuzz_documents
import fuzz_pages
from fuzz_target import Target

TARGETS: Mapping[str, Target] = {
    one.name: one for one in (*fuzz_pages.TARGETS, *fuzz_documents.TARGETS, *fuzz_answers.TARGETS)
}
