"""The slots of brokers, the numbers of gateways and where these keep offsets: one node that all share. Pure.

Ports and node ids do not change: a slot or number goes to another broker or gateway only if all are used, and its owner
is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from zkrebalancer.gateway.addresses import MAX_GATEWAYS, MAX_SLOTS
from zkrebalancer.protocol.addresses import MAX_PORT
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.protocol.paths import BUCKET_OWNERS, GATEWAYS, LIVE_GATEWAYS

LAYOUT = f"{GATEWAYS}/layout"
ALIVE = LIVE_GATEWAYS
BUCKETS = f"{GATEWAYS}/buckets"
OWNERS = BUCKET_OWNERS
VERSION = 1
MAX_BROKER_ID = 0x7FFFFFFF
T = TypeVar("T")


class TooManyError(RebalancerError):
    """No slot or number is left."""


class OtherOffsetsError(RebalancerError):
    """Gateways of one cluster were told to keep offsets in different stores."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`brokers`: broker id -> slot; `gateways`: "HOST:PORT" as announced -> number; `offsets`: the gateways' store."""

    brokers: Mapping[int, int] = field(default_factory=dict)
    gateways: Mapping[str, int] = field(default_factory=dict)
    offsets: str | None = None  # as `--offsets`; None: an earlier release wrote it

    def with_brokers(self, ids: Collection[int]) -> Layout:
        """Return a layout in which each broker that is alive has a slot; of those, brokers beyond MAX_SLOTS have none.

        A broker that is gone keeps its slot until another one needs it.
        """
        brokers = dict(self.brokers)
        gone = sorted((slot, broker_id) for broker_id, slot in brokers.items() if broker_id not in ids)
        for broker_id in sorted(set(ids) - set(brokers)):
            slot = _first_free(brokers.values(), MAX_SLOTS)
            if slot is None and gone:
                slot, former = gone.pop(0)
                del brokers[former]
            if slot is not None:
                brokers[broker_id] = slot
        return replace(self, brokers=brokers)

    def with_gateway(self, address: str, alive: Collection[int]) -> Layout:
        """Return a layout in which this gateway has a number; if all are used, that of a gateway that is not alive.

        Raises:
            TooManyError: all numbers belong to live gateways.

        """
        if address in self.gateways:
            return self
        kept = dict(self.gateways)
        number = _first_free(kept.values(), MAX_GATEWAYS)
        if number is None:
            kept = {other: taken for other, taken in kept.items() if taken in alive}
            number = _first_free(kept.values(), MAX_GATEWAYS)
        if number is None:
            raise TooManyError(f"{MAX_GATEWAYS} gateways are alive, and no more may be")
        return replace(self, gateways={**kept, address: number})

    def with_offsets(self, offsets: str, address: str, alive: Collection[int]) -> Layout:
        """Return a layout for a gateway that keeps offsets there.

        A group would continue at other offsets, or at none, as soon as another gateway serves it.

        Raises:
            OtherOffsetsError: other gateways that are alive keep them elsewhere.

        """
        others = sorted(one for one, number in self.gateways.items() if number in alive and one != address)
        if others:
            self.check_offsets(offsets, ", ".join(others))
        return replace(self, offsets=offsets)

    def check_offsets(self, offsets: str, others: str) -> None:
        """Check that a gateway keeps offsets where the `others` do; raises OtherOffsetsError."""
        if self.offsets not in {None, offsets}:
            text = f"--offsets {offsets}: {others} run with --offsets {self.offsets}; end them first"
            raise OtherOffsetsError(text)


def _first_free(taken: Iterable[int], limit: int) -> int | None:
    used = set(taken)
    return next((number for number in range(limit) if number not in used), None)


def encode(layout: Layout) -> bytes:
    """Return the node's content."""
    document = {"version": VERSION, "brokers": dict(layout.brokers), "gateways": dict(layout.gateways)}
    return json.dumps({**document, "offsets": layout.offsets}, sort_keys=True).encode()


def decode(content: bytes) -> Layout:
    """Return the layout that `encode` wrote; raises NodeContentError."""
    return _read(LAYOUT, content, _layout)


def _layout(document: Mapping[str, Any]) -> Layout:
    brokers = {int(key): _number("slot", slot, MAX_SLOTS) for key, slot in document["brokers"].items()}
    gateways = {key: _number("gateway", number, MAX_GATEWAYS) for key, number in document["gateways"].items()}
    for broker_id in brokers:
        _number("broker", broker_id, MAX_BROKER_ID + 1)
    for numbers in (brokers.values(), gateways.values()):
        if len(set(numbers)) < len(numbers):
            raise ValueError("a number is given twice")
    offsets = document.get("offsets")
    if not isinstance(offsets, str | None):
        raise TypeError("the store of offsets is no name")
    return Layout(brokers, gateways, offsets)


def encode_alive(host: str, port: int) -> bytes:
    """Return the content of a gateway's node below ALIVE."""
    return json.dumps({"version": VERSION, "host": host, "port": port}).encode()


def is_number(name: str) -> bool:
    """Whether this is the name of a gateway's node; 01 is not, because 1 may be there as well."""
    return str(decimal(name, MAX_GATEWAYS - 1)) == name


def decode_alive(name: str, content: bytes) -> tuple[int, tuple[str, int]]:
    """Return the number and the address of a gateway from its node below ALIVE; raises NodeContentError."""

    def one(document: Mapping[str, Any]) -> tuple[int, tuple[str, int]]:
        number = int(name) if is_number(name) else -1
        host = document["host"]
        if not isinstance(host, str) or not host:
            raise ValueError("the host is no name")
        return _number("gateway", number, MAX_GATEWAYS), (host, _number("port", document["port"], MAX_PORT + 1))

    return _read(f"{ALIVE}/{name}", content, one)


def _number(what: str, value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{what} {value!r:.40} is not a number below {limit}")
    return value


def _read(path: str, content: bytes, make: Callable[[Mapping[str, Any]], T]) -> T:
    try:
        document: dict[str, Any] = json.loads(content)
        version = document["version"]
        if version == VERSION:
            return make(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NodeContentError(f"{path} cannot be read: {error!r:.200}") from None
    raise NodeContentError(f"{path} is of version {version!r:.40}, this program knows version {VERSION}")
