"""`sizewatch dashboards push`: the dashboards, put into a Grafana through its HTTP API.

Owns the list of parts and what is printed. Grafana is `agent.cli.grafana_api`'s, the dashboards are `exporters.grafana`'. A
new part is a row of PARTS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.cli.grafana_api import GrafanaClient, GrafanaCredentials
from exporters.grafana.dashboard_json import dashboard_json
from exporters.grafana.files import FOLDER
from exporters.grafana.registry import DASHBOARDS

FINE = 0

WAYS_IN = (
    ("--token-file", "FILE", Path, "holds the token of a service account that may edit dashboards"),
    ("--username", "NAME", str, "instead of a token: a user who may edit dashboards"),
    ("--password-file", "FILE", Path, "password of that user"),
    ("--ca-file", "FILE", Path, "CA that signed Grafana's certificate"),
    ("--client-cert-file", "FILE", Path, "client certificate, where a proxy before Grafana wants one"),
    ("--client-key-file", "FILE", Path, "its key, where it is not in that file"),
)


class DashboardsSubcommand(NamedTuple):
    """One row: its name, what it is for, its arguments, and what it does."""

    name: str
    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", metavar="|".join(part.name for part in PARTS), required=True)
    for part in PARTS:
        sentence = f"{part.text[0].upper()}{part.text[1:]}."
        part.add_arguments(parts.add_parser(part.name, help=part.text, description=sentence))


def run(options: argparse.Namespace) -> int:
    """A Grafana that cannot be used raises GrafanaProblem (exit 2); what was saved before that stays."""
    return next(part for part in PARTS if part.name == options.part).run(options)


def _add_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", required=True, metavar="URL", help="Grafana's address, such as https://grafana.example"
    )
    for name, metavar, kind, text in WAYS_IN:
        parser.add_argument(name, type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--folder", default=FOLDER, metavar="TITLE", help=f"made where there is none (default {FOLDER})"
    )


def _push(options: argparse.Namespace) -> int:
    way_in = GrafanaCredentials(
        token_file=options.token_file,
        username=options.username,
        password_file=options.password_file,
        ca_file=options.ca_file,
        cert_file=options.client_cert_file,
        key_file=options.client_key_file,
    )
    grafana = GrafanaClient(options.url, way_in)
    folder = grafana.folder(options.folder)
    for dashboard in DASHBOARDS:
        print(f"{dashboard.title}: {grafana.save(dashboard_json(dashboard), folder)}", flush=True)
    return FINE


PARTS: tuple[DashboardsSubcommand, ...] = (
    DashboardsSubcommand("push", "save the dashboards into a folder of a Grafana, over older ones", _add_push, _push),
)
