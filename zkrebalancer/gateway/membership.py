"""The gateways of a cluster in ZooKeeper: their numbers, the brokers' slots, and which gateways are alive.

A restarted gateway gets its former number at once: it listens at the same address, so the former process has ended. If
two processes announce one address, one displaces the other, which stops.

A gateway that has a number goes on with the layout that it read last while the layout's node cannot be read, and writes
it anew if the node is deleted.

While `zkrebalancer restore` replaces the tree, a gateway that begins waits. It looks once before it writes anything,
and again after it has announced itself: a restore that has not seen it has put its node before. If a look finds a
restore, the gateway withdraws what it has announced: the restore would refuse because of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from zkrebalancer.gateway.addresses import Addresses
from zkrebalancer.gateway.buckets import create_folders, create_missing
from zkrebalancer.gateway.layout import (
    ALIVE,
    LAYOUT,
    Layout,
    decode,
    decode_alive,
    encode,
    encode_alive,
    is_number,
)
from zkrebalancer.gateway.session import CallRefusedError, Session
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.addresses import MAX_PORT
from zkrebalancer.protocol.calls import (
    ABSENT,
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    SetContent,
)
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError, ZooKeeperUnavailableError
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.runtime import clock

MAX_TRIES = 20  # of a write with which others may interfere
_log = logging.getLogger(__name__)


class DisplacedError(RebalancerError):
    """Another gateway announces the same address."""


class UnfinishedRestoreError(RebalancerError):
    """A restore is not complete: nothing may be written into the tree that it replaces."""


class Membership:
    """All gateways that this one knows of; methods block only the calling greenlet."""

    def __init__(self, session: Session, host: str, port: int, offsets: str = "upstream") -> None:
        """Prepare to announce `host` and `port`; `offsets`: where this gateway keeps them."""
        self._session = session
        self._host = host
        self._port = port
        self._offsets = offsets
        self._layout = Layout()
        self._gateways: dict[int, tuple[str, int]] = {}
        self._joined_session = 0
        self._announced: int | None = None  # the last number that it may have announced, also in vain
        self._without_slot: set[int] = set()  # brokers
        self._complaints = Complaints()
        self.number: int | None = None
        self.fault = ""  # why the layout cannot be read; empty: it can

    @property
    def _address(self) -> str:
        return f"{self._host}:{self._port}"

    def addresses(self) -> Addresses:
        """Return the addresses of brokers and gateways, as of the last `refresh`."""
        return Addresses(self._host, self._port, self._layout.brokers, self._gateways)

    def refresh(self) -> None:
        """Announce this gateway if necessary, read the live gateways, and watch for changes.

        Raises:
            ZooKeeperUnavailableError: the connection broke; call again once it is back.
            DisplacedError: another process announces this address.
            UnfinishedRestoreError: call again later.
            NodeContentError: the layout cannot be read, and this gateway has no number yet.
            TooManyError: the layout is full.
            OtherOffsetsError: other gateways keep offsets elsewhere.

        """
        self.was_refused = False
        for _ in range(MAX_TRIES):
            session_id = self._session.session_id
            if session_id != self._joined_session or not self._has_number():
                self._join(session_id)
            self._read_alive(session_id)
            if self.number in self._gateways:
                return
            self._joined_session = 0  # somebody deleted the node, or wrote into it: announce again
        raise ZooKeeperUnavailableError(f"{ALIVE}/{self.number} was changed by others at each of {MAX_TRIES} tries")

    def _join(self, session_id: int) -> None:
        self._joined_session = 0
        self._refuse_unfinished_restore()
        self._create_roots()
        listed = self._session.require(ListChildren(ALIVE))
        alive = [int(name) for name in listed.names if is_number(name)] if isinstance(listed, Children) else []
        former = self.number
        try:
            layout = self._change_layout(lambda layout: self._with_this_gateway(layout, alive))
            number = layout.gateways[self._address]
        except (NodeContentError, CallRefusedError) as error:
            if former is None:
                raise
            self._note_fault(error)
            number = former
        if former not in {None, number}:
            self._withdraw(f"{ALIVE}/{former}")
        self._announced = number
        self._announce(number)
        self._refuse_unfinished_restore()
        self.number, self._joined_session = number, session_id

    def _with_this_gateway(self, layout: Layout, alive: Collection[int]) -> Layout:
        return layout.with_offsets(self._offsets, self._address, alive).with_gateway(self._address, alive)

    def _refuse_unfinished_restore(self) -> None:
        if isinstance(self._session.require(Get(paths.RESTORE), *ABSENT), Content):
            if self._announced is not None:
                self._withdraw(f"{ALIVE}/{self._announced}")
            raise UnfinishedRestoreError("no group is served, because a restore runs, or was interrupted")

    def _withdraw(self, path: str) -> None:
        """Delete the node of a former number, unless it is another gateway's by now."""
        found = self._session.require(Get(path), Refusal.NO_NODE)
        if isinstance(found, Content) and found.content == encode_alive(self._host, self._port):
            delete = Delete(path, found.stat.version)
            self._session.require(Multi((delete,)), Refusal.NO_NODE, Refusal.BAD_VERSION)

    def _has_number(self) -> bool:
        """Read the layout: whether this gateway still has its number there, as far as it can be read."""
        try:
            found = self._session.require(Get(LAYOUT, watch=True), Refusal.NO_NODE)
            if not isinstance(found, Content):
                return False  # `_create_roots` writes it as this gateway knew it
            self._use(decode(found.content))
        except (NodeContentError, CallRefusedError) as error:
            self._note_fault(error)
            return True
        self._layout.check_offsets(self._offsets, "other gateways")  # one may have begun at the same moment
        return self._layout.gateways.get(self._address) == self.number

    def _use(self, layout: Layout) -> Layout:
        self._layout, self.fault = layout, ""
        return layout

    def _note_fault(self, error: RebalancerError) -> None:
        self.fault, is_refused = str(error), isinstance(error, CallRefusedError)
        self.was_refused |= is_refused
        text = self._complaints.text(LAYOUT, self.fault, clock.steady_us() / 1e6)
        if text is not None:
            advice = "" if is_refused else ". If nobody needs it, delete the node"
            _log.error("%s; the last one that could be read is used%s", text, advice)

    def add_brokers(self, ids: Collection[int]) -> None:
        """Give slots to brokers without one, of all that are alive; not before this gateway is announced.

        Raises:
            ZooKeeperUnavailableError: as with `refresh`.
            NodeContentError: the layout cannot be read.

        """
        if self._joined_session == 0 or self._joined_session != self._session.session_id:
            return  # a restore may be under way
        if set(ids) - set(self._layout.brokers):
            layout = self._change_layout(lambda layout: layout.with_brokers(ids))
            without = set(ids) - set(layout.brokers)
            for missing in sorted(without - self._without_slot):
                _log.error("broker %d gets no port: all slots are taken by brokers that are alive", missing)
            self._without_slot = without

    def _create_roots(self) -> None:
        create_folders(self._session)
        create_missing(self._session, LAYOUT, encode(self._layout))

    def _change_layout(self, change: Callable[[Layout], Layout]) -> Layout:
        for _ in range(MAX_TRIES):
            found = self._session.require(Get(LAYOUT))
            if not isinstance(found, Content):
                raise ZooKeeperUnavailableError(f"{LAYOUT} cannot be read")
            before = decode(found.content)
            after = change(before)
            if after == before:
                return self._use(after)
            written = self._session.require(
                Multi((SetContent(LAYOUT, encode(after), found.stat.version),)), Refusal.BAD_VERSION
            )
            if not isinstance(written, Refused):
                return self._use(after)
        raise ZooKeeperUnavailableError(f"{LAYOUT} was changed by others at each of {MAX_TRIES} tries")

    def _announce(self, number: int) -> None:
        path = f"{ALIVE}/{number}"
        create = Create(path, encode_alive(self._host, self._port), ephemeral=True)
        for _ in range(MAX_TRIES):
            found = self._session.require(Get(path), Refusal.NO_NODE)
            operations = (create,) if isinstance(found, Refused) else (Delete(path), create)
            if not isinstance(self._session.require(Multi(operations), Refusal.NO_NODE, Refusal.NODE_EXISTS), Refused):
                return
        raise ZooKeeperUnavailableError(f"{path} was changed by others at each of {MAX_TRIES} tries")

    def _read_alive(self, session_id: int) -> None:
        listed = self._session.require(ListChildren(ALIVE, watch=True), Refusal.NO_NODE)
        names = listed.names if isinstance(listed, Children) else ()
        gateways: dict[int, tuple[str, int]] = {}
        for name in names:
            path = f"{ALIVE}/{name}"
            try:
                found = self._session.require(Get(path), Refusal.NO_NODE)
                if not isinstance(found, Content):
                    continue
                if not found.stat.ephemeral_owner:
                    raise NodeContentError(f"{path} belongs to no session")
                if name == str(self.number) and found.stat.ephemeral_owner != session_id:
                    raise DisplacedError(f"another gateway announces {self._address} too")
                number, where = decode_alive(name, found.content)
                gateways[number] = where
            except NodeContentError as error:
                self._complain(path, f"a gateway is left out: {error}")
            except CallRefusedError as error:
                if name == str(self.number):
                    raise
                self.was_refused = True
                self._take_from_layout(name, gateways, error)
        self._gateways = gateways

    def _take_from_layout(self, name: str, gateways: dict[int, tuple[str, int]], error: CallRefusedError) -> None:
        """Add a gateway whose node may not be read: it serves its groups, at the address that it had when it began."""
        for address, number in self._layout.gateways.items():
            host, _, port = address.rpartition(":")
            if str(number) == name and host and (found := decimal(port, MAX_PORT)) is not None:
                gateways[number] = host, found
                self._complain(f"{ALIVE}/{name}", f"a gateway's address is taken from {LAYOUT}: {error}")
                return
        self._complain(f"{ALIVE}/{name}", f"a gateway is left out: {error}")

    def _complain(self, path: str, reason: str) -> None:
        text = self._complaints.text(path, reason, clock.steady_us() / 1e6)
        if text is not None:
            _log.error("%s", text)
