"""Checks the tree after every transaction; only changed parts are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation import shards
from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.ensemble import Ensemble
from tests.simulation.host import MAX_DRIFT_PPM, Host
from tests.simulation.operators import OperatorHost
from tests.simulation.plan import GROUPS
from tests.simulation.promises import BrokenPromiseError
from tests.support.zk_model import Change
from zkrebalancer.protocol import cluster_nodes, command, history, ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Operation
from zkrebalancer.protocol.command import Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord

ROGUE = "rogue-"  # prefix of the names of members with false claims
OPERATOR = 0  # the session of an operator
NEVER_US = 10**15
MAX_DIGITS = 20  # of a counter
LISTED_US = 1_000_000  # how long a command may follow from a list that lacked a topic and was itself deleted since
AWAY_US = 10_000_000  # servers lag: how long a coordinator may consider a topic deleted after it is listed again


@dataclass(slots=True)
class Consumer:
    """What the tree contains about one registered, evicted or dead consumer."""

    record: OwnersRecord | None = None  # its last readable content
    commands: dict[str, Command | None] = field(default_factory=dict)  # node name -> command, None: unreadable
    evicted: frozenset[TopicPartition] = frozenset()  # in its eviction record
    evicted_us: int = 0
    lease_us: int = 0
    is_garbled: bool = False  # another program wrote its record
    is_rogue: bool = False  # its claims are ignored: it holds only partitions that it was given
    owes_answer: bool = False  # its last command was cancelled because it did not answer
    applied: str = ""  # its last applied command: it ignores nodes of other programs with earlier names
    held: frozenset[TopicPartition] = frozenset()

    def holds(self) -> frozenset[TopicPartition]:
        held = set(self.evicted)
        if self.record is not None and not self.is_rogue:
            held.update(self.record.partitions)
            for pending in self.commands.values():
                if isinstance(pending, StartFetcher):
                    held.update(pending.partitions)
        return frozenset(held)


class TreeInvariants:
    """Follows every transaction."""

    def __init__(self, ensemble: Ensemble, is_sound: Callable[[str, TopicPartition], bool]) -> None:
        """`is_sound`: whether a partition exists and the group's offsets belong to its topic."""
        self.ensemble = ensemble
        self.is_sound = is_sound
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.holders: dict[tuple[str, TopicPartition], set[str]] = {}
        self.leaders: dict[str, tuple[int, int]] = {}  # path of an epoch -> session of the last writer, epoch
        self.garbled: set[str] = set()  # paths of epochs of other programs: the next one is only higher
        self.applied: set[str] = set()  # ids of commands
        self.doubted: set[str] = set()  # groups whose records of what was given were damaged or hidden: claims count
        self.gone_us: dict[str, int] = {}  # topic -> when its node was deleted
        self.back_us: dict[str, int] = {}  # existing topic whose node was deleted -> when the node was created again
        ensemble.watchers.append(self.committed)

    def consumer(self, group: str, name: str) -> Consumer:
        return self.consumers.setdefault((group, name), Consumer(is_rogue=name.startswith(ROGUE)))

    def committed(self, session_id: int, operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        touched: set[tuple[str, str]] = set()
        host = self.ensemble.hosts.get(session_id)
        if isinstance(host, OperatorHost):
            host, session_id = None, OPERATOR
        by_path = {change.path: change for change in changes}
        for change in changes:
            if change.path.endswith("/coordinator_epoch"):
                self._epoch_changed(change, session_id, by_path)
            elif change.path.startswith(paths.BROKER_TOPICS + "/"):
                self._topic_changed(change)
            elif change.path.startswith(paths.GROUPS + "/"):
                if isinstance(host, CoordinatorHost) and session_id != self._leader(change.path)[0]:
                    raise BrokenPromiseError("stale leader", f"{host.name} wrote {change.path}")
                self._group_changed(change, host, bool(operations), by_path, touched)
        self._check_holders(touched)

    def _leader(self, path: str) -> tuple[int, int]:
        """Return the session and the epoch of the leader of a group's shard; `path`: of one of its nodes."""
        return self.leaders.get(shards.of_group(self.ensemble, path.split("/")[3]).epoch, (OPERATOR, 0))

    def _epoch_changed(self, change: Change, session_id: int, by_path: dict[str, Change]) -> None:
        if change.after is None:
            raise BrokenPromiseError("epoch", "its node was deleted")
        before = self.leaders.get(change.path, (OPERATOR, 0))[1]
        if session_id == OPERATOR:
            is_number = change.after.content.isdigit() and len(change.after.content) < MAX_DIGITS
            self.leaders[change.path] = OPERATOR, int(change.after.content) if is_number else before
            (self.garbled.discard if is_number else self.garbled.add)(change.path)
            return
        epoch = int(change.after.content)
        if change.before is not None:
            self._check_election(change.path, before, epoch, by_path)
        self.garbled.discard(change.path)
        self.leaders[change.path] = session_id, epoch

    def _check_election(self, path: str, before: int, epoch: int, by_path: dict[str, Change]) -> None:
        if epoch <= before if path in self.garbled else epoch != before + 1:
            raise BrokenPromiseError("epoch", f"went from {before} to {epoch}")
        if path.removesuffix("_epoch") not in by_path:
            raise BrokenPromiseError("epoch", "was raised without the leader's node")
        if path not in {shard.epoch for shard in shards.present(self.ensemble)}:
            raise BrokenPromiseError("epoch", f"{path} is of a shard that does not exist")

    def _group_changed(
        self,
        change: Change,
        host: Host | None,
        is_written: bool,
        by_path: dict[str, Change],
        touched: set[tuple[str, str]],
    ) -> None:
        group, kind, *rest = [*change.path.removeprefix(paths.GROUPS + "/").split("/"), ""][:4]
        name = rest[0] if rest else ""
        if kind in {"given", "generation"} and host is None and not _is_rewritten(change):
            self.doubted.add(group)
        if kind == "generation" and change.before is not None:
            self._generation_changed(change, group, host)
        elif kind == "owners" and name:
            touched.add((group, name))
            self._owners_changed(change, (group, name), host, is_written, by_path)
            self._check_given(group, name)
        elif kind == "given" and name:
            self._check_given(group, name)
        elif kind == "channel" and name and not rest[1]:
            has_record = paths.owners(group, name) in self.ensemble.zk.nodes and not self._is_undeletable(group, name)
            if change.after is None and isinstance(host, CoordinatorHost) and is_written and has_record:
                raise BrokenPromiseError("sweep", f"the channel of {name}, a living member, was removed")
        elif kind == "channel" and name and rest[1] != paths.PROBE:
            touched.add((group, name))
            self._command_changed(change, (group, name), host, by_path)
        elif kind == "history" and isinstance(host, CoordinatorHost):
            _history_changed(change)
        elif kind == "evicted" and name:
            touched.add((group, name))
            self._eviction_changed(change, (group, name), host, by_path)

    def _is_undeletable(self, group: str, name: str) -> bool:
        """Whether another program has made nodes below the record of a consumer, so that no session owns it."""
        return bool(self.ensemble.zk.children(paths.owners(group, name)))

    def _generation_changed(self, change: Change, group: str, host: Host | None) -> None:
        content = change.before.content if change.before else b""
        before = int(content) if content.isdigit() and len(content) < 20 else 0
        if host is not None and (change.after is None or int(change.after.content) <= before):
            raise BrokenPromiseError("generation", f"of {group} fell from {before}")

    # Owners ---------------------------------------------------------------------------------------------------------

    def _owners_changed(
        self, change: Change, key: tuple[str, str], host: Host | None, is_written: bool, by_path: dict[str, Change]
    ) -> None:
        known = self.consumer(*key)
        if change.after is None:
            if isinstance(host, CoordinatorHost) and is_written:
                self._check_eviction(key, known, by_path)
            known.record = None
            return
        if host is None and is_left_behind(self.ensemble, *key):
            return
        try:
            record = ownership.decode_owners(change.after.content)
        except NodeContentError:
            known.is_garbled = True  # an operator wrote it; the consumer continues with the content it knows
            return
        known.is_garbled = False
        if change.before is None:
            if record.partitions and not known.is_rogue and host is not None:
                raise BrokenPromiseError("registration", f"{key} begins with partitions")
        elif host is not None and not known.is_rogue:
            self._check_ack(key, known, record, by_path)
        known.record = record

    def _check_eviction(self, key: tuple[str, str], known: Consumer, by_path: dict[str, Change]) -> None:
        created = by_path.get(paths.evicted(*key))
        if created is None or created.after is None:
            raise BrokenPromiseError("eviction", f"{key} lost its record without an eviction record")
        channel = paths.channel(*key) + "/"
        has_answered = not known.owes_answer and not any(path.startswith(channel) for path in by_path)
        nodes = (by_path[path].before for path in (paths.ids(*key), paths.owners(*key)) if path in by_path)
        has_session = paths.owners(*key) in by_path and all(node is not None and node.ephemeral_owner for node in nodes)
        is_honest = has_session and not (known.is_garbled or known.is_rogue)
        has_channel = paths.channel(*key) in by_path
        if has_answered and is_honest and has_channel and paths.ids(*key) in by_path:
            raise BrokenPromiseError("eviction", f"{key} had answered everything")
        evicted = ownership.decode_eviction(created.after.content)
        missing = {tp for tp in known.holds() if tp[0] not in evicted.topics} - evicted.partitions.keys()
        if missing:
            raise BrokenPromiseError("eviction", f"the eviction record of {key} lacks {missing}")
        if known.is_rogue and (evicted.partitions or evicted.topics) and key[0] not in self.doubted:
            raise BrokenPromiseError("eviction", f"the record of {key} names what it never got: {evicted.partitions}")

    def _check_ack(
        self, key: tuple[str, str], known: Consumer, record: OwnersRecord, by_path: dict[str, Change]
    ) -> None:
        prefix = paths.channel(*key) + "/"
        deleted = {
            path.removeprefix(prefix): change.before.content
            for path, change in by_path.items()
            if path.startswith(prefix) and change.after is None and change.before is not None
        }
        if len(deleted) != 1:
            raise BrokenPromiseError("ack", f"{key} wrote its record and deleted {sorted(deleted)}")
        ((name, content),) = deleted.items()
        done = command.decode(content)
        if done.command_id != record.command_id:
            raise BrokenPromiseError("ack", f"{key} wrote {record.command_id} and deleted {done.command_id}")
        if record.command_id in self.applied:
            raise BrokenPromiseError("ack", f"{key} applied {record.command_id} twice")
        before = known.record.partitions if known.record is not None else {}
        if dict(record.partitions) != command.applied(before, done):
            raise BrokenPromiseError("ack", f"{key} does not own what {done.option} results in")
        if any(earlier < name for earlier in known.commands):
            raise BrokenPromiseError("order", f"{key} applied {name} before an earlier command")
        self.applied.add(done.command_id)
        known.applied, known.owes_answer = name, False

    def _check_given(self, group: str, name: str) -> None:
        """Check that a member owns no more than it was given: otherwise its claim would count as forged."""
        known = self.consumers.get((group, name))
        nodes = self.ensemble.zk.nodes
        if known is None or known.record is None or known.is_rogue or known.is_garbled:
            return
        mark = nodes.get(paths.given(group))
        if mark is None or not mark.content:
            return  # another program deleted the records; without the mark, no coordinator relies on them
        record = nodes.get(paths.given(group, name))
        given = ownership.decode_given(record.content) if record is not None else frozenset()
        if not known.record.partitions.keys() <= given:
            raise BrokenPromiseError("given", f"{name} owns {known.record.partitions.keys() - given}, never given")

    # Commands -------------------------------------------------------------------------------------------------------

    def _command_changed(
        self, change: Change, key: tuple[str, str], host: Host | None, by_path: dict[str, Change]
    ) -> None:
        known = self.consumer(*key)
        name = change.path.rpartition("/")[2]
        if change.after is None:
            known.commands.pop(name, None)
            is_own = host is not None and not isinstance(host, CoordinatorHost)
            known.owes_answer = not is_own
            if is_own and paths.owners(*key) not in by_path:
                raise BrokenPromiseError("deleted command", f"{key} deleted {name} without an effect")
            return
        if name <= known.applied:
            return
        try:
            sent = command.decode(change.after.content)
        except NodeContentError:
            known.commands[name] = None
            return
        if _is_rewritten(change):
            return
        if any(pending is not None for pending in known.commands.values()):
            raise BrokenPromiseError("second command", f"{key} has not answered the one before {name}")
        known.commands[name] = sent
        self._check_settings(key, sent)
        if sent.coordinator_epoch != self._leader(change.path)[1]:
            raise BrokenPromiseError("stale command", f"{key} was sent {name} of epoch {sent.coordinator_epoch}")
        node = self.ensemble.zk.nodes.get(paths.generation(key[0]))
        stored = node.content if node is not None else b""  # another program has deleted it
        if stored.isdigit() and sent.generation > cluster_nodes.decode_counter("generation", stored):
            raise BrokenPromiseError("generation", f"{key} was sent {name} of a generation that is not stored")

    def _check_settings(self, key: tuple[str, str], sent: Command) -> None:
        """Check a command against the group's settings at the moment of sending."""
        try:
            group = settings.decode(self.ensemble.zk.nodes[paths.group(key[0])].content)
        except NodeContentError:
            return  # the former settings stay in force
        if isinstance(sent, StopFetcher):
            moving = {tp for tp in sent.partitions or () if self.is_sound(key[0], tp) and not self._was_away(tp[0])}
            if group.frozen and (sent.partitions is None or moving):
                raise BrokenPromiseError("frozen", f"{key} was told to stop {moving or 'everything'}")
            read = {tp for tp in moving if self._is_read(key[0], tp[0])}
            if read and group.approve_moves_above == 0 and not group.approved_moves and not _is_fenced(sent):
                raise BrokenPromiseError("unapproved", f"{key} was told to stop {read}")
        elif group.starts_paused:
            raise BrokenPromiseError("starts paused", f"{key} was told to start {sorted(sent.partitions)}")
        elif group.mode == settings.EAGER and not group.frozen and group.approve_moves_above is None:
            if key[0] in self.ensemble.refusing_groups:
                return  # one member that may not be read, or evicted, does not stop the others
            for other, consumer in self.consumers.items():
                stops = [pending for pending in consumer.commands.values() if _is_stop_of_all(pending)]
                if other[0] == key[0] and consumer.record is not None and consumer.record.partitions and stops:
                    raise BrokenPromiseError("barrier", f"{key} was told to start while {other} has not stopped")

    def _topic_changed(self, change: Change) -> None:
        topic = change.path.rpartition("/")[2]
        if change.after is None and any(self.is_sound(group, (topic, 0)) for group in GROUPS):
            self.gone_us[topic], self.back_us[topic] = self.ensemble.schedule.now_us, NEVER_US
        elif change.before is None and topic in self.back_us:
            self.back_us[topic] = self.ensemble.schedule.now_us

    def _is_read(self, group: str, topic: str) -> bool:
        """Whether a member may subscribe to a topic; to give up what nobody reads needs no approval."""
        zk, path = self.ensemble.zk, paths.ids(group)
        try:
            known = [registration.decode(zk.nodes[f"{path}/{name}"].content) for name in zk.children(path)]
        except NodeContentError:
            return True
        return any(topic in one.subscription for one in known)

    def _was_away(self, topic: str) -> bool:
        """Whether a list of topics may have lacked the topic because its node was deleted."""
        nodes, now_us = self.ensemble.zk.nodes, self.ensemble.schedule.now_us
        if paths.topic(topic) not in nodes:
            return paths.BROKER_TOPICS in nodes or now_us < self.gone_us.get(topic, 0) + LISTED_US
        return topic in self.back_us and now_us < self.back_us[topic] + AWAY_US

    # Eviction records, holders --------------------------------------------------------------------------------------

    def _eviction_changed(
        self, change: Change, key: tuple[str, str], host: Host | None, by_path: dict[str, Change]
    ) -> None:
        known = self.consumer(*key)
        if isinstance(host, CoordinatorHost) and change.after is not None and self._is_undeletable(*key):
            self._check_eviction(key, known, by_path)
            known.record = None  # of no session: it holds no more than the eviction record
        now_us = self.ensemble.schedule.now_us
        if _is_rewritten(change):
            return
        if change.after is not None:
            try:
                record = ownership.decode_eviction(change.after.content)
            except NodeContentError:
                return  # another program's
            known.evicted = frozenset(record.partitions)
            known.evicted_us, known.lease_us = now_us, record.lease_ms * 1_000
            return
        known.evicted = frozenset()
        if (
            host is not None
            and now_us - known.evicted_us < known.lease_us - known.lease_us * 2 * MAX_DRIFT_PPM // 1_000_000
        ):
            raise BrokenPromiseError("lease", f"the eviction record of {key} was removed before its lease was over")

    def _check_holders(self, touched: Iterable[tuple[str, str]]) -> None:
        gained: list[tuple[str, TopicPartition, str]] = []
        for key in sorted(touched):
            group, name = key
            known = self.consumers[key]
            before, known.held = known.held, known.holds()
            for partition in before - known.held:
                self.holders[group, partition].discard(name)
            for partition in known.held - before:
                self.holders.setdefault((group, partition), set()).add(name)
                gained.append((group, partition, name))
            if known.record is None and not known.commands and not known.evicted:
                del self.consumers[key]
        for group, partition, gainer in gained:
            held = group, partition
            claimants = {name: self.consumers[group, name] for name in self.holders[held]}
            present = [name for name, one in claimants.items() if partition not in one.evicted and not one.is_garbled]
            holders = {name for name in self.holders[held] if name in present or not self._is_lease_over(group, name)}
            # If records are damaged, two consumers are evicted as holders, one just before the other; both leases are
            # waited for.
            # Without them, forged claims cannot be recognized: the claims of an evicted rogue are in its record, too.
            is_forged = group in self.doubted and claimants[gainer].is_rogue
            if present and len(holders) > 1 and not is_forged:
                raise BrokenPromiseError("two holders", f"{held} is held by {sorted(holders)}")

    def _is_lease_over(self, group: str, name: str) -> bool:
        """Whether an eviction record that cannot be removed, for want of a right or for nodes below, holds nothing."""
        known = self.consumers[group, name]
        lease_us = known.lease_us - known.lease_us * 2 * MAX_DRIFT_PPM // 1_000_000
        is_over = self.ensemble.schedule.now_us - known.evicted_us >= lease_us
        is_refused = group in self.ensemble.refusing_groups
        return is_over and (is_refused or bool(self.ensemble.zk.children(paths.evicted(group, name))))


def is_left_behind(ensemble: Ensemble, group: str, name: str) -> bool:
    """Whether an eviction has left the record of a consumer, because another program has made nodes below it."""
    has_channel = paths.channel(group, name) in ensemble.zk.nodes
    return bool(ensemble.zk.children(paths.owners(group, name))) and not has_channel


def _is_rewritten(change: Change) -> bool:
    """Whether another program has written a node as it was."""
    return change.before is not None and change.after is not None and change.before.content == change.after.content


def _is_fenced(sent: StopFetcher) -> bool:
    return sent.cause.kind == command.INSTANCE_FENCED


def _is_stop_of_all(pending: Command | None) -> bool:
    """Whether a command is part of an eager group's barrier; the stop of a fenced member is not."""
    return isinstance(pending, StopFetcher) and pending.cause.kind != command.INSTANCE_FENCED


def _history_changed(change: Change) -> None:
    """Check that a coordinator has added rebalances to a history, and dropped only the oldest."""
    if change.after is None:
        raise BrokenPromiseError("history", f"{change.path} was deleted")
    if len(change.after.content) > history.MAX_HISTORY_BYTES:
        raise BrokenPromiseError("history", f"{change.path} has {len(change.after.content)} bytes")
    found = history.decode(change.after.content)
    keys = [one.key for one in found.rebalances]
    if found.problems or len(keys) != len(set(keys)):
        raise BrokenPromiseError("history", f"{change.path}: {found.problems or keys}")
    before = [one.key for one in _history(change.before.content if change.before else b"")]
    kept = [key for key in before if key in set(keys)]
    if kept != before[len(before) - len(kept) :] or kept != keys[: len(kept)]:
        raise BrokenPromiseError("history", f"{change.path}: {before} became {keys}")


def _history(content: bytes) -> tuple[history.Rebalanced, ...]:
    if history.is_newer(content):
        raise BrokenPromiseError("history", "a newer version was replaced")
    try:
        return history.decode(content).rebalances
    except NodeContentError:
        return ()
