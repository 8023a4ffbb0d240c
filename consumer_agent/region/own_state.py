"""What an application with a state of its own calls in a region, and what the region calls in the application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from consumer_agent.config import waits
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

SINK, PARTITION, GROUP, FORCED = "sink", "partition", "group", "forced"
RECOVERIES = (SINK, PARTITION, GROUP, FORCED)
DEFAULT_CLOSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of an application that is stored, or has to be restored.

    `number`: the name of the copy, in a region that recovers as a group. `offsets`: in a region that recovers by
    partition, the next offset of each partition whose state it is; None: no record of it was processed yet.
    """

    number: int | None = None
    offsets: Mapping[TopicPartition, int | None] | None = None


@dataclass(frozen=True, slots=True)
class Handlers:
    """The application's functions."""

    checkpoint: Callable[[Checkpoint], object]
    reset: Callable[[Checkpoint | None], object]
    retire: Callable[[Checkpoint], object] = lambda _checkpoint: None


class OwnState(Protocol):
    """How a region keeps an application's state consistent with its offsets."""

    def batches(self) -> Iterator[Any]:
        """Return batches of records, until the region is closed."""

    def checkpoint(self, timeout_s: float) -> bytes:
        """Make a checkpoint now; return bytes that describe it."""

    def reset(self, data: bytes | None, timeout_s: float) -> None:
        """Go back to a checkpoint, None: to the beginning."""

    def metrics(self) -> dict[str, float]:
        """Return figures by name."""

    def stop(self) -> None:
        """Return no further batch."""

    def close(self, *, is_clean: bool) -> None:
        """Leave; nothing more is stored unless `is_clean`."""


def checked_recovery(recovery: object) -> str:
    """Return a recovery; raises ConfigurationError."""
    if recovery not in RECOVERIES:
        raise ConfigurationError(f"recovery must be one of {', '.join(RECOVERIES)}, not {recovery!r:.80}")
    return str(recovery)


def checked_handlers(recovery: str, checkpoint: object, reset: object, retire: object) -> Handlers | None:
    """Return the application's functions, None if a sink's transactions replace them; raises ConfigurationError."""
    given = {"on_checkpoint": checkpoint, "on_reset": reset, "on_retire": retire}
    for name, function in given.items():
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name}: a function is expected, not {type(function).__name__}")
        if waits(function):  # offsets would be committed, and no state stored
            raise ConfigurationError(f"{name} may not be a coroutine function, which nothing would await")
    if recovery == SINK:
        if any(function is not None for function in given.values()):
            raise ConfigurationError("on_checkpoint, on_reset and on_retire need another recovery than 'sink'")
        return None
    if not callable(checkpoint) or not callable(reset):
        raise ConfigurationError(f"recovery={recovery!r} needs on_checkpoint and on_reset")
    return Handlers(checkpoint, reset, retire) if callable(retire) else Handlers(checkpoint, reset)
