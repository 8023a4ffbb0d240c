"""Keeps the members up to date by watches on `ids`, on each registration and on each ownership record."""

from __future__ import annotations

from collections.abc import Callable

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren, Refusal, Refused, Reply
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.listing import Listing
from zkrebalancer.rebalance.scheduler import ANY, PartScheduler, pause_us
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand

WORK_OF_A_NEWCOMER = 2  # units of `scheduler.MAX_WORK_PER_STEP`
LARGE_BYTES = 10_000  # of a registration
PAUSE_PER_BYTE_US = 5  # after a large one was read, which takes about 0.4 us for each byte


class Membership:
    """Keeps `view.members` equal to what ZooKeeper says, one consumer at a time."""

    def __init__(
        self,
        scheduler: PartScheduler,
        view: GroupView,
        subscriptions: Subscriptions,
        report: Callable[[facts.Fact], None],
    ) -> None:
        """Set no watch yet: loading sets the first ones."""
        self._scheduler = scheduler
        self._view = view
        self._subscriptions = subscriptions
        self._report = report
        self._listing = Listing(scheduler, self._listed, self._missing)
        self._newcomers: dict[str, Member] = {}  # consumers whose registration was read, but not their ownership record
        self._owners_asked: set[str] = set()  # newcomers whose ownership records are being read

    def reset(self) -> None:
        """Forget newcomers, because the group is read again."""
        self._newcomers.clear()
        self._owners_asked.clear()

    def ask_again(self) -> None:
        """Read refused nodes again at growing intervals, because no watch fires when rights are restored."""
        for path in sorted(self._view.hidden):
            is_folder = path.rpartition("/")[0] == paths.group(self._view.group)
            self._scheduler.ask(ListChildren(path) if is_folder else Get(path), self._hidden_read, path)
        for member in self._view.members.values():
            if member.is_registration_refused:
                self.read_registration(member.consumer)
            if member.refused:
                self._read_refused(member)

    def _hidden_read(self, reply: Reply, path: str) -> None:
        if path not in self._view.hidden:
            return  # its member has left
        if isinstance(reply, Children) and path == paths.given(self._view.group):
            self._scheduler.ask(Get(path), self._hidden_read, path)  # the mark in it may be refused alone
        else:
            self._report(facts.Readable())

    def _read_refused(self, member: Member) -> None:
        """Read the consumer's nodes that could not be read yet; answered commands are gone."""
        channel = paths.channel(self._view.group, member.consumer)
        for path in sorted(member.refused):
            if path == paths.owners(self._view.group, member.consumer):
                self.read_owners(member.consumer)
            else:
                call = ListChildren(path) if path == channel else Get(path)
                self._scheduler.ask(call, self._refused_read, member.consumer, path)

    def _refused_read(self, reply: Reply, consumer: str, path: str) -> None:
        member = self._view.members.get(consumer)
        if member is None or path not in member.refused:
            return
        if isinstance(reply, Content):
            member.refused -= {path}
            self._note(path, member.read_command(reply, path, self._view.bound()))
            self._view.refresh(consumer)
            self._report(facts.CommandsRead(member))
            self._report_broken(member)
            return
        if isinstance(reply, Children):
            member.refused |= {f"{path}/{name}" for name in reply.names}
        owners = Get(paths.owners(self._view.group, consumer), watch=True)  # shows whether missing ones were applied
        self._scheduler.ask(owners, self._owners_read_after, consumer, path)

    def _owners_read_after(self, reply: Reply, consumer: str, path: str) -> None:
        member = self._view.members.get(consumer)
        if member is not None and isinstance(reply, Content):
            member.refused -= {path}
        self._owners_read(reply, consumer, None)

    def read_again(self) -> None:
        """Read all that is watched, because the event of a watch may have been withheld."""
        self.list_ids()
        self._read_some(sorted(self._view.members))

    def _read_some(self, consumers: list[str]) -> None:
        while consumers and self._scheduler.has_time:
            self._scheduler.spend(WORK_OF_A_NEWCOMER)
            if (consumer := consumers.pop()) in self._view.members:
                self.read_registration(consumer)
                self.read_owners(consumer)
        if consumers:
            self._scheduler.wake_soon("read-again", self._read_some, consumers)

    def list_ids(self) -> None:
        """List the consumers again, because some joined or left."""
        self._scheduler.ask(ListChildren(paths.ids(self._view.group), watch=True), self._ids_listed)

    def _ids_listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children):
            return  # the group was deleted: the list of groups shows it
        self._listing.compare(reply.names, self._view.members)

    def _listed(self, names: list[str]) -> None:
        newcomers = [name for name in names if name not in self._view.members]
        self._scheduler.spend(WORK_OF_A_NEWCOMER * len(newcomers))
        for consumer in newcomers:
            self._read_newcomer(consumer)

    def _missing(self, names: list[str]) -> None:
        self._scheduler.spend(WORK_OF_A_NEWCOMER * len(names))
        for consumer in names:
            if (member := self._view.members.get(consumer)) is not None:
                member.registered = False
                self._view.touch(consumer)
                self.read_owners(consumer)  # only the end of its session frees its partitions

    def _read_newcomer(self, consumer: str) -> None:
        group = self._view.group
        self._scheduler.ask(Get(paths.ids(group, consumer), watch=True), self._newcomer_read, consumer)
        self._read_newcomer_owners(consumer)

    def _read_newcomer_owners(self, consumer: str) -> None:
        self._owners_asked.add(consumer)
        owners = Get(paths.owners(self._view.group, consumer), watch=True)
        self._scheduler.ask(owners, self._newcomer_owners_read, consumer)

    def _newcomer_read(self, reply: Reply, consumer: str) -> None:
        if isinstance(reply, Content):  # otherwise it is gone already
            is_given_hidden = self._view.hides(paths.given(self._view.group))
            member = self._newcomers[consumer] = Member(consumer, is_given_hidden=is_given_hidden)
            self._note(paths.ids(self._view.group, consumer), member.read_registration(reply))
            if consumer not in self._owners_asked:
                self._read_newcomer_owners(consumer)  # the registration could not be read at first

    def _newcomer_owners_read(self, reply: Reply, consumer: str) -> None:
        self._owners_asked.discard(consumer)
        if isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE:
            self._newcomers.pop(consumer, None)
            self._report(facts.CameAndWent(consumer))
            return
        if not isinstance(reply, Content) or consumer not in self._newcomers or consumer in self._view.members:
            return
        member = self._view.members[consumer] = self._newcomers.pop(consumer)
        self._note(paths.owners(self._view.group, consumer), member.read_owners(reply, self._view.bound()))
        if member.registration is not None:
            self._subscriptions.add(self._view.group, member.registration)
        self._view.refresh(consumer)
        known = member.registration
        session = {} if known is None else {"session_timeout_ms": known.session_timeout_ms}
        self._scheduler.emit("member_joined", self._view.generation, None, member=consumer, **session)
        self._report(facts.Joined(member))
        self._report_broken(member)

    def read_registration(self, consumer: str) -> None:
        """Read a registration that has changed; a large one not at once again, because all groups wait meanwhile."""
        member, now_us = self._view.members.get(consumer), self._scheduler.now.mono_us
        if member is not None and now_us < member.read_again_us:
            again = ("registration", consumer)
            self._scheduler.wake(again, member.read_again_us, self._ask_for_registration, consumer)
        else:
            self._ask_for_registration(consumer)

    def _ask_for_registration(self, consumer: str) -> None:
        registration = Get(paths.ids(self._view.group, consumer), watch=True)
        self._scheduler.ask(registration, self._registration_read, consumer)

    def _registration_read(self, reply: Reply, consumer: str) -> None:
        member = self._view.members.get(consumer)
        if not isinstance(reply, Content) or member is None:
            return  # gone already: the list of ids shows it
        before = member.registration
        size = len(reply.content)
        pause_us = size * PAUSE_PER_BYTE_US if size > LARGE_BYTES else 0
        member.read_again_us = self._scheduler.now.mono_us + pause_us
        self._note(paths.ids(self._view.group, consumer), member.read_registration(reply))
        self._view.touch(consumer)
        self._report_broken(member)
        if member.registration == before:
            member.registration = before  # `Subscriptions` knows long ones by their identity
        else:
            member.pattern_refused = False
            self._subscriptions.replace(self._view.group, before, member.registration)
            self._report(facts.Changed("subscription-changed", consumer))

    def read_owners(self, consumer: str, missing: PendingCommand | None = None, tries: int = 0) -> None:
        """Read what a consumer owns: it changed, or its session ended. `missing`: see `OwnersInDoubt`."""
        owners = Get(paths.owners(self._view.group, consumer), watch=True)
        self._scheduler.ask(owners, self._owners_read, consumer, missing, tries, expected=ANY)

    def _note_refused(self, member: Member, missing: PendingCommand | None, tries: int) -> None:
        """Note that a record may not be read any more, and read it again after a pause."""
        consumer = member.consumer
        member.refused |= {paths.owners(self._view.group, consumer)}
        self._view.refresh(consumer)
        if not self._scheduler.has_timer(("owners", consumer)):
            at_us = self._scheduler.now.mono_us + pause_us(tries)
            self._scheduler.wake(("owners", consumer), at_us, self.read_owners, consumer, missing, tries + 1)
        self._report(facts.OutOfReach(consumer))

    def _owners_read(self, reply: Reply, consumer: str, missing: PendingCommand | None, tries: int = 0) -> None:
        member = self._view.members.get(consumer)
        if member is None:
            return
        if isinstance(reply, Content):
            before, was_hidden = member.owners, member.state is MemberState.UNREADABLE
            member.refused -= {paths.owners(self._view.group, consumer)}
            self._note(paths.owners(self._view.group, consumer), member.read_owners(reply, self._view.bound()))
            self._report(facts.OwnersRead(member, before))
            self._report_broken(member)
            if missing is not None:
                self._report(facts.CommandGone(consumer, missing))
            if was_hidden and member.state is not MemberState.UNREADABLE:
                self._report(facts.Changed("retry", consumer))  # so far, it was to keep what it had
            self._read_refused(member)
        elif isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._note_refused(member, missing, tries)
        elif member.state is not MemberState.EVICTING or member.is_eviction_refused:
            if member.registered:
                registration = Get(paths.ids(self._view.group, consumer), watch=True)
                self._scheduler.ask(registration, self._registered_without_owners, consumer)
            else:
                self._report(facts.SessionOver(consumer))

    def _registered_without_owners(self, reply: Reply, consumer: str) -> None:
        """Check for a record deleted by hand: the end of a session would have deleted the registration as well."""
        member = self._view.members.get(consumer)
        if member is None or (member.state is MemberState.EVICTING and not member.is_eviction_refused):
            return
        if isinstance(reply, Content):
            member.is_record_gone = True
            self._view.touch(consumer)
            self._report(facts.Broken(member))
        elif reply == Refused(Refusal.NO_NODE):
            self._report(facts.SessionOver(consumer))

    def _report_broken(self, member: Member) -> None:
        if member.state in {MemberState.UNREGISTERED, MemberState.BROKEN}:
            self._report(facts.Broken(member))

    def _note(self, path: str, problem: str | None) -> None:
        """Log why a node cannot be read; its consumer may write it again and again."""
        if problem is not None:
            self._scheduler.complain(path, problem)
