"""Options that several commands share: what they accept, and what they say about what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from zkrebalancer.cli.options import events_option, json_option, log_level_option, zookeeper_option


@click.command()
@zookeeper_option
@events_option
@log_level_option
@json_option
def show(**values: object) -> None:
    click.echo(json.dumps(values, default=str))


def shown(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(show, arguments)
    assert result.exit_code == 0, result.output
    values: dict[str, object] = json.loads(result.stdout)
    return values


@pytest.mark.parametrize("address", ["h:1", "h:2181,i:65535", "127.0.0.1:2181/a/b", "[::1]:2181"])
def test_addresses(address: str) -> None:
    assert shown("--zookeeper", address)["zookeeper"] == address


@pytest.mark.parametrize(
    "address", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h:²", "h:1,", "h:1//a", "h:1/a/", "h:-1"]
)
def test_what_cannot_be_an_address_is_refused(address: str) -> None:
    result = CliRunner().invoke(show, ["--zookeeper", address])
    assert result.exit_code == 2
    assert "Invalid value for '--zookeeper'" in result.stderr


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKREBALANCER_ZOOKEEPER", "h:1")
    assert shown()["zookeeper"] == "h:1"


def test_the_folder_for_events_is_made_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert shown("--zookeeper", "h:1", "--events", str(folder))["events_directory"] == str(folder)
    assert folder.is_dir()
    assert list(folder.iterdir()) == []
    assert shown("--zookeeper", "h:1")["events_directory"] is None


def test_a_folder_for_events_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(show, ["--zookeeper", "h:1", "--events", str(tmp_path / "file" / "events")])
    assert result.exit_code == 2
    assert "Not a directory" in result.stderr


def test_a_log_level_is_checked_and_not_passed_on() -> None:
    assert "log_level" not in shown("--zookeeper", "h:1", "--log-level", "error")
    assert CliRunner().invoke(show, ["--zookeeper", "h:1", "--log-level", "loud"]).exit_code == 2


def test_json_is_a_flag() -> None:
    assert shown("--zookeeper", "h:1", "--json")["as_json"] is True
    assert shown("--zookeeper", "h:1")["as_json"] is False
