import re
from typing import Any

import jsonschema
import pytest
import yaml
from paths import ROOT

from agent.config.load import config_schema, parse_config
from exporters.docs.reference_pages import configuration_page
from rules.plan.schema import parse_plan


def example() -> Any:
    """Return the configuration that docs/install.md shows."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    return next(
        data
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if "targets" in (data := yaml.safe_load(block))
    )


def test_documented_example_is_sound() -> None:
    plan = parse_plan(yaml.safe_load((ROOT / "tests/plans/guide-h100.yaml").read_text(encoding="utf-8")))
    parsed = parse_config(example(), environment={"CREDENTIALS_DIRECTORY": "/run"}, plan=plan)
    assert len(parsed.targets) == len(example()["targets"])
    assert list(jsonschema.Draft202012Validator(config_schema()).iter_errors(example())) == []


def test_every_key_has_its_row() -> None:
    schema = config_schema()
    rows = [line for line in configuration_page(schema).splitlines() if line.startswith("| `")]
    assert all(len(re.split(r"(?<!\\) \| ", row.strip("| "))[-1]) > 5 for row in rows)
    keys = {key for part in (schema, *schema["$defs"].values()) for key in part["properties"]}
    shown = {key for row in rows for key in re.split(r"[.\[\]]+", row.split("`")[1])}
    assert keys <= shown


@pytest.mark.parametrize(
    "change",
    [
        {"role": "cluster"},
        {"scrape_interval": 15},
        {"scrape_intervall": "15s"},
        {"targets": [{"url": "http://x/"}]},
        {"targets": [{"url": "http://x/", "tier": "t", "gpus": "all"}]},
        {"web": {"tls": {"cert_file": "x"}}},
    ],
)
def test_schema_refuses_visible_mistakes(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(config_schema()).validate({**example(), **change})
