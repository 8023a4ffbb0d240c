"""The data of the pages: all groups, one group, for a leader and for a standby; limits and headers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from tests.support.deadlines import WITHIN_S
from tests.support.groups import world_with
from tests.support.page_site import monitor_of, site_of
from tests.support.world import GROUP, World
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.pages import asking as asking_module
from zkrebalancer.coordinator.pages import foresight as foresight_module
from zkrebalancer.coordinator.pages import live, overview, site
from zkrebalancer.coordinator.pages.asking import Asking, NoAnswerError
from zkrebalancer.coordinator.pages.foresight import Foresight
from zkrebalancer.coordinator.pages.group_view import Lanes, Parts, cut, ranges, some
from zkrebalancer.coordinator.pages.live import Streams
from zkrebalancer.coordinator.pages.overview import Listed, Overview, Wanted
from zkrebalancer.coordinator.pages.recent import Recent
from zkrebalancer.coordinator.pages.site import Site
from zkrebalancer.protocol import last_change, paths
from zkrebalancer.protocol.calls import Multi, Refusal, Refused, Replied, SetContent
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress, Topic, encode_coordinator
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.census import Figures
from zkrebalancer.rebalance.effects import Emit, EventField
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.http_server import Answer, Stream

Document = dict[str, Any]


def figures(group: str, state: GroupState = GroupState.IDLE, unowned: int = 0) -> Figures:
    return Figures(group, state, 7_000, 1.0, 3, members=2, partitions=4, unowned=unowned, pending_commands=0, looks=1)


# All groups -----------------------------------------------------------------------------------------------------------

THOUSANDS = Listed(tuple(figures(f"g-{number:05}") for number in range(10_000)))


def test_ten_thousand_groups_have_pages() -> None:
    found = overview.document(THOUSANDS, Wanted(page=200), 0)
    assert (found["matching"], found["pages"], found["page"], len(found["groups"])) == (10_000, 200, 200, 50)
    assert found["groups"][-1]["group"] == "g-09999"
    assert found["totals"]["members"] == 20_000
    assert overview.document(THOUSANDS, Wanted(page=999), 0)["page"] == 200
    some = overview.document(THOUSANDS, Wanted(search="7", page=999), 0)
    assert some["pages"] == some["page"] == some["matching"] // len(found["groups"]) + 1, "the last page is not full"
    assert len(some["groups"]) == some["matching"] % len(found["groups"]) > 0


def test_a_search_finds_parts_of_names_in_any_case() -> None:
    found = overview.document(THOUSANDS, Wanted(search="G-0012"), 0)
    assert [one["group"] for one in found["groups"]] == [f"g-0012{digit}" for digit in range(10)]
    assert found["totals"]["groups"] == 10_000
    assert overview.document(THOUSANDS, Wanted(search="<"), 0)["groups"] == []


def test_groups_that_need_attention_come_first_and_one_state_can_be_chosen() -> None:
    """In `overview.document`, sort by name only."""
    mixed = [figures("a"), figures("m", GroupState.MOVING), figures("n", unowned=1), figures("b"), figures("z")]
    listed = Listed(tuple(mixed), {"z": "unknown strategy"})
    found = overview.document(listed, Wanted(), 1_000)
    assert [one["group"] for one in found["groups"]] == ["m", "n", "z", "a", "b"]
    assert (found["groups"][2]["problem"], found["groups"][2]["since_ms"]) == ("unknown strategy", 1_007)
    assert found["totals"]["states"] == {"idle": 4, "moving": 1}
    moving = overview.document(listed, Wanted(state="moving"), 0)
    assert [one["group"] for one in moving["groups"]] == ["m"]


# The site -------------------------------------------------------------------------------------------------------------


def document(shown: Site, path: str, query: str = "") -> Document:
    answer = shown(path, query)
    assert isinstance(answer, Answer)
    found: Document = json.loads(answer.content)
    return found


def joined_later() -> tuple[World, Site]:
    """Return a world and its leader's site, which has seen a member join and another one fall silent."""
    world = World()
    world.set_topic("t", 4)
    world.create_group()
    leader = world.add_coordinator()
    shown = site_of(world, leader, {})
    for client in ("a", "b"):
        world.add_agent(client)
        world.pass_time(2_000)
    return world, shown


