"""The pages in a browser around an error, a takeover, a restart, and with too many readers: what they say is so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from tests.support.browser import Browser, browser, require_browser
from tests.support.groups import world_with
from tests.support.page_site import site_of
from tests.support.world import GROUP
from zkrebalancer.coordinator.pages import live
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol.calls import Connected, Suspended
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.http_server import Pages, serve

PANELS = """return [...document.querySelectorAll('main section, main dl.facts, main details.panel')]
    .filter(part => part.offsetParent !== null).map(part => part.getAttribute('aria-labelledby') ?? part.className)"""
ALL = ["facts", "owners", "rebalances", "members", "plan", "panel"]  # the last one: settings
LIVE = "return document.getElementById('live').textContent"
OPACITY = "return getComputedStyle(document.querySelector('main')).opacity"
NOW = "return import('/page/dom.js').then(dom => dom.now())"
LATER = "const now = Date.now; Date.now = () => now() + arguments[0]"
BUTTON = "section[aria-labelledby=plan] button"
FREE = f"return !document.querySelector('{BUTTON}').disabled"


@pytest.fixture
def window() -> Iterator[Browser]:
    require_browser()
    with browser() as found:
        yield found


class Leader:
    """A coordinator that leads, with pages; ZooKeeper is in memory."""

    def __init__(self) -> None:
        self.world = world_with(GroupSettings(), "a")
        self.machine = self.world.leader().machine
        self.site = site_of(self.world, self.world.leader())
        (self._port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        pages = Pages(self.site._monitor.health, CollectorRegistry(), site=self.site)
        self._server = serve((HOST, self._port), pages)

    def stop(self) -> None:
        self._server.stop(timeout=0)

    def show(self, window: Browser, path: str) -> None:
        window.open(f"http://{HOST}:{self._port}/{path}")


@pytest.fixture
def leader() -> Iterator[Leader]:
    found = Leader()
    yield found
    found.stop()


def wait_for_panels(window: Browser, panels: list[str]) -> None:
    window.wait(f"return (() => {{{PANELS}}})().join() === arguments[0]", ",".join(panels))


def wait_for_state(window: Browser, begin: str) -> None:
    window.wait(f"{LIVE}.startsWith(arguments[0])", begin)


def assert_no_error(window: Browser) -> None:
    assert [message for message in window.complaints() if "Error:" in message or "policy" in message.lower()] == []


def test_a_group_that_comes_back_is_shown_again(window: Browser, leader: Leader) -> None:
    """In `group.js`, leave hidden what was hidden; in `elsewhere.js`, call each absent group deleted."""
    leader.show(window, f"?group={GROUP}")
    wait_for_panels(window, ALL)
    group = leader.machine.groups.pop(GROUP)
    leader.machine.quarantine.out[GROUP] = "KeyError: 'x'"
    window.wait_for_text("is not served because of an internal error, and is tried again at growing intervals: Key")
    assert window.run(PANELS) == []
    leader.machine.quarantine.out.clear()
    leader.machine.groups_to_load.become([GROUP], "retry")
    window.wait_for_text(f"has not read group {GROUP} yet")
    window.run("document.querySelector('main a').focus()")
    leader.machine.groups_to_load.become([], "")
    window.wait_for_text(f"There is no group {GROUP}. It was deleted, or never existed.")
    leader.machine.groups[GROUP] = group
    wait_for_panels(window, ALL)
    leader.site._monitor.handling(Suspended())
    window.wait_for_text("The leader is not known")
    window.wait_for_text("ZooKeeper does not answer")
    leader.site._monitor.handling(Connected(1, 6_000))
    wait_for_panels(window, ALL)
    assert_no_error(window)


def test_a_leader_that_is_not_ready_says_so(window: Browser, leader: Leader) -> None:
    """In `elsewhere.js`, show the faults of a standby only; in `groups.js`, leave out what waits or is not served."""
    leader.machine.quarantine.out["broken"] = "KeyError: 'x'"
    leader.machine.groups_to_load.become(["h", "i"], "leader-elected")
    leader.machine._is_listed = False
    leader.show(window, "")
    window.wait_for_text("topics and groups are being listed")
    window.wait_for_text("Still to be read: 2 groups")
    window.wait_for_text("tried again at growing intervals after an internal error: KeyError")
    leader.machine.groups_to_load.become([], "")
    leader.machine.quarantine.out.clear()
    leader.machine._is_listed = True
    wait_for_panels(window, ["facts", "groups", "ended"])
    window.wait("return !document.body.innerText.includes('are being listed')")
    assert_no_error(window)


def test_a_page_that_hears_nothing_says_since_when(
    window: Browser, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `feed.js`, believe in an open connection; in `dom.js`, let times go on."""
    leader.show(window, f"?group={GROUP}")
    wait_for_state(window, "live")
    leader.stop()
    wait_for_state(window, "no answer since ")
    assert float(window.run(OPACITY)) < 1
    assert window.run(NOW) == window.run(NOW)
    leader.start()
    wait_for_state(window, "live")
    assert window.run(OPACITY) == "1"

    with monkeypatch.context() as patch:  # as a host without power, which ends no connection
        patch.setattr(live, "LOOK_INTERVAL_S", 1_000_000)
        window.run(LATER, 7_000)
        wait_for_state(window, "no answer since ")
    window.run(LATER, 21_000)
    wait_for_state(window, "live")

    with monkeypatch.context() as patch:  # as one of a later version
        patch.setattr(leader.site, "_group_document", lambda *_: b'{"coordinator":{"leads":true,"faults":[]}}')
        leader.machine.groups[GROUP].story.since_us += 1
        wait_for_state(window, "load this page anew")
    leader.machine.groups[GROUP].story.since_us += 1
    wait_for_state(window, "live")


def test_a_page_that_finds_no_place_says_so(window: Browser, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `plan.js`, ask by a feed: the page seems to be lost, and its button stays grey."""
    leader.show(window, f"?group={GROUP}")
    wait_for_state(window, "live")
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    window.click(BUTTON)
    window.wait_for_text("No plan: too many readers; ask again later.")
    assert window.run(FREE)
    wait_for_state(window, "live")
    monkeypatch.setattr(live, "MAX_STREAMS", 0)
    leader.show(window, f"?group={GROUP}")
    wait_for_state(window, "updated every 5 s")
    wait_for_panels(window, ALL)
    assert_no_error(window)
