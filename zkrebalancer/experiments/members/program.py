"""`python -m zkrebalancer.experiments.members.program`: a process with any number of members, one thread each.

Its event file appears when it is ready. Each line of standard input is an order:

    join MEMBER [INSTANCE]        a new consumer joins; with INSTANCE as a static member. GROUP.NAME joins GROUP
    leave MEMBER                  it closes; the name may join again
    block MEMBER MILLISECONDS     its application does not poll for this time

At the end of the input, or after SIGTERM, every member leaves and the process exits with 0.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import click
from confluent_kafka import Consumer

from zkrebalancer.cli.main import run
from zkrebalancer.experiments.members.reader import Membership, Reader
from zkrebalancer.experiments.members.recorder import Recorder
from zkrebalancer.experiments.scenarios.model import group_of
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import RebalancerError

POLL_TIMEOUT_S = 0.2
MAX_POLL_RECORDS = 500
LEAVE_DEADLINE_S = 30.0
KINDS = ("central", "kafka")
# The first client of a process takes some milliseconds longer than others: it is none that joins, whatever the kind.
FIRST_CLIENT = {"bootstrap.servers": "localhost:1", "group.id": "warm-up", "log_level": 0}


class MemberError(RebalancerError):
    """A member failed or did not leave, or an order is invalid."""


class EndError(BaseException):
    """SIGTERM arrived while waiting for an order."""


class Orders:
    """The lines of standard input until its end or SIGTERM; an order in progress is completed first."""

    def __init__(self) -> None:
        """Install the handler of SIGTERM."""
        self._is_over = False
        self._is_waiting = False
        signal.signal(signal.SIGTERM, self._end)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lines."""
        try:
            while line := self._wait():
                yield line
        except EndError:
            return

    def _wait(self) -> str:
        self._is_waiting = True  # set first, so that a signal from here on ends the wait
        line = "" if self._is_over else sys.stdin.readline()
        self._is_waiting = False
        return line

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._is_over = True
        if self._is_waiting:
            self._is_waiting = False
            raise EndError


