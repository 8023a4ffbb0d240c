"""The pages of coordinators in a real browser: by mouse and keyboard, on a phone, in the dark, live, on a standby."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from tests.integration.commands import run
from tests.integration.scenario import PARTITIONS, Scenario
from tests.support.answers import get
from tests.support.browser import ENTER, TAB, Browser, browser, require_browser
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol import history, paths
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.history import Phases, Reason, Rebalanced, Slowest
from zkrebalancer.protocol.settings import INCREMENTAL
from zkrebalancer.protocol.shards import shard_of

OTHERS = 120  # groups without members: three pages
MARKUP = "<img src=x onerror=document.body.remove()>"
LATE = Rebalanced(
    id="a",
    epoch=1,
    generation=7,
    mode="incremental",
    requested_at_ms=1_763_000_000_000,
    reasons=(Reason("member-joined", MARKUP), Reason("settings-changed", "frozen", "eve@ops1")),
    reason_count=4,
    members=3,
    partitions=12,
    moved=4,
    outcome="failed",
    settled_ms=31_000.0,
    pause_ms_max=30_500.0,
    phases_ms=Phases(wait=20.0, plan=3.0, stop=30_000.0, start=None),
    late=("consumer-9",),
    late_count=3,
    slowest=Slowest("consumer-9", 30_000.0),
)
GROUPS = "section[aria-labelledby=groups] tbody th a"
GROUP_NAMES = f"return [...document.querySelectorAll('{GROUPS}')].map(link => link.textContent)"
WIDTHS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
SPANS = "return document.querySelectorAll('.lanes .bar').length"
SETTINGS = "return document.querySelector('dl.settings').textContent"
COUNT_STREAMS = """
    window.streams = [];
    window.EventSource = class extends EventSource { constructor(url) { super(url); streams.push(this); } };
    addEventListener("pagehide", () => { window.wasOpen = streams.some(one => one.readyState === EventSource.OPEN); });