def test_a_group_has_members_owners_over_time_and_obstacles() -> None:
    world, shown = joined_later()
    world.agents["a"].silent = True
    world.set_topic("t", 6)
    world.pass_time(1_000)
    found = document(shown, "/page/group", f"name={GROUP}")
    a, b = sorted(world.owned())
    assert (found["state"], found["members"], found["partitions"]) == ("moving", 2, 6)
    assert [(one["member"], one["owns"]) for one in found["roster"]["members"]] == [(a, "t 0-1"), (b, "t 2-3, 5")]
    (pending,) = found["roster"]["members"][0]["pending"]
    assert (pending["option"], pending["count"]) == ("start-fetcher", 1)
    (obstacle,) = found["obstacles"]
    assert obstacle["text"].startswith(f"waiting for {a} to acknowledge a start, until 20")
    lanes = {lane["partition"]: lane["spans"] for lane in found["owners"]["lanes"]}
    names = found["owners"]["members"]
    assert [names[span[2]] for span in lanes[3]] == [a, b]
    assert lanes[3][0][1] is not None
    assert (lanes[3][1][1], lanes[4]) == (None, [])
    assert found["changes"][0]["gained"] == "t 5"
    assert found["settings"]["strategy"] == "sticky"


def test_members_and_topics_are_searched_and_cut_into_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    world, shown = joined_later()
    found = document(shown, "/page/group", f"name={GROUP}&member=b-&topic=nothing")
    assert [one["member"] for one in found["roster"]["members"]] == [sorted(world.owned())[1]]
    assert (found["roster"]["matching"], found["owners"]["lanes"], found["owners"]["matching"]) == (1, [], 0)
    monkeypatch.setattr("zkrebalancer.coordinator.pages.group_view.LANES_PER_PAGE", 3)
    second = document(shown, "/page/group", f"name={GROUP}&lanes=2")["owners"]
    assert ([lane["partition"] for lane in second["lanes"]], second["pages"]) == ([3], 2)


@pytest.mark.parametrize(
    "query", ["name=g&lanes=x", "name=g&lanes=-1", "name=g&members=99999999999999", "name=g&page="]
)
def test_odd_pages_are_the_nearest_that_exists(query: str) -> None:
    _world, shown = joined_later()
    found = document(shown, "/page/group", query)
    assert (found["owners"]["page"], found["roster"]["page"]) == (1, 1)


def test_a_group_that_does_not_exist_is_missing() -> None:
    _world, shown = joined_later()
    assert document(shown, "/page/group", "name=nobody")["missing"] == "nobody"
    assert document(shown, "/page/group", "&" * 100)["missing"] == ""


def test_a_standby_knows_the_leader_and_no_group() -> None:
    world = world_with(GroupSettings(), "a")
    standby = world.add_coordinator()
    world.pass_time(1_000)
    leader = CoordinatorAddress(1, "b1", 3, "b1:8080", "17")
    shown = site_of(world, standby, {paths.COORDINATOR: encode_coordinator(leader)})
    for path in ("/page/groups", "/page/group"):
        found = document(shown, path, f"name={GROUP}")
        assert (found["coordinator"]["leads"], found["leader"]["http"]) == (False, "b1:8080")
        assert "groups" not in found
        assert "roster" not in found


