"""The calls that the core requests, one after the other, as a server performs them."""

from __future__ import annotations

from collections.abc import Iterator

from zkrebalancer.rebalance.effects import Request, RequestEach


def requests(effect: object) -> Iterator[Request]:
    """Yield the calls of an effect of the core: none, one, or many reads."""
    if isinstance(effect, RequestEach):
        for place, call_id in enumerate(effect.ids):
            yield Request(call_id, effect.reads.read(place))
    elif isinstance(effect, Request):
        yield effect
