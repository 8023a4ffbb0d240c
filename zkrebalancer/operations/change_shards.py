"""Changes the number of shards of groups, also while coordinators lead them.

One transaction takes away what former leaders hold and makes the nodes of the new ones. It raises the epoch of every
former shard, so that no former leader can write; elections check the version of `/consumers/shards`, so that a
coordinator that still has the former number cannot win. A node whose number cannot be read is mended in the same way,
with every shard that has nodes as a former one. While there are several shards, a persistent node with a
child stands in place of the only leader's, so that no coordinator of a former release can lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zkrebalancer.operations.nodes import create_missing, exists, names_below
from zkrebalancer.protocol import cluster_nodes, paths, shards
from zkrebalancer.protocol.calls import (
    ABSENT,
    CHANGED,
    Content,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Refusal,
    Refused,
    SetContent,
    Sync,
)
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress
from zkrebalancer.protocol.errors import NewerVersionError, NodeContentError, RebalancerError
from zkrebalancer.protocol.shards import BARRIER, MAX_SHARDS, WHOLE, Number, Shard
from zkrebalancer.runtime.zk import BlockingZk

MAX_TRIES = 20  # an election between reading and writing fails a try


class ShardsChangingError(RebalancerError):
    """Elections or another change were always faster."""


class NodeInTheWayError(RebalancerError):
    """A leader's node has a node of another program below it, so it cannot be replaced."""


@dataclass(slots=True)
class Found:
    """The nodes that a change concerns, those that exist."""

    number: Number
    version: int  # of `/consumers/shards`; -1 if it is missing
    nodes: Mapping[str, Content] = field(default_factory=dict)
    epochs: Sequence[str] = ()  # paths that have been looked for
    possible: tuple[Shard, ...] | None = None  # that may have leaders, if the number cannot be read

    @property
    def former(self) -> tuple[Shard, ...]:
        """The present shards."""
        return self.number.all(self.version) if self.possible is None else self.possible

    def is_whole(self, count: int) -> bool:
        """Whether there are that many shards, and a node keeps former releases out just if there are several."""
        return self.possible is None and self.number.shards == count and (BARRIER in self.nodes) == (count > 1)

    def highest_epoch(self) -> int:
        """Return an epoch that no leader has exceeded, also of other shards whose nodes are still there."""
        epochs = [self.number.first_epoch]
        for path in self.epochs:
            node = self.nodes.get(path)
            if node is not None:
                try:
                    epochs.append(cluster_nodes.decode_counter("coordinator_epoch", node.content))
                except NodeContentError:
                    epochs.append(node.stat.modified_zxid)  # as an election does
        return max(epochs)


def change(zk: BlockingZk, count: int) -> int | None:
    """Change the number of shards; return the former one, None if it could not be read.

    Raises:
        NewerVersionError: a newer release has written `/consumers/shards`.
        ShardsChangingError: other writers were always faster; nothing is changed.
        NodeInTheWayError: another program has a node below a leader's; nothing is changed.
        ZooKeeperRefusedError: a right is missing, or the former number needs more rights than this login has.

    """
    create_missing(zk, paths.CONSUMERS, paths.GROUPS)
    for _ in range(MAX_TRIES):
        found = _read(zk, count)
        if found.is_whole(count):
            return count
        transaction = Multi(tuple(operations(found, count)))
        reply = zk.perform(transaction, CHANGED | {Refusal.NOT_EMPTY})
        if not isinstance(reply, Refused):
            return found.number.shards if found.possible is None else None
        if reply.refusal is Refusal.NOT_EMPTY and reply.index is not None:
            _refuse_foreign_nodes(zk, transaction.operations[reply.index].path)
    raise ShardsChangingError("coordinators were elected all the time; nothing is changed, try again")


