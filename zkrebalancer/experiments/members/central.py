"""A member of a group that the coordinator rebalances: an application of this project's agent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from consumer_agent import Consumer
from consumer_agent.errors import CommitFailedError
from zkrebalancer.experiments.members.reader import CENTRAL, COMMIT_INTERVAL_MS, Membership
from zkrebalancer.experiments.members.recorder import Received, Recorder

# The first consumer of a process loads the rest of the agent's modules; it makes no client of Kafka.
# An application constructs its consumer when it starts; here it would otherwise be done in the middle of a step.
Consumer(zookeeper="localhost:1", bootstrap="localhost:1", group="loads-modules").close()


class CentralReader:
    """Reads with the agent, and commits as often as the agent would, which does not report its automatic commits.

    The last commit, on revocation, is left to the agent, because its acknowledgement contains the offsets.
    """

    def __init__(self, membership: Membership, recorder: Recorder) -> None:
        """Subscribe; the first poll joins the group."""
        settings: dict[str, Any] = {**CENTRAL, **{key: _parsed(value) for key, value in membership.config.items()}}
        self._recorder = recorder
        self._next_commit_s = time.monotonic() + COMMIT_INTERVAL_MS / 1_000
        self._consumer = Consumer(
            zookeeper=membership.zookeeper,
            bootstrap=membership.bootstrap,
            group=membership.group,
            client_id=membership.member,
            group_instance_id=membership.instance_id,
            max_poll_records=membership.max_poll_records,
            **settings,
        )
        self._consumer.subscribe(
            None if membership.pattern else list(membership.topics),
            pattern=membership.pattern,
            on_assign=recorder.started,
            on_revoke=lambda partitions: recorder.stopped(partitions, "revoked"),
            on_lost=lambda partitions: recorder.stopped(partitions, "lost"),
        )

    def poll(self, timeout_s: float) -> Sequence[Received]:
        """Return records as soon as there are any."""
        if time.monotonic() >= self._next_commit_s:
            self._commit()
        batch = self._consumer.poll(timeout_s)
        return [Received(record.topic, record.partition, record.offset, record.value) for record in batch]

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _commit(self) -> None:
        """Start a commit of the records that earlier polls returned, without partitions revoked since."""
        self._next_commit_s = time.monotonic() + COMMIT_INTERVAL_MS / 1_000
        positions = self._consumer.position()

        def note(error: CommitFailedError | None) -> None:
            if error is None:
                self._recorder.committed(positions.items())

        self._consumer.commit_async(None, note)


def _parsed(value: str) -> str | int:
    return int(value) if value.isdigit() else value