def test_without_a_leader_none_is_named() -> None:
    world = world_with(GroupSettings(), "a")
    standby = world.add_coordinator()
    found = document(site_of(world, standby, {}), "/page/groups")
    assert (found["coordinator"]["leads"], found["leader"]) == (False, None)


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    _world, shown = joined_later()
    for path in ("/", "/page/app.js", "/page/style.css", "/page/groups", "/page/unknown", "/page/live/groups"):
        answer = shown(path, "")
        assert isinstance(answer, Answer | Stream)
        headers = dict(answer.headers)
        assert headers["Content-Security-Policy"].startswith("script-src 'self';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert shown("/liveness", "") is None
    assert shown("/page/../site.py", "") == Answer(
        "404 Not Found", "application/json", b'{"error":"unknown path"}', site.HEADERS
    )


def test_files_of_the_page_use_nothing_from_elsewhere_and_nothing_inline() -> None:
    """Add a font from another host, or `onclick=` to the page."""
    for file in site.STATIC.iterdir():
        text = file.read_text()
        addresses = {word for word in ("http://", "https://", "//cdn", "@import", "innerHTML", "eval(") if word in text}
        allowed = {
            "icon.svg": {"http://"},
            "dom.js": {"http://"},
            "elsewhere.js": {"http://"},
        }  # SVG's name; the leader
        assert addresses <= allowed.get(file.name, set()), file
        if file.suffix == ".html":
            assert "style=" not in text
            assert " on" not in text.replace(" on this", "")


# Live -----------------------------------------------------------------------------------------------------------------


def test_a_document_is_sent_again_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Streams._changes`, send it every time."""
    monkeypatch.setattr(live, "LOOK_INTERVAL_S", 0)
    documents = iter([b"1", b"1", b"2"])
    stream = Streams().follow(lambda: next(documents))
    begin = next(stream)
    assert begin.startswith(b"retry: 2000\n\nevent: time\ndata: 1")
    assert [next(stream), next(stream)] == [b"data: 1\n\n", b"data: 2\n\n"]


def test_a_quiet_stream_shows_that_it_lives_and_ends_some_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_INTERVAL_S", 0)
    monkeypatch.setattr(live, "PING_INTERVAL_S", 0)
    stream = Streams().follow(lambda: b"1")
    assert [next(stream) for _ in range(3)][1:] == [b"data: 1\n\n", live.PING]
    monkeypatch.setattr(live, "MAX_STREAM_S", 0)
    assert list(Streams().follow(lambda: b"1"))[1:] == []


def test_only_so_many_follow_and_a_place_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Streams.follow`, do not count down."""
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    _world, shown = joined_later()
    first = shown("/page/live/groups", "")
    assert isinstance(first, Stream)
    pieces: Iterator[bytes] = first.pieces
    next(pieces)
    refused = shown("/page/live/groups", "")
    assert isinstance(refused, Answer)
    assert refused.status == "503 Service Unavailable"
    assert document(shown, "/page/groups")["totals"]["groups"] == 1
    pieces.close()  # type: ignore[attr-defined]  # a generator, which the server closes
    assert isinstance(shown("/page/live/groups", ""), Stream)


def test_a_followed_group_is_described_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "SETTLING_US", 0)
    world, shown = joined_later()
    monkeypatch.setattr(live, "LOOK_INTERVAL_S", 0)
    made: list[str] = []
    describe = shown._group_document

    def count(name: str, role: Document, parts: Parts) -> bytes:
        made.append(name)
        return describe(name, role, parts)

    monkeypatch.setattr(shown, "_group_document", count)
    make = shown._group({"name": GROUP})
    assert make() == make()
    assert made == [GROUP]
    world.add_agent("c")
    world.pass_time(1_000)
    assert json.loads(make())["members"] == 3
    assert made == [GROUP, GROUP]


def test_a_followed_group_is_described_again_when_its_lag_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Site._key`, leave the lag out."""
    monkeypatch.setattr(site, "SETTLING_US", 0)
    _world, shown = joined_later()
    lines = ["slo.lag_s=30: 1 s"]
    monkeypatch.setattr(shown, "_lag_line", lambda _group: lines[-1])
    make = shown._group({"name": GROUP})
    assert json.loads(make())["levels"] == ["slo.lag_s=30: 1 s"]
    lines.append("slo.lag_s=30: 2 s")
    assert json.loads(make())["levels"] == ["slo.lag_s=30: 2 s"]


def test_a_plan_that_waits_for_an_operator_is_an_obstacle_on_the_page() -> None:
    """In `group_view._published`, leave it out."""
    world = world_with(GroupSettings(approve_moves_above=0), "a")
    world.add_agent("b")
    world.pass_time(3_000)
    found = document(site_of(world, world.leader()), "/page/group", f"name={GROUP}")
    assert (found["state"], [each["kind"] for each in found["obstacles"]]) == ("unapproved", ["unapproved"])


# Parts ----------------------------------------------------------------------------------------------------------------


def test_what_happened_last_is_kept_and_forgotten_with_the_leadership() -> None:
    recent = Recent()
    planned: dict[str, EventField] = {"mode": "eager", "member_count": 2, "partition_count": 6, "moved_count": 3}
    late = ["m"] * 9
    numbers = {"moved_count": 3, "settled_us": 5_500, "pause_us_max": 1}
    ended: dict[str, EventField] = {"outcome": "failed", "late_members": late, **numbers}
    recent.note(Emit("rebalance_planned", "g", 4, "id", planned), "member-joined", 50)
    assert (recent.planned["g"].moved, recent.planned["g"].at_ms) == (3, 50)
    recent.note(Emit("rebalance_finished", "g", 4, "id", ended), "member-joined", 60)
    (one,) = recent.ended
    assert (one.cause, one.outcome, one.settled_ms, len(one.late)) == ("member-joined", "failed", 5.5, 5)
    assert (recent.planned, recent.versions) == ({}, {"g": 2})
    recent.note(Emit("leader_elected", None, None, None, {}), "unknown", 70)
    assert (len(recent.ended), recent.versions) == (0, {})


def test_nodes_are_asked_for_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Asking.get`, keep what was asked for: after a few silent servers, no node can be read any more."""
    monkeypatch.setattr(asking_module, "ASK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(asking_module, "MAX_ASKED", 1)
    silent = Asking(lambda _call_id, _call: None)
    for _ in range(2):
        with pytest.raises(NoAnswerError, match=r"not answered within 0\.01 s"):
            silent.get("/x")
    monkeypatch.setattr(asking_module, "MAX_ASKED", 0)
    with pytest.raises(NoAnswerError, match="too many"):
        silent.get("/x")


def test_a_lost_connection_is_no_answer() -> None:
    calls: list[int] = []
    asking = Asking(lambda call_id, _call: calls.append(call_id))
    asked = gevent.spawn(asking.get, "/x")
    gevent.sleep(0)
    asking.answered(Replied(calls[0], Refused(Refusal.CONNECTION_LOST)))
    with pytest.raises(NoAnswerError, match="does not answer"), gevent.Timeout(WITHIN_S):
        asked.get()
    asking.answered(Replied(calls[0], Refused(Refusal.CONNECTION_LOST)))  # no longer waited for


def test_a_plan_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight_module, "MODULE", "zkrebalancer.no_such_module")
    foresight = Foresight("z:1", None)
    assert foresight.plan("g") == {"error": "no plan: the process that reads them has ended"}
    foresight.close()


def test_names_are_shown_up_to_a_limit() -> None:
    assert some(["a", "b", "c"], 2) == "a, b, 1 more"
    partitions = {("t", number): 0 for number in (0, 1, 2, 5)} | {(f"u{number}", 0): 0 for number in range(6)}
    assert ranges(partitions) == "t 0-2, 5; u0 0; u1 0; u2 0; u3 0; 2 more"
    assert cut(["a", "b", "c"], 9, 2) == (2, 2, ["c"])


def test_a_page_of_partitions_spans_topics() -> None:
    view = GroupView("g", {"a": Topic(frozenset({0, 1}), "i"), "b": Topic(frozenset({0, 3}), "i")})
    lanes = Lanes(view, ["a", "b"])
    assert (len(lanes), list(lanes[1:3]), lanes[3]) == (4, [("a", 1), ("b", 0)], ("b", 3))


def test_a_group_shows_its_levels_and_who_changed_it() -> None:
    """In `Site`, give no line of the lag; in `group_view.document`, forget who."""
    world = world_with(GroupSettings(slo={"pause_ms": 0.001, "lag_s": 30.0}), "a", "b")
    node = world.zk.nodes[paths.group(GROUP)]
    change = LastChange("eve@ops1", 5, "changed slo")
    world.zk.perform(Multi((SetContent(paths.group(GROUP), last_change.noted(node.content, change, node.version)),)))
    world.add_agent("c")
    world.pass_time(3_000)
    found = document(site_of(world, world.leader()), "/page/group", f"name={GROUP}")
    assert found["last_change"] == {"by": "eve@ops1", "at_ms": 5, "what": "changed slo"}
    pauses, lag = found["levels"]
    assert pauses.startswith("slo.pause_ms=0.001: ")
    assert " 0 of 0 rebalances" not in pauses
    assert lag.startswith("slo.lag_s=30: the lag is not known now; it was above for 0 of 0 s")


def test_a_history_that_may_not_be_read_is_a_problem() -> None:
    """In `Site._past`, show no rebalances for any refusal: the page says that none is recorded."""
    world = world_with(GroupSettings(), "a")
    shown = site_of(world, world.leader(), {paths.history(GROUP): Refusal.NO_AUTH})
    assert document(shown, "/page/group", f"name={GROUP}")["problems"] == [
        f"history: ZooKeeper refuses to show it: {Refusal.NO_AUTH.value}"
    ]


def test_a_page_with_very_many_digits_is_the_first_one() -> None:
    """In `site._page`, convert them: Python refuses to, and the reader gets an error."""
    world = world_with(GroupSettings(), "a")
    shown = site_of(world, world.leader())
    assert document(shown, "/page/groups", f"page={'9' * 5_000}")["page"] == 1


def test_a_reader_does_not_wait_for_ever_for_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Overview.look`, wait without a limit."""
    monkeypatch.setattr(overview, "COUNT_WAIT_S", 0.01)
    world = world_with(GroupSettings(), "a")
    stuck = Event()

    def never(_monitor: Monitor) -> Iterator[Figures]:
        stuck.wait(WITHIN_S)
        yield from ()

    monkeypatch.setattr(Monitor, "figures", never)
    seen = Overview(monitor_of(world.leader()))
    with gevent.Timeout(WITHIN_S / 2):
        assert seen.look() == Listed()
    stuck.set()


def test_groups_are_counted_again_after_a_while_which_is_longer_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Overview._count`, stay counting, or take the shorter of both times."""
    times_us = [0]
    monkeypatch.setattr(clock, "steady_us", lambda: times_us[0])
    world = world_with(GroupSettings(), "a")
    seen = Overview(monitor_of(world.leader()))

    def members_after(at_us: int) -> int:
        times_us[0] = at_us
        return seen.look().figures[0].members

    assert members_after(2_000_000) == 1
    world.add_agent("b")
    world.pass_time(2_000)
    assert members_after(2_999_999) == 1
    figures = Monitor.figures

    def slow(monitor: Monitor) -> Iterator[Figures]:
        times_us[0] += 500_000
        return figures(monitor)

    monkeypatch.setattr(Monitor, "figures", slow)
    assert members_after(3_000_000) == 2
    world.add_agent("c")
    world.pass_time(2_000)
    assert members_after(8_400_000) == 2
    assert members_after(8_500_000) == 3


@pytest.mark.parametrize("jump_ms", [86_400_000, -86_400_000])
def test_since_when_a_group_has_its_state_follows_a_wall_clock_that_was_corrected(
    monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    """In `Site`, compute when the clock began once, at the start."""
    world = world_with(GroupSettings(), "a")
    shown = site_of(world, world.leader())
    before = document(shown, "/page/group", f"name={GROUP}")["since_ms"]
    epoch_ms = clock.epoch_ms
    monkeypatch.setattr(clock, "epoch_ms", lambda: epoch_ms() + jump_ms)
    after = document(shown, "/page/group", f"name={GROUP}")["since_ms"]
    assert round((after - before) / jump_ms, 3) == 1
