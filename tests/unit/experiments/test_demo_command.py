"""`zkrebalancer demo` without servers: invalid options, output, and failures."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.experiments.event_maker import A, B, delivered, event, fetcher, finish, plan, produced
from zkrebalancer.cli import demo as command
from zkrebalancer.experiments.demo.report import verdict_line
from zkrebalancer.experiments.demo.run import DemoFailedError, DemoSettings, Outcome
from zkrebalancer.experiments.demo.show import PlainShow, Show
from zkrebalancer.observe.checker import check
from zkrebalancer.observe.reading import Event

SOUND = [
    event("scenario", 1, group=None),
    *plan(1, 2, partitions=1),
    event("fault", 3, group=None, name="kill", target="demo-1"),
    produced(0, 9, 4),
    fetcher("fetcher_started", A, [0], 5),
    delivered(A, 0, 5, 6),
    event("ownership_ended", 7, member=A, reason="expired"),
    fetcher("fetcher_started", B, [0], 8, position=4),
    delivered(B, 4, 9, 9),
    finish(1, 10),
]
BROKEN: dict[str, tuple[list[Event], str]] = {
    "lost": ([*SOUND, produced(10, 12, 11)], '"lost": 3'),
    "twice": (
        [
            *SOUND,
            fetcher("fetcher_stopped", B, [0], 11),
            fetcher("fetcher_started", A, [0], 12),
            delivered(A, 8, 9, 13),
        ],
        '"duplicated_outside_crash": 2',
    ),
    "two owners": ([*SOUND, fetcher("fetcher_started", A, [0], 11, position=10)], '"overlaps": 1'),
    "out of order": ([*SOUND, delivered(B, 7, 7, 11)], '"out_of_order": 1'),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run the command on prepared events instead of servers."""

    def run_on(events: list[Event], *arguments: str) -> Result:
        (tmp_path / "run.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))

        def pretend(settings: DemoSettings, show: Show) -> Outcome:
            show.step("pretend")
            verdict = check(tmp_path)
            kept = None if verdict.ok else tmp_path
            return Outcome(verdict, {"zookeeper": "3.8.4", "kafka": "3.9.1"}, settings.seed, kept, kept, 41.03)

        monkeypatch.setattr("zkrebalancer.experiments.demo.run.run", pretend)
        return CliRunner().invoke(command.demo, arguments)

    return run_on


def test_json_output(run: Callable[..., Result]) -> None:
    result = run(SOUND, "--json", "--seed", "7")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == {
        "ok": True,
        "versions": {"zookeeper": "3.8.4", "kafka": "3.9.1"},
        "seed": 7,
        "rebalances": [
            {
                "group": "demo",
                "generation": 1,
                "mode": "incremental",
                "cause": "member-joined",
                "members": 2,
                "partitions": 1,
                "moved": 1,
                "settled_ms": 31.0,
                "pause_ms_max": 0.001,
                "outcome": "finished",
            }
        ],
        "faults": [{"name": "kill", "target": "demo-1", "at_s": 0.0}],
        "records": {
            "produced": 10,
            "delivered": 10,
            "lost": 0,
            "duplicated": 2,
            "duplicated_outside_crash": 0,
            "out_of_order": 0,
        },
        "overlaps": 0,
        "events": None,
        "elapsed_s": 41.0,
    }
    assert "pretend" in result.stderr


def test_text_output_has_tables_and_the_verdict(run: Callable[..., Result]) -> None:
    result = run(SOUND)
    assert result.exit_code == 0, result.output
    assert "member-joined" in result.stdout
    assert (
        "records: produced 10, delivered 10, lost 0, duplicated 2 (2 after a crash), out of order 0; overlaps 0"
        in result.stdout
    )
    assert result.stderr == ""


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_fails_and_names_the_events(run: Callable[..., Result], promise: str, tmp_path: Path) -> None:
    events, expected = BROKEN[promise]
    result = run(events, "--json")
    assert isinstance(result.exception, DemoFailedError)
    assert result.exception.exit_code == 1
    assert str(tmp_path) in str(result.exception)
    assert '"ok": false' in result.stdout
    assert expected in result.stdout
    assert str(tmp_path) == json.loads(result.stdout)["events"]
    assert "problem: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--members", "1"), "--members"),
        (("--members", "51"), "--members"),
        (("--partitions", "0"), "--partitions"),
        (("--members", "5", "--partitions", "4"), "--partitions 4 is less than --members 5"),
        (("--rate", "0"), "--rate"),
        (("--seconds", "-1"), "--seconds"),
    ],
)
def test_invalid_options_are_rejected(run: Callable[..., Result], arguments: tuple[str, ...], message: str) -> None:
    result = run(SOUND, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_folder_with_events_of_an_earlier_run_is_rejected(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run(SOUND, "--events", str(tmp_path))
    assert result.exit_code == 2
    assert "earlier run" in result.stderr


def test_an_events_folder_that_cannot_be_created_is_an_error(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(SOUND, "--events", str(tmp_path / "file" / "events"))
    assert result.exit_code == 2
    assert "Not a directory" in result.stderr


def test_signal_handlers_are_restored(run: Callable[..., Result]) -> None:
    before = signal.getsignal(signal.SIGINT)
    run(SOUND)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_verdict_counts_records_excused_by_a_crash(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SOUND))
    assert "duplicated 2 (2 after a crash)" in verdict_line(check(tmp_path))


def test_plain_output_leaves_out_counters(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainShow(to_stderr=True) as show:
        show.step("ZooKeeper and Kafka start")
        show.detail("fetching Kafka 3.9.1: 57 jars")
        show.detail("fetching Kafka 3.9.1: 3 of 57 jars")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.partition(" s  ")[2] for line in captured.err.splitlines()] == [
        "ZooKeeper and Kafka start",
        "  fetching Kafka 3.9.1: 57 jars",
    ]