"""
STREAMS = "return window.streams?.map(one => one.readyState === EventSource.CLOSED).join()"
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


@pytest.fixture
def sharded(scenario: Scenario) -> Iterator[Scenario]:
    """Return a scenario in which the number of shards may change; other tests have one again."""
    yield scenario
    scenario.set_shards(1)


@pytest.fixture
def window() -> Iterator[Browser]:
    require_browser()
    with browser() as found:
        yield found


def serve(scenario: Scenario) -> str:
    """Start a coordinator with pages; return their address."""
    address = f"{HOST}:{free_ports(1)[0]}"
    name = scenario.add_coordinator(environment={"ZKREBALANCER_COORDINATOR_HTTP": address})
    scenario.lab.wait_for(f"pages of {name}", lambda: get(address, "readiness")[0] == 200)
    return address


def add_groups(scenario: Scenario) -> None:
    zk = scenario.lab.zk
    nodes = [Create(paths.group(f"other-{number:03}")) for number in range(OTHERS)]
    zk.perform(Multi((*nodes, Create(paths.history("other-042"), history.extended([], [LATE])))))


def remove_groups(scenario: Scenario) -> None:
    scenario.groups |= {f"other-{number:03}": [] for number in range(OTHERS)}


def test_the_pages_in_a_browser(sharded: Scenario, window: Browser) -> None:
    """In `dom.js`, make elements from strings; in `style.css`, forget the phone; in `live.py`, send a document once."""
    scenario = sharded
    leader = serve(scenario)
    scenario.add_topic("t")
    group = scenario.add_group(INCREMENTAL, members=2)
    add_groups(scenario)
    remove_groups(scenario)
    scenario.settle(group)
    standby = serve(scenario)

    groups_are_searched_by_keyboard(window, leader, group)
    groups_have_pages(window, leader)
    a_page_that_is_left_has_no_stream(window, leader, group)
    a_group_is_live(window, leader, scenario, group)
    late_members_are_named(window, leader)
    the_page_fits(window, leader, group)
    a_standby_points_to_the_leader(window, standby, leader, group)
    both_lead_a_shard(window, (leader, standby), scenario, group)
    assert window.complaints() == []  # neither errors nor breaches of the policy


def groups_are_searched_by_keyboard(window: Browser, leader: str, group: str) -> None:
    window.open(f"http://{leader}/")
    window.wait(f"{GROUP_NAMES}.length > arguments[0]", 0)
    window.press("/", *group.upper())
    window.wait(f"{GROUP_NAMES}.join() === arguments[0]", group)
    window.press(TAB)
    window.wait("return document.activeElement.matches('button.chip')")
    window.run(f"document.querySelector('{GROUPS}').focus()")
    window.press(ENTER)
    window.wait_for_text("Owners over time")
    assert window.run("return location.search") == f"?group={group}"


def groups_have_pages(window: Browser, leader: str) -> None:
    window.open(f"http://{leader}/?search=other-")
    window.wait_for_text("page 1 of 3")
    assert len(window.run(GROUP_NAMES)) == 50
    window.click("nav.pager button:last-child")
    window.wait_for_text("page 2 of 3")
    window.wait(f"{GROUP_NAMES}.includes('other-099')")
    window.open(window.run("return location.href"))  # the address keeps search and page
    window.wait_for_text("page 2 of 3")


def a_page_that_is_left_has_no_stream(window: Browser, leader: str, group: str) -> None:
    """In `feed.js`, do nothing at `pagehide`, or at `pageshow`: after some pages, the next one came a minute later."""
    window.open(f"http://{leader}/")
    window.wait(f"{GROUP_NAMES}.length > arguments[0]", 0)
    window.run(COUNT_STREAMS)
    window.press("/", "o")
    window.wait(f"{STREAMS} === 'false'")
    window.open(f"http://{leader}/?group={group}")
    window.wait_for_text("Owners over time")
    window.run("history.back()")
    window.wait(f"{STREAMS} === 'true,false'")  # the browser has kept the page
    assert window.run("return window.wasOpen") is False


def a_group_is_live(window: Browser, leader: str, scenario: Scenario, group: str) -> None:
    window.open(f"http://{leader}/?group={group}")
    window.wait(f"{SPANS} >= arguments[0]", PARTITIONS)
    window.click("section[aria-labelledby=plan] button")
    window.wait_for_text("Nothing would move")
    before = window.run(SPANS)
    late = scenario.groups[group][0]
    scenario.lab.freeze(late)
    scenario.join(group)
    window.wait_for_text("Why it waits")
    window.wait_for_text("to acknowledge a stop")
    scenario.lab.thaw(late)
    scenario.settle(group)
    window.wait("return document.querySelector('section.warn').hidden")
    window.wait(f"{SPANS} > arguments[0]", before)
    window.wait("return document.querySelectorAll('section[aria-labelledby=members] tbody tr').length === 3")
    window.wait("return document.querySelector('section[aria-labelledby=rebalances] tbody .chip.finished')")
    frozen = run("zkrebalancer", "groups", "freeze", group, "--zookeeper", scenario.lab.cluster.zookeeper)
    assert frozen.returncode == 0
    window.wait(f"{SETTINGS}.includes(arguments[0])", f"@{platform.node()}: changed frozen from false to true")


def late_members_are_named(window: Browser, leader: str) -> None:
    window.open(f"http://{leader}/?group=other-042")
    for text in ("late: consumer-9, 2 more", "stop 30 s", "failed", "2 more", "frozen, by eve@ops1", MARKUP):
        window.wait_for_text(text)
    assert window.run("return document.images.length") == 1  # the one in the heading
    window.open(f"http://{leader}/?group=nobody")
    window.wait_for_text("There is no group nobody.")


def the_page_fits(window: Browser, leader: str, group: str) -> None:
    colours = []
    for path in ("", f"?group={group}"):
        for width, scheme in ((360, "light"), (1_280, "dark")):
            window.look(width, 800, scheme, is_phone=width < 500)
            window.open(f"http://{leader}/{path}")
            window.wait_for_text(group)
            window.wait("return document.querySelector('tbody tr')")
            wide, shown = window.run(WIDTHS)
            assert wide <= shown == width if width < 500 else wide <= shown
            colours.append(window.run(BACKGROUND))
    assert colours[0] == colours[2] != colours[1] == colours[3]


def a_standby_points_to_the_leader(window: Browser, standby: str, leader: str, group: str) -> None:
    window.open(f"http://{standby}/?group={group}")
    window.wait_for_text("This coordinator is a standby")
    host, port = leader.split(":")
    link = window.run("return document.querySelector('main a').href")
    assert link.endswith(f":{port}/?group={group}")  # the host is as the leader names itself
    window.open(link.replace(link.split("/")[2], f"{host}:{port}"))
    window.wait_for_text("Owners over time")


def both_lead_a_shard(window: Browser, hosts: tuple[str, str], scenario: Scenario, group: str) -> None:
    """In `site.py`, look for the leader of the first shard; in `elsewhere.js`, call the leader of others a standby."""
    scenario.set_shards(2)
    for host in hosts:
        window.open(f"http://{host}/")
        window.wait("return document.getElementById('role').textContent.endsWith('1 of 2 shards')")
        window.wait_for_text("Only groups of the 1 of 2 shards that this coordinator leads.")
        window.wait(f"{GROUP_NAMES}.length > arguments[0]", 0)
    names = {}
    for host in hosts:
        window.open(f"http://{host}/?search=other-00")
        window.wait(f"{GROUP_NAMES}.length > arguments[0]", 0)
        names[host] = window.run(GROUP_NAMES)
    assert sorted(name for shown in names.values() for name in shown) == [f"other-{n:03}" for n in range(10)]
    serving = next(host for host in hosts if names[host][0] in shard_with(group))
    (other,) = set(hosts) - {serving}
    window.open(f"http://{other}/?group={group}")
    window.wait_for_text("Another coordinator leads this group")
    link = window.run("return document.querySelector('main a').href")
    window.open(link.replace(link.split("/")[2], serving))
    window.wait_for_text("Owners over time")


def shard_with(group: str) -> list[str]:
    return [name for name in (f"other-{number:03}" for number in range(10)) if shard_of(name, 2) == shard_of(group, 2)]
