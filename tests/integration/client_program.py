"""An unmodified client of Python as a process, with the arguments KIND BOOTSTRAP GROUP TOPIC.

It prints lines: `values A B…` for the records of a poll, `assigned 0 1…` when its partitions have changed, `revoked`.
It leaves the group at the end of its input.
"""

from __future__ import annotations

import select
import signal
import sys

from tests.integration.kafka_clients import MAKERS

END_WITHIN_S = 60


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(kind: str, *where: str) -> None:
    bootstrap, group, topic = where
    client = MAKERS[kind](bootstrap, group, topic, lambda *_: say("revoked"))
    shown: set[int] = set()
    while not select.select([sys.stdin], [], [], 0)[0]:
        if values := client.poll():
            say("values", *values)
        if (assigned := client.assigned()) != shown:
            say("assigned", *sorted(assigned))
            shown = assigned
    signal.alarm(END_WITHIN_S)  # a client whose gateway has gone tries to leave for ever
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
