"""Agents of a benchmark: they acknowledge every command at once."""

from __future__ import annotations

from tests.support.zk_model import ZkModel
from zkrebalancer.protocol import command, ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Done, Multi, Operation, SetContent
from zkrebalancer.protocol.ownership import OwnersRecord


def write(zk: ZkModel, *operations: Operation, session_id: int = 0) -> None:
    """Perform a transaction that has to succeed."""
    done = zk.perform(Multi(operations), session_id)
    if not isinstance(done, Done):
        raise TypeError(f"the model rejected the call: {done}")


def acknowledge(zk: ZkModel, sent: Multi) -> None:
    """Acknowledge the commands of a transaction, each in the name of its consumer."""
    for operation in sent.operations:
        if isinstance(operation, Create) and "/channel/" in operation.path:
            channel = operation.path.rpartition("/")[0]
            pending = zk.children(channel)
            if not pending:
                return  # the transaction was refused
            node = f"{channel}/{pending[-1]}"
            group, _, consumer = channel.removeprefix(paths.GROUPS + "/").split("/")
            path = paths.owners(group, consumer)
            applying = command.decode(zk.nodes[node].content)
            record = ownership.decode_owners(zk.nodes[path].content)
            new = OwnersRecord(applying.generation, applying.command_id, command.applied(record.partitions, applying))
            write(zk, Delete(node), SetContent(path, ownership.encode_owners(new)))
