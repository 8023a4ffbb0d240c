"""From a connected session to a registered consumer: the group's nodes, then its own in one multi(). Pure.

A registration whose outcome is unknown keeps its name: if the node exists and belongs to this session, it succeeded. A
static member whose instance id belongs to another live consumer does not join again, because it would fence its own
successor. While `zkrebalancer restore` replaces the tree, a consumer waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from consumer_agent.errors import FencedInstanceError, RegistrationError
from consumer_agent.membership.effects import EffectQueue, Warn
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol import registration as registrations
from zkrebalancer.protocol.calls import (
    Call,
    Children,
    Content,
    Create,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
)
from zkrebalancer.protocol.errors import ChrootMissingError, NodeContentError, RebalancerError
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.refusals import right_of
from zkrebalancer.protocol.registration import Registration

NOTHING_OWNED = OwnersRecord(generation=0, command_id=None, partitions={})
MAX_GROUP_CREATIONS = 20  # each failed try means that another consumer created the same nodes in between


@dataclass(slots=True)
class Join:
    """One attempt to register. `registered` or `error` is set when it is over."""

    effects: EffectQueue
    group: str
    consumer: str
    registration: Registration  # its session timeout is that of `connected`
    zookeeper: str  # the address, for messages
    former: str | None = None  # the name that it had in the group before
    session_id: int = 0
    connected: bool = False
    group_creations: int = 0
    ancestors: dict[str, bool] = field(default_factory=dict)  # whether each node above the group exists
    asked: Call | None = None  # the last call, to name what is refused
    is_restoring: bool = False  # as the last look has found, whose watch shows the end
    has_said_why: bool = False
    register_sent_ms: int = 0
    registered: bool = False
    lease_from_ms: int | None = None  # when the registering write was sent; None: unknown
    error: RebalancerError | None = None

    def handle_connected(self, session_id: int, session_timeout_ms: int) -> None:
        """Start, or restart after the connection broke."""
        self.connected = True
        self.session_id = session_id
        self.registration = self.registration._replace(session_timeout_ms=session_timeout_ms)
        self._list_group()

    def _list_group(self) -> None:
        self.effects.forget_calls()
        self.is_restoring = False
        self._ask(Get(paths.RESTORE, watch=True), self._restore_read)
        self._ask(ListChildren(paths.group(self.group)), self._group_listed)  # at the same time

    def _ask(self, call: Call, handle: Callable[..., None], *arguments: object) -> None:
        self.asked = call
        self.effects.request(call, self._answered, handle, *arguments)

    def _answered(self, reply: Reply, handle: Callable[..., None], *arguments: object) -> None:
        if not (isinstance(reply, Refused) and reply.outcome_unknown):
            handle(reply, *arguments)
        elif self.connected:
            self._list_group()

    def _restore_read(self, reply: Reply) -> None:
        self.is_restoring = isinstance(reply, Content)

    def _wait_for_restore(self) -> None:
        """Create nothing in a tree that is being replaced; the end of the restore fires the watch."""
        if not self.has_said_why:
            self.has_said_why = True
            text = f"{self.consumer}: waits with joining {self.group}, because a restore runs, or was interrupted"
            self.effects.add(Warn(text))

    def handle_watched(self, path: str) -> None:
        """Look again when the restore may be over."""
        if path == paths.RESTORE and self.is_restoring and self.connected:
            self._list_group()

    def _group_listed(self, reply: Reply) -> None:
        if self.is_restoring:
            self._wait_for_restore()
        elif isinstance(reply, Children):
            missing = [name for name in paths.GROUP_CHILDREN if name not in reply.names]
            if missing:
                self._create_group([], missing)
            elif self.former is not None and self.registration.instance_id is not None:
                self._ask(Get(paths.static(self.group, self.registration.instance_id)), self._instance_read)
            else:
                self._register()
        elif reply == Refused(Refusal.NO_NODE):
            self.ancestors = {}
            for path in ("/", paths.CONSUMERS, paths.GROUPS):
                self._ask(ListChildren(path), self._ancestor_listed, path)
        else:
            self._refused(reply)

    def _ancestor_listed(self, reply: Reply, path: str) -> None:
        self.ancestors[path] = reply != Refused(Refusal.NO_NODE)  # a node that may not be listed exists
        if len(self.ancestors) < 3:
            return
        if not self.ancestors["/"]:
            self.error = ChrootMissingError(f"the chroot of {self.zookeeper} does not exist in this ZooKeeper")
            return
        missing = [above for above in (paths.CONSUMERS, paths.GROUPS) if not self.ancestors[above]]
        self._create_group([*missing, paths.group(self.group)], list(paths.GROUP_CHILDREN))

    def _create_group(self, above: list[str], children: list[str]) -> None:
        self.group_creations += 1
        below = [f"{paths.group(self.group)}/{name}" for name in children]
        self._ask(Multi(tuple(Create(path) for path in above + below)), self._group_created)

    def _group_created(self, reply: Reply) -> None:
        expected = isinstance(reply, Refused) and reply.refusal in {Refusal.NODE_EXISTS, Refusal.NO_NODE}
        if isinstance(reply, Done) or (expected and self.group_creations < MAX_GROUP_CREATIONS):
            self._list_group()
        else:
            self._refused(reply)

    def _instance_read(self, reply: Reply) -> None:
        """Check which consumer had the instance id last; an invalid record is ignored."""
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._refused(reply)
            return
        try:
            last = ownership.decode_static_consumer(reply.content) if isinstance(reply, Content) else self.former
        except NodeContentError:
            last = self.former
        if last == self.former:
            self._register()
        else:
            self._ask(Get(paths.ids(self.group, str(last))), self._successor_read, str(last))

    def _successor_read(self, reply: Reply, successor: str) -> None:
        if isinstance(reply, Content):
            self.error = FencedInstanceError(fenced_text(self.registration.instance_id, self.group, successor))
        elif reply == Refused(Refusal.NO_NODE):
            self._register()
        else:
            self._refused(reply)

    def _register(self) -> None:
        self.register_sent_ms = self.effects.now_ms
        operations = (
            Create(paths.channel(self.group, self.consumer)),
            Create(paths.ids(self.group, self.consumer), registrations.encode(self.registration), ephemeral=True),
            Create(paths.owners(self.group, self.consumer), ownership.encode_owners(NOTHING_OWNED), ephemeral=True),
        )
        self._ask(Multi(operations), self._register_answered)

    def _register_answered(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            self.lease_from_ms = self.register_sent_ms
            self.registered = True
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NODE_EXISTS:
            self._ask(Get(paths.ids(self.group, self.consumer)), self._verified)
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE:  # the group was deleted meanwhile
            self._list_group()
        else:
            self._refused(reply)

    def _verified(self, reply: Reply) -> None:
        if isinstance(reply, Content) and reply.stat.ephemeral_owner == self.session_id:
            self.registered = True
        else:
            self.error = RegistrationError(f"the name {self.consumer} is taken in group {self.group}")

    def _refused(self, reply: Reply) -> None:
        reason = repr(reply)
        if isinstance(reply, Refused):
            call: Call | Operation | None = self.asked
            if isinstance(call, Multi):
                call = None if reply.index is None else call.operations[reply.index]
            right = f" ({right_of(call)})" if call is not None and reply.refusal is Refusal.NO_AUTH else ""
            reason = ("" if call is None else f"{call.path}: ") + reply.refusal.value + right
        self.error = RegistrationError(f"ZooKeeper refused to register {self.consumer} in group {self.group}: {reason}")


def fenced_text(instance: str | None, group: str, successor: str = "another consumer") -> str:
    """Describe that another consumer has the instance id."""
    return f"group_instance_id {instance}: {successor} of group {group} has it now; this consumer cannot join again"
