"""Every transaction of the agent stays within the limit of requests, fences, acks and missing parents included."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from consumer_agent.membership.command_channel import Channel, quarantine
from consumer_agent.membership.effects import EffectQueue, Request
from consumer_agent.membership.fenced_writes import Ack, WriteLane
from consumer_agent.membership.leave import Leave
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Done, Multi, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.requests import RequestLimit

GROUP, CONSUMER = "g" * 200, "c" * 200
OWNED = {("t" * 200, number): 0 for number in range(0, 600, 2)}
LIMIT = RequestLimit(max_bytes=12_000, chroot_bytes=50)


def transaction_of(effects: EffectQueue) -> Multi:
    (request,) = [effect for effect in effects.drain() if isinstance(effect, Request)]
    assert isinstance(request.call, Multi)
    return request.call


def new_lane() -> WriteLane:
    return WriteLane(EffectQueue(), GROUP, CONSUMER, 10_000, lambda _outcome: None, request_limit=LIMIT)


@given(
    topics=st.sets(st.text("abc", min_size=1, max_size=200), min_size=1, max_size=30),
    missing=st.booleans(),
    is_ack=st.booleans(),
)
def test_offsets_and_the_ack_that_ends_them(topics: set[str], missing: bool, is_ack: bool) -> None:
    lane, effects = new_lane(), EffectQueue()
    lane._effects = effects
    lane.book.missing_topics = set(topics) if missing else set()
    offsets: dict[TopicPartition, int] = {(topic, number): 7 for topic in topics for number in (0, 1)}
    lane.begin(mock.Mock(), offsets, Ack("command-1", OwnersRecord(1, "id", OWNED)) if is_ack else None)
    written = transactions = 0
    while lane.write is not None:
        operations = transaction_of(effects).operations
        assert LIMIT.fits(operations)
        written += sum(isinstance(one, Create | SetContent) and one.content == b"7" for one in operations)
        transactions += 1
        lane.handle_reply(Done(tuple(None for _ in operations)), lane._written)
    assert written == len(offsets)
    assert transactions <= 1 + len(offsets) // 5, "not one by one"


def test_leaving_with_a_channel_that_is_too_full_leaves_its_rest_to_the_leader() -> None:
    lane, channel = new_lane(), Channel()
    channel.listed(tuple(f"command-{number:010d}" for number in range(1_000)))
    leave = Leave(lane._effects, lane, CONSUMER, ask_application=False, channel=channel, group=GROUP, reason="closed")
    leave.delete()
    operations = transaction_of(lane._effects).operations
    assert LIMIT.fits(operations)
    assert operations[:2] == (Delete(paths.ids(GROUP, CONSUMER)), Delete(paths.owners(GROUP, CONSUMER)))
    assert len(operations) > 10


def test_a_quarantine_that_is_too_full_is_emptied_step_by_step() -> None:
    existing = tuple(f"{number:064d}" for number in range(1_000))
    operations = quarantine(GROUP, "command-1", b"poison", "why", existing, LIMIT).operations
    assert LIMIT.fits(operations)
    assert isinstance(operations[-1], Create)
    assert len(operations) > 10