@dataclass(slots=True)
class Member:
    """One consumer, which lives as long as its thread."""

    open: Callable[[], Reader]
    recorder: Recorder
    record_work_us: int
    thread: threading.Thread | None = None
    _leaving: threading.Event = field(default_factory=threading.Event)
    _block_s: float = 0.0
    _is_gone: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether its thread ended with an error; the traceback is in the log."""
        return self.thread is not None and not self.thread.is_alive() and not self._is_gone

    def start(self) -> None:
        """Join."""
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def leave(self) -> None:
        """Begin to leave; `thread` ends when it has."""
        self._leaving.set()

    def block(self, block_ms: int) -> None:
        """Keep the application busy for this time after its next poll."""
        self._block_s = block_ms / 1_000

    def _run(self) -> None:
        try:
            self._read()
            self._is_gone = True
        finally:
            if not self._is_gone:  # end the whole process when a member fails
                os.kill(os.getpid(), signal.SIGTERM)

    def _read(self) -> None:
        self.recorder.joined()
        reader = self.open()
        while not self._leaving.is_set():
            records = reader.poll(POLL_TIMEOUT_S)
            if records:
                self.recorder.delivered(records)
            work_s, self._block_s = self._block_s + len(records) * self.record_work_us / 1e6, 0.0
            if work_s:
                time.sleep(work_s)
        reader.close()
        self.recorder.left()


class Members:
    """The members of this process, by name."""

    def __init__(
        self, kind: str, membership: Membership, log: EventLog, record_work_us: int, *, has_all_delays: bool = True
    ) -> None:
        """Start without members; `membership` is common to all but for name, instance, and group if there are several.

        `has_all_delays`: of each record, else of the last one that a poll returned of a partition.
        """
        self._read = reader_of(kind)
        self._membership = membership
        self._log = log
        self._record_work_us = record_work_us
        self._has_all_delays = has_all_delays
        self._members: dict[str, Member] = {}

    def execute(self, line: str) -> None:
        """Carry out an order.

        Raises:
            MemberError: there is no such order.

        """
        match line.split():
            case ["join", name, *instance] if len(instance) <= 1:
                self._join(name, instance[0] if instance else None)
            case ["leave", name] if name in self._members:
                self._members[name].leave()
            case ["block", name, milliseconds] if name in self._members and milliseconds.isdigit():
                self._members[name].block(int(milliseconds))
            case _:
                raise MemberError(f"no such order: {line!r:.80}")

    def _join(self, name: str, instance_id: str | None) -> None:
        before = self._members.get(name)
        if before is not None:  # a restart: wait until the old consumer has left
            self._end({name: before})
        group = group_of(name, self._membership.group)
        membership = replace(self._membership, group=group, member=name, instance_id=instance_id)
        recorder = Recorder(self._log, group, name, has_all_delays=self._has_all_delays)
        self._members[name] = Member(lambda: self._read(membership, recorder), recorder, self._record_work_us)
        self._members[name].start()

    def end(self) -> None:
        """Let all members leave at once and wait; raises MemberError if one fails or does not leave."""
        for member in self._members.values():
            member.leave()
        self._end(self._members)

    def _end(self, members: dict[str, Member]) -> None:
        give_up_at = time.monotonic() + LEAVE_DEADLINE_S
        for name, member in members.items():
            if member.thread is not None:
                member.thread.join(max(0.0, give_up_at - time.monotonic()))
                if member.has_failed:
                    raise MemberError(f"{name} has failed; see its traceback above")
                if member.thread.is_alive():
                    raise MemberError(f"{name} has not left within {LEAVE_DEADLINE_S:g} s")


def reader_of(kind: str) -> Callable[[Membership, Recorder], Reader]:
    """Return what reads as members of a kind; the other kind stays out of the process, whose memory is measured."""
    if kind == "central":
        from zkrebalancer.experiments.members.central import CentralReader  # noqa: PLC0415

        return CentralReader
    from zkrebalancer.experiments.members.kafka import KafkaReader  # noqa: PLC0415

    return KafkaReader


def warm_up() -> None:
    """Construct and close a client of Kafka, so that the first member does not take longer than the others."""
    Consumer(FIRST_CLIENT).close()


def _pairs(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    return dict(text.split("=", 1) for text in texts)


@click.command()
@click.option("--kind", required=True, type=click.Choice(list(KINDS)))
@click.option("--process", required=True, help="Name of this process in its events.")
@click.option("--group", required=True)
@click.option("--topic", "topics", multiple=True)
@click.option("--pattern")
@click.option("--zookeeper", required=True)
@click.option("--bootstrap", required=True)
@click.option("--events", required=True, type=click.Path(path_type=Path))
@click.option("--record-work-us", default=0, help="Time that the application spends on each record.")
@click.option("--max-poll-records", default=MAX_POLL_RECORDS, help="Most records that a poll returns.")
@click.option("--delays", type=click.Choice(["each", "last"]), default="each", help="Of which records of a poll.")
@click.option("--config", multiple=True, metavar="KEY=VALUE", callback=_pairs, help="The client's own settings.")
def main(
    *,
    kind: str,
    process: str,
    group: str,
    topics: tuple[str, ...],
    pattern: str | None,
    zookeeper: str,
    bootstrap: str,
    events: Path,
    record_work_us: int,
    max_poll_records: int,
    delays: str,
    config: dict[str, str],
) -> None:
    """Run members until the input ends."""
    orders = Orders()
    warm_up()
    membership = Membership(zookeeper, bootstrap, group, "", topics, pattern, None, config, max_poll_records)
    reader_of(kind)  # loads its modules before the event file says that the process is ready
    log = EventLog(events, process)
    members = Members(kind, membership, log, record_work_us, has_all_delays=delays == "each")
    for line in orders:
        members.execute(line)
    members.end()
    log.close()


if __name__ == "__main__":
    run(main)
