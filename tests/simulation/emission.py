"""Checks records and offsets: only owners return records, in order, without gaps, and commit only finished ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from consumer_agent.membership.offset_books import MARK_PREFIX
from consumer_agent.records import Record
from tests.simulation.agent import AgentHost
from tests.simulation.ensemble import Ensemble
from tests.simulation.invariants import ROGUE, is_left_behind
from tests.simulation.operators import OperatorHost
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.store import Commit
from tests.support.zk_model import Change
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Operation
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition

OWNERS_DEPTH, OFFSETS_DEPTH = 5, 6  # slashes in the path of a consumer's record, and of a partition's offset


@dataclass(slots=True)
class Interval:
    """A consumer's ownership of a partition, from the ack of the start to the ack of the stop or the session's end."""

    incarnation: str  # of the topic, by the mark of the group's offsets
    next_offset: int | None = None  # next offset after the emitted ones; None: none yet
    is_mixed: bool = False  # it got records of another incarnation, because Kafka had recreated the topic first


def has_given_up(agent: AgentHost) -> bool:
    """Whether Kafka did not answer an agent in time, and its current write continues without Kafka."""
    member = agent.machine.member
    return member is not None and member.lane.write is not None and member.lane.write.failure is not None


def _owned(ensemble: Ensemble, group: str, consumer: str) -> Collection[TopicPartition]:
    try:
        return ownership.decode_owners(ensemble.zk.nodes[paths.owners(group, consumer)].content).partitions
    except NodeContentError:
        return ()


def _is_offset(content: str) -> bool:
    return content.isdecimal() and len(content) < 20


def _offset(content: bytes) -> int:
    text = content.decode(errors="replace")
    return int(text) if _is_offset(text) else 0  # an operator wrote something else


class EmissionInvariants:
    """Follows acks and offsets in the tree, and the records that applications get."""

    def __init__(
        self,
        ensemble: Ensemble,
        is_sound: Callable[[str, TopicPartition], bool],
        life: Callable[[str], str],
        stored_life: Callable[[str, TopicPartition], str],
        agents: Callable[[], Iterable[AgentHost]],
    ) -> None:
        self.ensemble = ensemble
        self.is_sound = is_sound
        self.life = life  # the incarnation that a mark names
        self.stored_life = stored_life  # the one that a group's offsets belong to
        self.agents = agents
        self.intervals: dict[tuple[str, str], dict[TopicPartition, Interval]] = {}  # by group and consumer
        self.finished: dict[tuple[str, TopicPartition, str], int] = {}  # by group, partition, incarnation
        self.generations: dict[tuple[str, TopicPartition, str], int] = {}  # of the last emission
        self.records = 0
        self._consumers: dict[int, str] = {}  # session id -> registered consumer
        ensemble.watchers.append(self.committed)

    def committed(self, session_id: int, operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        host = self.ensemble.hosts.get(session_id)
        agent = host if isinstance(host, AgentHost) else None
        below = [change for change in changes if "/offsets/" in change.path]
        offsets = [change for change in below if change.path.count("/") == OFFSETS_DEPTH]
        for change in offsets:  # before the acks of the same transaction, which end the ownership
            if agent is not None:
                self._check_commit(agent, self._consumers.get(session_id, ""), change)
            elif isinstance(host, OperatorHost) and host.may_skip and change.after is not None:
                self._skip(change.path, _offset(change.after.content))
        for change in changes:
            if "/owners/" not in change.path or change.path.count("/") != OWNERS_DEPTH:
                continue  # also foreign nodes below a record
            if change.before is None:
                self._consumers[session_id] = change.path.rpartition("/")[2]
            elif change.after is not None:
                self._owners_changed(agent, change)
            elif agent is not None and operations:
                _, _, _, group, _, consumer = change.path.split("/")
                self.intervals.pop((group, consumer), None)  # it left; if it died, it may emit until its lease ends

    def _skip(self, path: str, offset: int) -> None:
        """Count records as processed that an operator has said to be."""
        _, _, _, group, _, topic, number = path.split("/")
        partition = topic, int(number)
        key = group, partition, self.stored_life(group, partition)
        self.finished[key] = max(self.finished.get(key, 0), offset)

    def _owners_changed(self, agent: AgentHost | None, change: Change) -> None:
        _, _, _, group, _, consumer = change.path.split("/")
        if consumer.startswith(ROGUE):
            return  # it reads nothing, whatever it claims
        try:
            owned = ownership.decode_owners(change.after.content if change.after else b"").partitions
        except NodeContentError:
            return
        intervals = self.intervals.setdefault((group, consumer), {})
        for partition in sorted(intervals.keys() - owned.keys()):
            self._check_final_offset(agent, group, partition, intervals.pop(partition))
        for partition in owned.keys() - intervals.keys():
            intervals[partition] = Interval(self.stored_life(group, partition))
            for other in self._others_that_emit(group, consumer, partition):
                raise BrokenPromiseError("emission", f"{consumer} owns {partition}, and {other.name} still emits it")

    def _check_final_offset(
        self, agent: AgentHost | None, group: str, partition: TopicPartition, interval: Interval
    ) -> None:
        """Check that nothing is read twice after a clean stop with all returned records finished."""
        if agent is None or agent.settings.auto_commit_ms is None or interval.is_mixed or has_given_up(agent):
            return
        if interval.next_offset is not None and self.is_sound(group, partition):
            stored = self._stored(agent, group, partition)
            if stored is not None and not _is_offset(stored):
                return  # an operator overwrote an offset that the consumer believes stored
            if stored is None or int(stored) != interval.next_offset:
                text = f"{partition} of {group} was stopped at {interval.next_offset}, stored is {stored or 'nothing'}"
                raise BrokenPromiseError("final offset", text)

    def _stored(self, agent: AgentHost, group: str, partition: TopicPartition) -> str | None:
        """Return the stored offset of a partition, None if there is none."""
        if agent.settings.storage.in_zookeeper:
            node = self.ensemble.zk.nodes.get(paths.offsets(group, *partition))
            return None if node is None else node.content.decode(errors="replace")
        stored = agent.brokers.offsets.get((group, partition))
        return None if stored is None else str(stored[0])

    def kafka_committed(self, host: AgentHost, commit: Commit) -> None:
        """Check an offset that arrives in Kafka's store: within its sender's lease, no other may own the partition."""
        group, partition, (offset, text) = commit.group, commit.partition, commit.after
        for other in self.ensemble.zk.children(paths.owners(group)):
            if other == commit.consumer or other.startswith(ROGUE) or is_left_behind(self.ensemble, group, other):
                continue
            if partition in _owned(self.ensemble, group, other):
                raise BrokenPromiseError("commit", f"{commit.consumer} wrote the offset of {partition} of {other}")
        interval = self.intervals.get((group, commit.consumer), {}).get(partition)
        if interval is None or interval.is_mixed or self._life(text) != interval.incarnation:
            return
        if not self.is_sound(group, partition):
            return
        if commit.before is not None and self._life(commit.before[1]) == self._life(text) and offset < commit.before[0]:
            raise BrokenPromiseError("commit", f"{commit.consumer} set {partition} back from {commit.before} in Kafka")
        if offset > self.finished.get((group, partition, interval.incarnation), 0):
            raise BrokenPromiseError("commit", f"{host.name} committed {partition} at {offset}, which is not finished")

    def _life(self, text: str) -> str:
        return self.life(text.removeprefix(MARK_PREFIX))

    def _others_that_emit(self, group: str, consumer: str, partition: TopicPartition) -> Iterable[AgentHost]:
        for other in self.agents():
            if other.settings.group != group or not other.alive or other.consumer == consumer:
                continue
            emits = other.shared.buffer.generation(partition) is not None
            if emits and other.emits_until_us() > other.clock_us():
                yield other

    def _check_commit(self, agent: AgentHost, consumer: str, change: Change) -> None:
        _, _, _, group, _, topic, number = change.path.split("/")
        partition = topic, int(number)
        interval = self.intervals.get((group, consumer), {}).get(partition)
        if interval is None:
            raise BrokenPromiseError(
                "commit", f"{consumer} of {agent.name} wrote the offset of {partition}, not its own"
            )
        if interval.is_mixed or not self.is_sound(group, partition) or change.after is None:
            return  # offsets of a deleted topic will be deleted
        offset = int(change.after.content)
        if change.before is not None and offset < _offset(change.before.content):
            raise BrokenPromiseError("commit", f"{consumer} set {partition} back from {change.before.content!r}")
        finished = self.finished.get((group, partition, interval.incarnation), 0)
        if offset > finished:
            raise BrokenPromiseError("commit", f"{consumer} committed {partition} at {offset}, finished is {finished}")

    # What applications see ------------------------------------------------------------------------------------------

    def delivered(self, agent: AgentHost, runs: list[list[Record]]) -> None:
        group, consumer = agent.settings.group, agent.consumer
        if consumer is None:
            raise BrokenPromiseError("emission", f"{agent.name} emits outside of any group")
        if agent.clock_us() >= agent.true_lease_us:
            raise BrokenPromiseError("lease", f"{consumer} emits after its lease")
        for run in runs:
            self.records += len(run)
            partition = run[0].topic, run[0].partition
            interval = self.intervals.get((group, consumer), {}).get(partition)
            if interval is None:
                raise BrokenPromiseError("emission", f"{consumer} emits {partition}, which it does not own")
            for other in self._others_that_emit(group, consumer, partition):
                raise BrokenPromiseError("emission", f"{consumer} emits {partition}, and so may {other.name}")
            self._check_run(group, consumer, partition, interval, run)

    def _check_run(
        self, group: str, consumer: str, partition: TopicPartition, interval: Interval, run: list[Record]
    ) -> None:
        if any(record.value != interval.incarnation.encode() for record in run):
            interval.is_mixed = True
        if interval.is_mixed:
            return
        key = group, partition, interval.incarnation
        text = f"{consumer} got {partition} from {run[0].offset} on"
        if interval.next_offset is None:
            if run[0].offset > self.finished.get(key, 0):
                raise BrokenPromiseError("skipped", f"{text}, finished is {self.finished.get(key, 0)}")
        elif run[0].offset != interval.next_offset:
            raise BrokenPromiseError("order", f"{text}, expected was {interval.next_offset}")
        if [record.offset for record in run] != list(range(run[0].offset, run[0].offset + len(run))):
            raise BrokenPromiseError("skipped", f"{consumer} got {partition} with holes")
        interval.next_offset = run[-1].offset + 1
        if run[0].generation < self.generations.get(key, 0):
            raise BrokenPromiseError(
                "fencing", f"{consumer} emits {partition} under an older generation than others did"
            )
        self.generations[key] = run[0].generation

    def processed(self, agent: AgentHost, runs: list[list[Record]]) -> None:
        for run in runs:
            value = run[-1].value or b""
            key = agent.settings.group, (run[-1].topic, run[-1].partition), value.decode()
            if run[0].offset <= self.finished.get(key, 0):
                self.finished[key] = max(self.finished.get(key, 0), run[-1].offset + 1)