def _read(zk: BlockingZk, count: int) -> Found:
    zk.perform(Sync(paths.CONSUMERS))  # the server may lag, and still have the number before
    node = zk.perform(Get(paths.SHARDS), ABSENT)
    found = Found(Number(), -1)
    if isinstance(node, Content):
        found = _decoded(zk, node)
    if found.number.shards == 1 and exists(zk, BARRIER):
        found = _unknown(zk, found.version)  # the number was removed or emptied
    former = {shard.number for shard in found.former}
    known = (WHOLE, *(_one_of_several(number) for number in sorted(former | set(range(count)))))
    wanted = [paths.SHARD_HOSTS, BARRIER]
    for shard in known:
        wanted += [shard.coordinator, shard.epoch, paths.shard(shard.number)]
    replies = zk.perform_all([Get(path) for path in wanted], ABSENT)
    found.epochs = [shard.epoch for shard in known]
    found.nodes = {path: reply for path, reply in zip(wanted, replies, strict=True) if isinstance(reply, Content)}
    return found


def _decoded(zk: BlockingZk, node: Content) -> Found:
    try:
        return Found(shards.decode_number(node.content), node.stat.version)
    except NewerVersionError:
        raise
    except NodeContentError:
        return _unknown(zk, node.stat.version)


def _unknown(zk: BlockingZk, version: int) -> Found:
    known = {str(number): number for number in range(MAX_SHARDS)}
    below = sorted(known[name] for name in names_below(zk, paths.SHARDS) if name in known)
    return Found(Number(), version, possible=(WHOLE, *map(_one_of_several, below)))


def _one_of_several(number: int) -> Shard:
    return Shard(number, count=2)  # the paths are the same with any number


def _refuse_foreign_nodes(zk: BlockingZk, path: str) -> None:
    """Raise NodeInTheWayError if nodes below this one are not ours; otherwise, the next try may succeed."""
    if path == paths.COORDINATOR and exists(zk, paths.RESTORE):
        raise NodeInTheWayError("a restore is not complete: repeat it first, or see `restore --accept-partial`")
    foreign = [name for name in names_below(zk, path) if f"{path}/{name}" != BARRIER]
    if foreign:
        raise NodeInTheWayError(f"{path}/{foreign[0]} is in the way: delete it first; nothing is changed")


def operations(found: Found, count: int) -> Iterator[Operation]:
    """Yield the transaction that changes the number of shards. Pure."""
    epoch = found.highest_epoch()
    number = Number(count, epoch)
    content = shards.encode_number(number)
    yield Create(paths.SHARDS, content) if found.version < 0 else SetContent(paths.SHARDS, content, found.version)
    if paths.SHARD_HOSTS not in found.nodes:
        yield Create(paths.SHARD_HOSTS)
    yield from _without_leaders(found)
    if count > 1:
        yield from _with_shards(found, number)
    yield from _raised(found, number)


def _without_leaders(found: Found) -> Iterator[Operation]:
    leading = dict.fromkeys([BARRIER, WHOLE.coordinator, *(shard.coordinator for shard in found.former)])
    yield from (Delete(path) for path in leading if path in found.nodes)


def _with_shards(found: Found, number: Number) -> Iterator[Operation]:
    address = CoordinatorAddress(NOBODY, f"{number.shards} shards, see {paths.SHARDS}", number.first_epoch, None, "0")
    yield Create(paths.COORDINATOR, cluster_nodes.encode_coordinator(address))
    yield Create(BARRIER)
    yield from (Create(path) for path in _folders(number) if path not in found.nodes)


def _folders(number: Number) -> list[str]:
    """Return the nodes above those of shards; the only shard of all groups has none."""
    return [paths.shard(shard.number) for shard in number.all(-1)] if number.shards > 1 else []


def _raised(found: Found, number: Number) -> Iterator[Operation]:
    """Give all shards the same epoch; its new version makes every transaction of a former leader fail.

    A former shard's epoch that is missing is created, so that a leader who was elected since then makes this fail.
    """
    counter = cluster_nodes.encode_counter(number.first_epoch)
    present = {*found.nodes, paths.CONSUMERS, *_folders(number)}
    future = [shard.epoch for shard in number.all(-1)]
    for path in dict.fromkeys([*(shard.epoch for shard in found.former), *future]):
        node = found.nodes.get(path)
        if node is not None:
            yield SetContent(path, counter, node.stat.version)
        elif path.rpartition("/")[0] in present:
            yield Create(path, counter)
