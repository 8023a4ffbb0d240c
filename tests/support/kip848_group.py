"""KIP-848 clients in short form, for the group coordinator of tests."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tests.support.group_coordinator import GROUP, REBALANCE_MS, Coordinator
from zkrebalancer.group_protocol.answers import (
    ConsumerGroupDescribeAnswer,
    ConsumerGroupHeartbeatAnswer,
    DescribedConsumerGroup,
)
from zkrebalancer.group_protocol.effects import TopicsRead
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.topics import Topic


def topic_id(number: int) -> UUID:
    return UUID(int=number)


T = topic_id(1)  # of the topic "t"


def topics(counts: dict[str, int], first_id: int = 1) -> TopicsRead:
    """Return topics with these numbers of partitions; ids are given in order."""
    return TopicsRead({name: Topic(topic_id(first_id + at), count) for at, (name, count) in enumerate(counts.items())})


def coordinator_with(counts: dict[str, int], settings: GroupProtocolSettings | None = None) -> Coordinator:
    coordinator = Coordinator(settings)
    coordinator.topics_read = topics(counts)
    coordinator.step(coordinator.topics_read)
    return coordinator


class Client:
    """A KIP-848 client: reports what it owns, and gives up revoked partitions at once, unless `holds_on` is set."""

    def __init__(
        self, coordinator: Coordinator, name: str, topic_names: Iterable[str] = ("t",), **settings: str | None
    ) -> None:
        self.coordinator = coordinator
        self.name = name
        self.topic_names = tuple(topic_names)
        self.instance_id = settings.get("instance_id")
        self.regex = settings.get("regex")
        self.assignor = settings.get("assignor")
        self.epoch = 0
        self.owned: frozenset[tuple[UUID, int]] = frozenset()
        self.wanted: frozenset[tuple[UUID, int]] = frozenset()
        self.holds_on = False
        self.is_terse = False
        self.interval_ms = 0
        self.ticket = 0

    def send(self, epoch: int | None = None) -> int:
        """Send a heartbeat: a full one to join; later one without the subscription and, if `is_terse`, partitions."""
        epoch = self.epoch if epoch is None else epoch
        is_joining = epoch == 0
        by_topic: dict[UUID, list[int]] = {}
        for found, number in sorted(self.owned):
            by_topic.setdefault(found, []).append(number)
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            self.name,
            epoch,
            self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if is_joining else -1,
            subscribed_topic_names=self.topic_names if is_joining else None,
            subscribed_topic_regex=self.regex if is_joining else None,
            server_assignor=self.assignor,
            topic_partitions=None
            if self.is_terse and not is_joining
            else tuple(TopicPartitions(found, tuple(numbers)) for found, numbers in by_topic.items() if not is_joining),
        )
        self.ticket = self.coordinator.send(request, 1)
        return self.ticket

    def beat(self, epoch: int | None = None) -> ErrorCode:
        """Send a heartbeat that is answered at once, and handle the answer."""
        self.send(epoch)
        return self.receive()

    def act(self) -> None:
        """Do what a client does next, as `ClassicConsumer.act`."""
        self.beat()

    def receive(self) -> ErrorCode:
        """Handle the answer to the last heartbeat."""
        answer = self.coordinator.answer(self.ticket, ConsumerGroupHeartbeatAnswer)
        if answer.error_code in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            self.epoch, self.owned, self.wanted = 0, frozenset(), frozenset()
        elif not answer.error_code:
            self.epoch, self.interval_ms = answer.member_epoch, answer.heartbeat_interval_ms
            if answer.assignment is not None:
                self.wanted = frozenset(
                    (topic.topic_id, number)
                    for topic in answer.assignment.topic_partitions
                    for number in topic.partitions
                )
            self.owned = self.owned | self.wanted if self.holds_on else self.wanted
        return answer.error_code

    def numbers(self) -> list[int]:
        """Return the partitions of "t" that it owns."""
        return sorted(number for found, number in self.owned if found == T)


def described(coordinator: Coordinator) -> DescribedConsumerGroup:
    return coordinator.ask(ConsumerGroupDescribeRequest((GROUP,)), ConsumerGroupDescribeAnswer, 1).groups[0]


def settle(coordinator: Coordinator, *clients: Client) -> None:
    """Send heartbeats of all clients until nothing changes."""
    for _ in range(10):
        assert {client.beat() for client in clients} <= {ErrorCode.NONE}
    assert described(coordinator).group_state == "Stable"


def group_of(coordinator: Coordinator, *names: str) -> list[Client]:
    """Return the clients of a settled group."""
    clients = [Client(coordinator, name) for name in names]
    settle(coordinator, *clients)
    return clients


def newcomer_beside(coordinator: Coordinator) -> tuple[Client, Client]:
    """Return a group's only member, and one that has just joined and owns nothing: the first still owns everything."""
    (first,) = group_of(coordinator, "a")
    second = Client(coordinator, "b")
    second.beat()
    return first, second
