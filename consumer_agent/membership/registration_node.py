"""Keeps a consumer's registration in `ids/<consumer>` equal to its application's subscription. Pure.

The node is written in place, at its version, while the consumer continues with what it owns: the coordinator sees
another subscription of the same consumer, and moves only what that changes. No other consumer writes the node, so a
read shows the outcome of a write.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumer_agent.errors import RegistrationError
from consumer_agent.membership.effects import EffectQueue, Failed
from zkrebalancer.protocol import registration as registrations
from zkrebalancer.protocol.calls import Content, Done, Get, Multi, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.registration import Registration


@dataclass(slots=True)
class OwnRegistration:
    """The registration node of one consumer."""

    effects: EffectQueue
    consumer: str
    path: str
    written: Registration | None  # None: unreadable
    wanted: Registration
    version: int | None = 0  # of the node; None: unknown, to be read
    is_busy: bool = False
    given_up: Registration | None = None  # a refused registration, which is not retried

    def proceed(self) -> None:
        """Write the wanted registration, unless it is written or a call is in flight; on a connected session."""
        is_written = self.wanted == self.written and self.version is not None
        if self.is_busy or is_written or self.wanted == self.given_up:
            return
        self.is_busy = True
        if self.version is None:
            self.effects.request(Get(self.path), self._answered)
        else:
            write = SetContent(self.path, registrations.encode(self.wanted), self.version)
            self.effects.request(Multi((write,)), self._answered, self.wanted)

    def _answered(self, reply: Reply, sent: Registration | None = None) -> None:
        """Handle the answer to a write or a read."""
        self.is_busy = False
        if isinstance(reply, Refused) and (reply.outcome_unknown or reply.refusal is Refusal.BAD_VERSION):
            self.version = None
        elif isinstance(reply, Refused):
            self.wanted = self.given_up = self.written or self.wanted
            if reply.refusal is not Refusal.NO_NODE:  # then the consumer is evicted, which its next renewal shows
                text = f"ZooKeeper refused to change the subscription of {self.consumer}: {reply.refusal.value}"
                self.effects.add(Failed(RegistrationError(text)))
        elif isinstance(reply, Content):
            self.given_up = None
            self.version = reply.stat.version
            self.written = _read(reply.content)
        elif isinstance(reply, Done) and sent is not None:
            self.written, self.given_up = sent, None
            self.version = None if self.version is None else self.version + 1


def _read(content: bytes) -> Registration | None:
    try:
        return registrations.decode(content)
    except NodeContentError:
        return None  # another program has written it
