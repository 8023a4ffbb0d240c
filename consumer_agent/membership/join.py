"""From a connected session to a registered consumer: the group's nodes, then its own in one multi(). Pure.

A registration whose outcome is unknown keeps its name: when the node exists and is this session's, it has succeeded.
A static member that finds its instance id with another living consumer does not join again: it would fence its own
successor.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from consumer_agent.errors import FencedInstanceError, RegistrationError
from consumer_agent.membership.effects import EffectQueue, Purpose
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol import registration as registrations
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Done,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    Reply,
)
from zkrebalancer.protocol.errors import ChrootMissingError, NodeContentError, RebalancerError
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import Registration

NOTHING_OWNED = OwnersRecord(generation=0, command_id=None, partitions={})
MAX_GROUP_CREATIONS = 20  # each failed one means that another consumer created the same nodes in between


@dataclass(slots=True)
class Join:
    """One try to register. `registered` or `error` is set when it is over."""

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
    register_sent_ms: int = 0
    registered: bool = False
    lease_from_ms: int | None = None  # when the write that registered was sent; None: not known
    error: RebalancerError | None = None

    def handle_connected(self, session_id: int, session_timeout_ms: int) -> None:
        """Begin, or begin again after the connection broke."""
        self.connected = True
        self.session_id = session_id
        self.registration = replace(self.registration, session_timeout_ms=session_timeout_ms)
        self._list_group()

    def handle_reply(self, purpose: Purpose, argument: object, reply: Reply, now_ms: int) -> None:
        """Handle an answer."""
        if isinstance(reply, Refused) and reply.outcome_unknown:
            if self.connected:
                self._list_group()
        elif purpose is Purpose.LIST_GROUP:
            self._group_listed(reply, now_ms)
        elif purpose is Purpose.LIST_ANCESTOR:
            self._ancestor_listed(str(argument), reply)
        elif purpose is Purpose.CREATE_GROUP:
            self._group_created(reply)
        elif purpose is Purpose.READ_INSTANCE:
            self._instance_read(reply, now_ms)
        elif purpose is Purpose.READ_SUCCESSOR:
            self._successor_read(str(argument), reply, now_ms)
        elif purpose is Purpose.REGISTER:
            self._register_answered(reply)
        elif purpose is Purpose.VERIFY_REGISTRATION:
            self._verified(reply)

    def _list_group(self) -> None:
        self.effects.forget_calls()
        self.effects.request(Purpose.LIST_GROUP, ListChildren(paths.group(self.group)))

    def _group_listed(self, reply: Reply, now_ms: int) -> None:
        if isinstance(reply, Children):
            missing = [name for name in paths.GROUP_CHILDREN if name not in reply.names]
            if missing:
                self._create_group([], missing)
            elif self.former is not None and self.registration.instance_id is not None:
                self.effects.request(
                    Purpose.READ_INSTANCE, Get(paths.static(self.group, self.registration.instance_id))
                )
            else:
                self._register(now_ms)
        elif reply == Refused(Refusal.NO_NODE):
            self.ancestors = {}
            for path in ("/", paths.CONSUMERS, paths.GROUPS):
                self.effects.request(Purpose.LIST_ANCESTOR, ListChildren(path), path)
        else:
            self._refused(reply)

    def _ancestor_listed(self, path: str, reply: Reply) -> None:
        self.ancestors[path] = isinstance(reply, Children)
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
        self.effects.request(Purpose.CREATE_GROUP, Multi(tuple(Create(path) for path in above + below)))

    def _group_created(self, reply: Reply) -> None:
        expected = isinstance(reply, Refused) and reply.refusal in {Refusal.NODE_EXISTS, Refusal.NO_NODE}
        if isinstance(reply, Done) or (expected and self.group_creations < MAX_GROUP_CREATIONS):
            self._list_group()
        else:
            self._refused(reply)

    def _instance_read(self, reply: Reply, now_ms: int) -> None:
        """Check which consumer had the instance id last; an unreadable record is ignored."""
        try:
            last = ownership.decode_static_consumer(reply.content) if isinstance(reply, Content) else self.former
        except NodeContentError:
            last = self.former
        if last == self.former:
            self._register(now_ms)
        else:
            self.effects.request(Purpose.READ_SUCCESSOR, Get(paths.ids(self.group, str(last))), last)

    def _successor_read(self, successor: str, reply: Reply, now_ms: int) -> None:
        if isinstance(reply, Content):
            self.error = FencedInstanceError(fenced_text(self.registration.instance_id, self.group, successor))
        else:
            self._register(now_ms)

    def _register(self, now_ms: int) -> None:
        self.register_sent_ms = now_ms
        operations = (
            Create(paths.channel(self.group, self.consumer)),
            Create(paths.ids(self.group, self.consumer), registrations.encode(self.registration), ephemeral=True),
            Create(paths.owners(self.group, self.consumer), ownership.encode_owners(NOTHING_OWNED), ephemeral=True),
        )
        self.effects.request(Purpose.REGISTER, Multi(operations))

    def _register_answered(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            self.lease_from_ms = self.register_sent_ms
            self.registered = True
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NODE_EXISTS:
            self.effects.request(Purpose.VERIFY_REGISTRATION, Get(paths.ids(self.group, self.consumer)))
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
        reason = reply.refusal.value if isinstance(reply, Refused) else repr(reply)
        self.error = RegistrationError(f"ZooKeeper refused to register {self.consumer} in group {self.group}: {reason}")


def fenced_text(instance: str | None, group: str, successor: str = "another consumer") -> str:
    """Describe that another consumer has the instance id."""
    return f"group_instance_id {instance}: {successor} of group {group} has it now; this consumer cannot join again"
