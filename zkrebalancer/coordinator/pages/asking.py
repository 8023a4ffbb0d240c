"""Reads nodes for people on the coordinator's own session, beside the calls of the core."""

from __future__ import annotations

from collections.abc import Callable

from gevent.queue import Empty, SimpleQueue

from zkrebalancer.protocol.calls import Call, Get, Refused, Replied, Reply
from zkrebalancer.protocol.errors import RebalancerError

FIRST_CALL = -2  # ids go down from here: the core's are positive, and -1 is the monitor's
ASK_TIMEOUT_S = 5.0
MAX_ASKED = 20  # nodes at once; the core's calls go first


class NoAnswerError(RebalancerError):
    """ZooKeeper has not answered, or refuses to."""


class Asking:
    """Nodes that were asked for."""

    def __init__(self, request: Callable[[int, Call], None]) -> None:
        """`request` makes a call; its answer has to be passed to `answered`."""
        self._request = request
        self._last = FIRST_CALL + 1
        self._waiting: dict[int, SimpleQueue[Reply]] = {}

    def get(self, path: str) -> Reply:
        """Read a node; blocks this greenlet only.

        Raises:
            NoAnswerError: there is no answer in time, or too many are waited for.

        """
        if len(self._waiting) >= MAX_ASKED:
            raise NoAnswerError("too many nodes are being read; try again")
        self._last -= 1
        call_id, result = self._last, SimpleQueue[Reply]()
        self._waiting[call_id] = result
        try:
            self._request(call_id, Get(path))
            reply = result.get(timeout=ASK_TIMEOUT_S)
        except Empty:
            raise NoAnswerError(f"ZooKeeper has not answered within {ASK_TIMEOUT_S:g} s") from None
        finally:
            del self._waiting[call_id]
        if isinstance(reply, Refused) and reply.outcome_unknown:
            raise NoAnswerError("ZooKeeper does not answer")
        return reply

    def answered(self, event: Replied) -> None:
        """Note an answer; one that is no longer waited for is dropped."""
        waiting = self._waiting.get(event.call_id)
        if waiting is not None:
            waiting.put(event.reply)
