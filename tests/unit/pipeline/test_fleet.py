from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.pipeline_run import Command
from zkrebalancer.pipeline.fleet.history import SESSION_OF_THE_DEAD
from zkrebalancer.pipeline.fleet.replay import AS_RECORDED, SETTINGS

S = 1_000_000
EPOCH_US = 1_790_000_000 * S
LIVES = ("a-00000000-0000-0000-0000-000000000001", "a-00000000-0000-0000-0000-000000000002")
OTHER = "b-00000000-0000-0000-0000-000000000003"


class Host:
    """Writes events of one host, whose monotonic clock began at another time than those of the others."""

    def __init__(self, folder: Path, name: str, booted_s: float, group: str = "g") -> None:
        self._path, self._name, self._booted_us = folder / f"{name}.jsonl", name, round(booted_s * S)
        self._group = group

    def add(self, at_s: float, kind: str, **fields: Any) -> None:
        at_us = round(at_s * S)
        common = {"ts_us": EPOCH_US + at_us, "mono_us": at_us - self._booted_us, "host": self._name, "process": "p"}
        event = {**common, "kind": kind, "group": self._group, "generation": 1, "cause_id": None, **fields}
        with self._path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def fetch(self, at_s: float, kind: str, member: str, partitions: list[int], **fields: Any) -> None:
        positions = [0] * len(partitions)
        self.add(at_s, kind, member=member, topic="t", partitions=partitions, positions=positions, **fields)

    def plan(
        self, at_s: float, number: int, trigger: str, members: int, *, moved: int, late: list[str] | None = None
    ) -> None:
        cause = {"cause_id": f"c{number}", "generation": number}
        self.add(at_s, "rebalance_requested", trigger=trigger, **cause)
        counts = {"member_count": members, "partition_count": 4, "moved_count": moved, "plan_us": 9}
        self.add(at_s + 0.1, "rebalance_planned", mode="incremental", **counts, **cause)
        ended = {"outcome": "finished", "moved_count": moved, "late_members": late or [], "settled_us": 500_000}
        self.add(at_s + 0.6, "rebalance_finished", pause_us_max=0, **ended, **cause)

    def command(self, at_s: float, number: int, member: str, answer_s: float) -> None:
        cause = {"cause_id": f"c{number}", "generation": number, "member": member, "command_id": f"{number}/{member}"}
        self.add(at_s, "command_sent", option="stop-fetcher", partition_count=2, **cause)
        self.add(at_s + answer_s, "command_acked", **cause)


def write_fleet(folder: Path) -> None:
    """Write a group: two members join, one dies silently and returns after 20 s, then both leave for a night."""
    folder.mkdir()
    broker, one, two = (Host(folder, name, booted) for name, booted in (("broker", 5e6), ("h1", -3e6), ("h2", 0.0)))
    broker.add(0, "member_joined", member=LIVES[0])
    broker.plan(0, 1, "member-joined", 1, moved=0)
    one.fetch(1, "fetcher_started", LIVES[0], [0, 1, 2, 3], generation=1, cause_id="c1")
    broker.add(10, "member_joined", member=OTHER)
    broker.plan(10, 2, "member-joined", 2, moved=2, late=[LIVES[0]])
    broker.command(10.2, 2, LIVES[0], answer_s=1.8)
    one.fetch(12, "fetcher_stopped", LIVES[0], [2, 3], reason="revoked")
    two.fetch(12.5, "fetcher_started", OTHER, [2, 3], generation=2, cause_id="c2")  # 2 x 0.5 s without an owner
    one.add(100, "delivered", member=LIVES[0], topic="t", partition=0, first_offset=0, last_offset=9, count=10)
    broker.add(108, "member_left", member=LIVES[0], reason="expired")  # 2 x 8 s without a sign of life
    broker.add(108, "ownership_ended", member=LIVES[0], reason="expired")
    broker.plan(108, 3, "member-left", 1, moved=0)
    two.fetch(108.25, "fetcher_started", OTHER, [0, 1], generation=3, cause_id="c3")  # 2 x 0.25 s
    broker.add(128, "member_joined", member=LIVES[1])
    broker.plan(128, 4, "member-joined", 2, moved=2)
    broker.command(128.2, 4, OTHER, answer_s=0.1)
    two.fetch(128.3, "fetcher_stopped", OTHER, [0, 1], reason="revoked")
    one.fetch(128.4, "fetcher_started", LIVES[1], [0, 1], generation=4, cause_id="c4")  # 2 x 0.1 s
    for host, member, partitions in ((one, LIVES[1], [0, 1]), (two, OTHER, [2, 3])):
        host.fetch(200, "fetcher_stopped", member, partitions, reason="closed")
        broker.add(200, "member_left", member=member, reason="closed")
    morning_s = 200 + 43_200
    broker.add(morning_s, "member_joined", member=OTHER.replace("3", "4"))
    broker.plan(morning_s, 5, "member-joined", 1, moved=0)
    two.fetch(morning_s + 1, "fetcher_started", OTHER.replace("3", "4"), [0, 1, 2, 3], generation=5, cause_id="c5")
    (folder / "bad.jsonl").write_text("no event\n")


