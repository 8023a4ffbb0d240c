"""A consumer of a central group, as a region sees it: what it holds is what its callbacks have announced."""

from __future__ import annotations

from collections.abc import Mapping

from consumer_agent.consumer import Consumer
from consumer_agent.errors import CommitFailedError, CommitTimeoutError, ConsumerStateError
from consumer_agent.records import Batch
from consumer_agent.runtime.notices import Tell
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.documents import UNKNOWN

STORE_TIMEOUT_S = 5.0


def missed(consumer: Consumer, held: Mapping[TopicPartition, int]) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Return partitions that are held in these generations and were given up or assigned anew, and those to hold."""
    shared = consumer._frontend.shared  # noqa: SLF001  # both are parts of one API
    with shared.lock:
        generations = shared.buffer.generations()
        known = {tp: generation for tp, generation in generations.items() if shared.is_known(tp)}
    gone = sorted(tp for tp, generation in held.items() if known.get(tp) != generation)
    return gone, sorted(tp for tp, generation in known.items() if held.get(tp) != generation)


class CentralSource:
    """Reads a consumer's batches."""

    drop = None  # a consumer that is garbage ends by itself

    def __init__(self, consumer: Consumer) -> None:
        """Start without partitions; `hooks` are called within the consumer's polls."""
        self._consumer = consumer
        self._frontend = consumer._frontend  # noqa: SLF001  # both are parts of one API
        self._held: dict[TopicPartition, int] = {}  # with their generations
        self._identities: dict[str, str] = {}  # of topics
        self._batch = Batch()
        self.has_lost = self.was_revoked = False
        self.rebalances = 0
        self.arrived: set[TopicPartition] = set()  # none ever: each begins where its last owner has ended
        self.hooks = {Tell.ASSIGNED: self._assigned, Tell.REVOKE: self._revoked, Tell.LOST: self._lost}

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        origins, generations = self._frontend.shared.origins, self._consumer.generation()
        self._identities.update({tp[0]: origins[tp].identity for tp in partitions if tp in origins})
        self.rebalances += 1
        self._held |= {tp: generations[tp] for tp in partitions if tp in generations}  # else `on_lost` follows

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        if not self._batch.by_partition().keys().isdisjoint(partitions):
            self.has_lost = True  # the application still works on them: the next owner begins before these records
        self._forget(partitions)
        self.rebalances += 1

    def _lost(self, partitions: list[TopicPartition]) -> None:
        self.has_lost = True
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)

    def catch_up(self) -> None:
        """Do what a signal's exception has cut off: a callback that has begun is not called again."""
        gone, new = missed(self._consumer, self._held)
        if gone:  # revoked or lost: to reset is right for both
            self._lost(gone)
        if new:
            self._assigned(new)

    @property
    def consumer(self) -> str | None:
        """The consumer's registration."""
        return self._frontend._telemetry.member or None  # noqa: SLF001

    @property
    def has_given_up(self) -> bool:
        """Whether partitions were lost since the flag was last taken back."""
        return self.has_lost

    def held(self) -> dict[TopicPartition, int]:
        """Return the partitions of the last callbacks, with the next offsets to return."""
        if not self._held:
            return {}
        positions = self._consumer.position()
        return {tp: positions.get(tp, UNKNOWN) for tp in self._held}

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets."""
        known = {tp: offset for tp, offset in positions.items() if tp in self._held}
        if known:
            self._consumer.seek(known)
            self._batch = Batch()

    def store(self) -> bool:
        """Store where held partitions continue: their next owners begin there, and not at a checkpoint."""
        positions = {tp: offset for tp, offset in self.held().items() if offset != UNKNOWN}
        try:
            if positions:
                self._consumer.commit(positions, timeout_s=STORE_TIMEOUT_S)
        except (CommitFailedError, CommitTimeoutError, ConsumerStateError):  # ZooKeeper is away, or they are lost
            return False
        return True

    def identity(self, topic: str) -> str:
        """Return the names of a topic's incarnation."""
        return self._identities.get(topic, "")

    def poll(self, timeout_s: float) -> Batch:
        """Return records."""
        self._batch = self._consumer.poll(timeout_s)
        return self._batch

    def poll_nothing(self, timeout_s: float) -> None:
        """Run callbacks."""
        self._consumer.poll(timeout_s, max_records=0)

    def give_back(self) -> None:
        """Return the last batch again."""
        self.seek(self.first_offsets(self._batch))

    def first_offsets(self, batch: Batch) -> dict[TopicPartition, int]:
        """Return the first offset of each partition in a batch."""
        return {partition: records[0].offset for partition, records in batch.by_partition().items()}

    def finish(self) -> None:
        """Mark the last batch as finished."""
        if self._batch:
            ends = {tp: records[-1].offset + 1 for tp, records in self._batch.by_partition().items()}
            self._consumer.finish(ends)
            self._batch = Batch()  # last: a signal's handler may raise at any point

    def place(self, positions: Mapping[TopicPartition, int]) -> None:
        """Do nothing: no partition arrives without its place."""

    def drained(self) -> None:
        """Do nothing: the consumer commits by itself."""

    def close(self, *, is_clean: bool) -> None:
        """Leave the group."""
        if not is_clean:
            self._batch = Batch()
        self.finish()
        self._consumer.close()
