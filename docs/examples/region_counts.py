"""Counts for the examples of regions: a state in memory, and its copies in a folder that a restarted process sees."""

import json
import os
from pathlib import Path

from consumer_agent.region import Checkpoint


def write_durably(file: Path, text: str) -> None:
    """Write a file that is whole or not there, also after a power failure: the offsets of its state follow."""
    new = file.with_suffix(f".{os.getpid()}")
    with new.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class Counts:
    """For each partition: the number of records, and the sum of their offsets."""

    def __init__(self, folder: Path, member: str) -> None:
        """Count nothing yet."""
        self._folder, self._member = folder, member
        self._counts: dict[str, list[int]] = {}

    @property
    def total(self) -> int:
        """How many records are counted."""
        return sum(count for count, _sum in self._counts.values())

    def add(self, partition: int, offset: int) -> None:
        """Count a record."""
        count = self._counts.setdefault(str(partition), [0, 0])
        count[0] += 1
        count[1] += offset

    def store(self, checkpoint: Checkpoint) -> None:
        """Store the counts durably under the number of a checkpoint, or not at all."""
        write_durably(self._file(checkpoint), json.dumps(self._counts))

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Become as in a checkpoint, None: as at the very beginning."""
        self._counts = {} if checkpoint is None else json.loads(self._file(checkpoint).read_text())

    def retire(self, checkpoint: Checkpoint) -> None:
        """Delete the copies of earlier checkpoints, and none of a member whose name begins as this one's."""
        for file in self._folder.glob(f"{self._member}-*.json"):
            member, _dash, number = file.stem.rpartition("-")
            if member == self._member and int(number) < (checkpoint.number or 0):
                file.unlink()

    def _file(self, checkpoint: Checkpoint) -> Path:
        return self._folder / f"{self._member}-{checkpoint.number}.json"