def write_absent_leader(folder: Path) -> None:
    """Write a group whose members come and go while no coordinator leads: `w` comes, `x` closes, `y` dies.

    The next leader finds in the morning what `y` has left.
    """
    broker, host = Host(folder, "broker-e", 0.0, "e"), Host(folder, "h-e", 9.0, "e")
    for at_s, member in ((0, "x"), (0, "y")):
        broker.add(at_s, "member_joined", member=member, session_timeout_ms=10_000)
    broker.plan(0, 1, "member-joined", 2, moved=0)
    for member, partitions in (("x", [0, 1]), ("y", [2, 3]), ("w", [4])):
        host.fetch(1, "fetcher_started", member, partitions, generation=1, cause_id="c1")
    host.fetch(100, "fetcher_stopped", "w", [4], reason="closed")
    broker.add(100, "member_left", member="w", reason="closed")
    broker.plan(100, 2, "member-left", 2, moved=0)
    host.fetch(100.5, "fetcher_started", "y", [4], generation=2, cause_id="c2")  # 1 x 0.5 s
    host.add(150, "delivered", member="y", topic="t", partition=2, first_offset=0, last_offset=9, count=10)
    host.fetch(200, "fetcher_stopped", "x", [0, 1], reason="closed")
    morning_s = 43_200
    broker.add(morning_s, "ownership_ended", member="y", reason="expired")  # 3 x 10 s without a sign of life, at most
    broker.add(morning_s, "member_left", member="y", reason="expired")
    broker.add(morning_s, "member_joined", member="z", session_timeout_ms=10_000)
    broker.plan(morning_s, 3, "member-joined", 1, moved=0)
    host.fetch(morning_s + 1, "fetcher_started", "z", [0, 1, 2, 3], generation=3, cause_id="c3")  # 4 x 1 s


def write_silent(folder: Path) -> None:
    """Write a group of which only the coordinator writes events."""
    broker = Host(folder, "broker-s", 0.0, "silent")
    broker.add(0, "member_joined", member="k")
    broker.plan(0, 1, "member-joined", 1, moved=0)
    broker.add(10, "member_joined", member="l")
    broker.plan(10, 2, "member-joined", 2, moved=2)
    broker.command(10.2, 2, "k", answer_s=0.1)
    broker.add(300, "member_left", member="l", reason="expired")
    broker.plan(300, 3, "member-left", 1, moved=0)


def write_unwanted(folder: Path) -> None:
    """Write a group whose topic is away for a day, and has a second partition to whose topic nobody subscribes then."""
    broker, host = Host(folder, "broker-u", 0.0, "unwanted"), Host(folder, "h-u", 0.0, "unwanted")
    broker.add(0, "member_joined", member="m")
    broker.plan(0, 1, "member-joined", 1, moved=0)
    host.fetch(1, "fetcher_started", "m", [0, 1], generation=1, cause_id="c1")
    host.fetch(100, "fetcher_stopped", "m", [0, 1], reason="revoked")
    for number, partition, trigger in ((2, 0, "topic-created"), (3, 1, "subscription-changed")):
        at_s = number * 86_400
        broker.plan(at_s, number, trigger, 1, moved=0)
        host.fetch(at_s + number, "fetcher_started", "m", [partition], generation=number, cause_id=f"c{number}")


@pytest.fixture(scope="module")
def told(command: Command, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder / "in")
    write_absent_leader(folder / "in")
    write_silent(folder / "in")
    write_unwanted(folder / "in")
    (folder / "out").mkdir()
    return command("pipeline", "fleet", "--events", folder / "in", "--out", folder / "out")


def table(told: dict[str, Any], name: str, group: str = "g") -> pd.DataFrame:
    rows = pd.read_csv(told["files"][name], keep_default_na=False)
    return rows[rows["group"] == group]


def test_each_cause_has_its_cost_and_a_night_without_members_costs_nothing(told: dict[str, Any]) -> None:
    causes = table(told, "causes").set_index("cause")
    assert causes["unowned_partition_s"].astype(float).to_dict() == {
        "member-joined": pytest.approx(2 * 0.5 + 2 * 0.1 + 4 * 1),  # the last: until the first start in the morning
        "member-left": pytest.approx(2 * 0.25),
        SESSION_OF_THE_DEAD: pytest.approx(2 * 8),
    }
    assert causes["rebalances"].to_dict() == {"member-joined": 4, "member-left": 1, SESSION_OF_THE_DEAD: 0}
    assert causes["moved"].to_dict() == {"member-joined": 4, "member-left": 0, SESSION_OF_THE_DEAD: 0}


