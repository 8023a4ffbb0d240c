"""Commands of the pipeline and of experiments that no other test runs to their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.pipeline_run import Command
from tests.unit.observe.history import History
from tests.unit.pipeline.histories import write_run
from zkrebalancer.cli.main import zkrebalancer
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.locks import folder_locked
from zkrebalancer.pipeline import session
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.weights import HOUR_S

HOURS = 5
PUBLISHED = max((Path(__file__).parents[3] / "docs/data").glob("experiments-*.jsonl"))


def test_pipeline_weights(command: Command, tmp_path: Path) -> None:
    history = History()
    for half in range(-1, 2 * HOURS + 1):
        history.add("produced", topic="t", partition=0, first_offset=0, last_offset=899)
        history.events[-1]["ts_us"] = (2_000 + half) * HOUR_S * 500_000 + 1
    write_run(tmp_path / "in", history)
    (tmp_path / "out").mkdir()
    told = command("pipeline", "weights", "--events", tmp_path / "in", "--out", tmp_path / "out")
    assert (told["source"], told["hours"], told["written_for"]) == ("produced", HOURS, None)
    assert told["rate"] == {"t": [0.5]}


def test_experiment_list() -> None:
    result = CliRunner().invoke(zkrebalancer, ["experiment", "list", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert {"protocols", "scenarios"} <= json.loads(result.stdout).keys()


@pytest.mark.parametrize("name", ["run", "fleet", "weights", "watch"])
def test_settings_are_passed_to_spark(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Do not pass `settings` on."""
    passed: list[dict[str, str]] = []

    def refuse(_master: str, _memory: str | None, settings: dict[str, str], **_: bool) -> None:
        passed.append(settings)
        raise session.SparkFailedError("as wanted")

    write_run(tmp_path / "in", History().produced(0, 9))
    monkeypatch.setattr(session, "spark_session", refuse)
    paths = ["--events", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    for text, expected in (("spark.ui.enabled=true", 1), ("spark.ui.enabled", 2), ("ui=true", 2)):
        result = CliRunner().invoke(zkrebalancer, ["pipeline", name, *paths, "--conf", text])
        assert result.exit_code == expected, result.output
    assert [settings["spark.ui.enabled"] for settings in passed] == ["true"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("pipeline", "run", "--events", "none"), "none contains no event file"),
        (("pipeline", "fleet", "--events", "none"), "none contains no event file"),
        (("pipeline", "weights", "--events", "none"), "none contains no event file"),
        (("experiment", "compare", "."), "has no run: no result.json below it"),
    ],
)
def test_missing_input_is_told_before_spark_starts(
    arguments: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "spark_session", lambda *_, **_more: pytest.fail("Spark starts"))
    result = CliRunner().invoke(zkrebalancer, [*arguments, "--out", "."])
    assert isinstance(result.exception, RebalancerError)
    assert why in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("pipeline", name, "--events", "in") for name in ("run", "fleet", "weights", "watch")),
        ("pipeline", "sweep"),
        ("experiment", "compare", "published.jsonl"),
    ],
    ids=lambda arguments: str(arguments[1]),
)
def test_two_commands_do_not_write_one_folder_at_once(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Do not lock `out`: each replaces the tables of the other while it reads them, and prints a verdict."""
    write_run(tmp_path / "in", History().produced(0, 9))
    (tmp_path / "published.jsonl").write_bytes(PUBLISHED.read_bytes())
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "spark_session", lambda *_, **_more: pytest.fail("Spark starts"))
    with folder_locked(tmp_path / "out"):
        result = CliRunner().invoke(zkrebalancer, [*arguments, "--out", "out"])
    assert isinstance(result.exception, LocalClusterError), result.output
    assert str(result.exception).startswith("another zkrebalancer has locked out/.lock")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
