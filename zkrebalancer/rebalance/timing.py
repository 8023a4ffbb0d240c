"""How long the commands of one plan took, for the group's history."""

from __future__ import annotations

from zkrebalancer.protocol.command import Command, StopFetcher
from zkrebalancer.protocol.history import Slowest


class Timing:
    """Follows the commands of one plan: at most one per consumer is under way."""

    def __init__(self) -> None:
        """Know no command."""
        self._sent_us: dict[str, int] = {}  # id of each command that is not acknowledged
        self._spans: dict[bool, tuple[int, int | None]] = {}  # whether they stop -> first sent, last acknowledged
        self._slowest: tuple[int, str] | None = None  # duration and consumer

    def sent(self, command: Command, now_us: int) -> None:
        """Note that a command was sent."""
        self._sent_us[command.command_id] = now_us
        self._spans.setdefault(isinstance(command, StopFetcher), (now_us, None))

    def acknowledged(self, consumer: str, command: Command, now_us: int) -> None:
        """Note an acknowledgement; one of an earlier plan's command is ignored."""
        sent_us = self._sent_us.pop(command.command_id, None)
        if sent_us is None:
            return
        is_stop = isinstance(command, StopFetcher)
        self._spans[is_stop] = self._spans[is_stop][0], now_us
        if self._slowest is None or now_us - sent_us > self._slowest[0]:
            self._slowest = now_us - sent_us, consumer

    def span_ms(self, *, of_stops: bool) -> float | None:
        """Return the time from the first stop or start to the last acknowledgement of one, None if there was none."""
        first_us, last_us = self._spans.get(of_stops, (0, None))
        return None if last_us is None else (last_us - first_us) / 1_000

    @property
    def slowest(self) -> Slowest | None:
        """The consumer that took longest to acknowledge a command."""
        return None if self._slowest is None else Slowest(self._slowest[1], self._slowest[0] / 1_000)