def test_members_that_come_and_go_without_a_leader_are_no_members_for_ever(told: dict[str, Any]) -> None:
    """In `lives_of`, look only at what a coordinator saw of a member, or let the dead live until they are found."""
    causes = table(told, "causes", "e").set_index("cause")
    assert causes["unowned_partition_s"].astype(float).to_dict() == {
        "member-joined": pytest.approx(4 * 1),  # no member ran at night
        "member-left": pytest.approx(0.5),
        SESSION_OF_THE_DEAD: pytest.approx(3 * 10),  # a session, not the time until it was found
    }
    rows = {row["setting"]: row for row in table(told, "settings", "e").to_dict("records")}
    assert [rows[AS_RECORDED][name] for name in ("steps", "crashes_unknown", "clients_unknown")] == [7, 0, 0]
    (group,) = table(told, "groups", "e").to_dict("records")
    assert [group[name] for name in ("members", "crashed", "sessions_unknown", "unowned_now")] == [4, 1, 0, 1]


def test_what_agents_did_not_record_is_unknown(told: dict[str, Any]) -> None:
    """In `causes`, do not look whether it was recorded; in `lives_of`, take the longest session for the silence."""
    causes = table(told, "causes", "silent").set_index("cause")
    assert causes["unowned_partition_s"].to_dict() == {"member-joined": "", "member-left": ""}
    (group,) = table(told, "groups", "silent").to_dict("records")
    names = ("unowned_partition_s", "members", "unheard", "crashed", "sessions_unknown")
    assert [group[name] for name in names] == ["", 2, 1, 1, 1]
    rows = {row["setting"]: row for row in table(told, "settings", "silent").to_dict("records")}
    assert [rows[AS_RECORDED][name] for name in ("steps", "crashes_unknown", "clients_unknown")] == [3, 1, 3]
    assert [rows[AS_RECORDED][name] for name in ("recorded_rebalances", "recorded_partition_s")] == [3, ""]
    costs = next(one["answer"] for one in told["questions"] if one["question"] == "What does each cause cost?")
    assert "Of 1 of 4 groups it is unknown: no agent wrote events." in costs


def test_time_in_which_nobody_wanted_a_partition_costs_nothing(told: dict[str, Any]) -> None:
    """In `_wanted`, return the gaps as they are: a topic that is away for a day would cost more than all the rest."""
    causes = table(told, "causes", "unwanted").set_index("cause")
    spent = causes["unowned_partition_s"].astype(float).to_dict()
    assert spent == {"member-joined": 0, "topic-created": pytest.approx(2), "subscription-changed": pytest.approx(3)}


def test_a_client_that_is_late_is_named_with_its_host(told: dict[str, Any]) -> None:
    rows = {row["client"]: row for row in table(told, "lateness").to_dict("records")}
    assert [rows["a"][name] for name in ("host", "commands", "late")] == ["h1", 1, 1]
    assert rows["a"]["answer_ms"] == pytest.approx(1_800)
    assert [rows["b"][name] for name in ("host", "commands", "late")] == ["h2", 1, 0]
    (late,) = (one for one in told["questions"] if one["question"] == "Who is late?")
    assert late["answer"].startswith("1 of 3 clients. a on h1 was late in 1 plans")


def test_every_setting_is_replayed_and_static_members_would_have_moved_less(told: dict[str, Any]) -> None:
    rows = {row["setting"]: row for row in table(told, "settings").to_dict("records")}
    assert set(rows) == {setting.name for setting in SETTINGS}
    now, static = rows[AS_RECORDED], rows["static members, static_grace_ms=30000"]
    assert (now["steps"], now["rebalances"], static["rebalances"]) == (7, 3, 1)
    assert static["moved"] < now["moved"]
    assert now["recorded_rebalances"] == 5
    assert float(now["recorded_partition_s"]) == pytest.approx(21.7)
    assert static["unowned_partition_s"] == pytest.approx(now["unowned_partition_s"] + 2 * 20, rel=0.1)


def test_the_page_has_every_question_with_its_figures(told: dict[str, Any]) -> None:
    page = Path(told["files"]["page"]).read_text()
    assert len(told["questions"]) == 4 + len(SETTINGS)
    for one in told["questions"]:
        assert page.count(one["question"].replace("`", "")) + page.count(one["question"]) >= 1
        assert one["answer"]
    assert "member-joined" in page
    assert all(fetching not in page for fetching in ('href="http', "src=", "@import"))
