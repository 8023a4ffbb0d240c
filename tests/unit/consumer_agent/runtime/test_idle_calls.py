"""An agent at rest makes few calls: it is woken into cold caches, where each function that it passes costs some µs."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from unittest import mock

import pytest
from gevent.event import Event as Flag

from consumer_agent.runtime import machine_thread as machine_threads
from consumer_agent.runtime.clock import now_ms
from tests.unit.consumer_agent.membership.driver import LIST_CHANNEL, RENEWAL, Driver
from tests.unit.consumer_agent.runtime.interrupts import Setting
from zkrebalancer.protocol.calls import Call, Children, Done, Replied, Reply
from zkrebalancer.runtime.zk import ZkClient

MAX_POLL_CALLS = 57
MAX_ROUND_CALLS = 121  # of a renewal and its list, without ZooKeeper's client
MAX_REQUEST_CALLS = 42  # of ZooKeeper's client, until both requests are with kazoo


def calls_of(call: Callable[[], object]) -> Counter[str]:
    """Return the Python functions that this thread enters, and how often."""
    entered: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    gc.disable()  # what other tests have left would count
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return entered


def test_an_empty_poll_makes_few_calls() -> None:
    """In `steps.poll`, look again at its end although nothing was notified."""
    setting = Setting()
    setting.read_all()
    lock = setting.fetcher._in_client
    with ThreadPoolExecutor(1) as fetcher:  # at rest, it is in a poll of the client
        fetcher.submit(lock.acquire).result()
        setting.consumer.poll(0.01)
        entered = calls_of(lambda: setting.consumer.poll(0.01))
        fetcher.submit(lock.release).result()
    assert entered["Frontend.next"] == 1
    assert entered.total() <= MAX_POLL_CALLS, entered


def test_a_renewal_makes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._round`, look after the fetcher each time, or in `Member`, build the renewal each time."""
    setting, driver, requested = Setting(), Driver(), list[Call]()
    replies: list[Reply] = [Done(), Children(())]
    driver.now_ms = now_ms()
    driver.register()
    driver.own({("t", 0): 5})
    thread = setting.frontend.machine_thread
    assert thread is not None
    monkeypatch.setattr(thread, "_machine", driver.machine)
    monkeypatch.setattr(thread, "_flag", Flag(), raising=False)
    client = mock.Mock(spec=ZkClient, request=lambda _id, call: requested.append(call))
    monkeypatch.setattr(thread, "_client", client)
    assert driver.machine.member is not None
    at_ms = driver.machine.member.next_renewal_ms
    monkeypatch.setattr(machine_threads, "now_ms", lambda: at_ms)

    def renew() -> None:
        thread._round()
        for call_id, reply in zip(list(driver.machine._effects.waiting), replies, strict=True):
            thread._events.append(Replied(call_id, reply))
            thread._round()

    entered = calls_of(renew)
    assert requested == [RENEWAL, LIST_CHANNEL]
    assert entered["MachineThread._round"] == 3
    assert entered["WatchedFetcher.look_after"] == 1
    assert driver.machine.member.renewal_sent_ms is None
    assert entered.total() <= MAX_ROUND_CALLS, entered


def test_the_requests_of_a_renewal_make_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `zk_wire.transaction`, let kazoo build the transaction."""
    client, sent = ZkClient("z:1/chroot", 10_000, lambda _event: None, reads_together=True), list[object]()
    monkeypatch.setattr(client, "_usable", True)
    monkeypatch.setattr(client._kazoo, "_call", lambda request, _answer: sent.append(request))

    def request() -> None:
        client.request(1, RENEWAL)
        client.request(2, LIST_CHANNEL)
        client._reads._planned()

    entered = calls_of(request)
    assert [type(one).__name__ for one in sent] == ["Transaction", "GetChildren"]
    assert entered.total() <= MAX_REQUEST_CALLS, entered
