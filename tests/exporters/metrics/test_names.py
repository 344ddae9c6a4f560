"""Exported names: Prometheus' rules of naming, nothing twice, nothing that could not be added up again."""

import re

import pytest

from exporters.metrics import names
from rules.telemetry.families import FAMILIES, GPU_NAMES, FamilyKind
from rules.telemetry.signals import SIGNALS, SignalKind


def test_names_are_unique_lower_case() -> None:
    stems = [metric.name for metric in names.ALL]
    assert len(stems) == len(set(stems))
    for metric in names.ALL:
        assert re.fullmatch(r"sizewatch_[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is FamilyKind.COUNTER), metric.name
        assert not metric.name.endswith(("_bucket", "_sum", "_count")), metric.name


def test_exactly_named_families_are_exported() -> None:
    assert set(names.FAMILY) == {family.name for family in FAMILIES if family.export}
    assert "in_system_change" not in names.FAMILY


def test_no_window_quantile_or_ratio_exported() -> None:
    taken = {metric.name for metric in names.ALL}
    for signal in SIGNALS:
        if signal.how in (SignalKind.QUANTILE, SignalKind.RATIO):
            assert f"sizewatch_{signal.name}" not in taken


def test_labels_name_gpu_or_model() -> None:
    for family, metric in names.FAMILY.items():
        of_gpu = family in GPU_NAMES
        assert ("gpu" in metric.labels) == of_gpu
        assert ("model" in metric.labels) == (not of_gpu)
        assert metric.labels[:3] == ("tier", "pool", "replica")


def test_names_by_family_and_part() -> None:
    assert names.exported("requests_finished") == "sizewatch_requests_finished_total"
    assert names.exported("spec_accepted_at_position/2") == "sizewatch_spec_accepted_tokens_at_position_total"
    assert names.metric("spec_accepted_at_position/2").labels[-1] == "position"
    assert names.exported("gpu_fault_events_by_code/xid-79") == "sizewatch_gpu_fault_events_by_code_total"
    assert names.metric("gpu_fault_events_by_code/xid-79").labels == ("tier", "pool", "replica", "gpu", "code")
    assert names.bucket("ttft_seconds") == "sizewatch_ttft_seconds_bucket"
    assert names.total("ttft_seconds") == "sizewatch_ttft_seconds_sum"
    assert names.count("prompt_tokens_per_request") == "sizewatch_request_prompt_tokens_count"


def test_unexported_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        names.exported("in_system_change")
    with pytest.raises(KeyError, match="requests_finished is no histogram"):
        names.bucket("requests_finished")
