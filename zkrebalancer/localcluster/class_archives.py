"""Archives of loaded classes: with them, a server's JVM starts in two thirds of the processor time.

For each Java and class path, servers are started once to record the archives, which stay in the cache. A JVM ignores an
archive that does not fit, so a missing or outdated archive only costs time. It also ignores wrong contents if it is
told to look at the checksums, but ends if an archive is shorter than it was: so the size of each is noted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.jars import JarSource

STOP_DEADLINE_S = 120.0  # a JVM writes its archive when it ends
_SILENT = "-Xlog:cds=off,cds+dynamic=off"
_VERIFIED = "-XX:+VerifySharedSpaces"
_FORMAT = b"with sizes"  # of the folder


@dataclass(frozen=True, slots=True)
class ClassArchives:
    """The folder of the archives of one Java and one class path; `is_recording` while the servers write them."""

    folder: Path
    is_recording: bool = False

    @classmethod
    def of(cls, java: str, class_path: str, source: JarSource) -> ClassArchives | None:
        """Return the archives' place in the cache; None if the Java does not report its version."""
        release = Path(java).resolve().parent.parent / "release"
        try:
            identity = release.read_bytes()
        except OSError:
            return None
        digest = hashlib.sha256(b"\0".join([_FORMAT, identity, class_path.encode()])).hexdigest()
        return cls(source.cache / f"classes-{digest[:16]}")

    def options(self, main_class: str) -> list[str]:
        """Return the JVM's options for a server with this main class."""
        archive = self.folder / f"{main_class}.jsa"
        if self.is_recording:
            return [f"-XX:ArchiveClassesAtExit={archive}", _SILENT]
        return [f"-XX:SharedArchiveFile={archive}", _VERIFIED, _SILENT] if _is_whole(archive) else []

    def note_sizes(self) -> None:
        """Note the sizes of the archives, which are complete."""
        for archive in self.folder.glob("*.jsa"):
            _size_of(archive).write_text(str(archive.stat().st_size))

    def make_once(self, record: Callable[[ClassArchives], None], source: JarSource) -> None:
        """Unless they exist, call `record` to write the archives into another folder, and rename it.

        If `record` writes none, the folder stays empty.

        Raises:
            LocalClusterError: another process still makes them after LOCK_DEADLINE_S.
            OSError: the cache folder cannot be written.

        """

        def make(partial: Path) -> None:
            source.report("recording the classes of Kafka and ZooKeeper, once, so that they start faster")
            recorded = ClassArchives(partial, is_recording=True)
            record(recorded)
            recorded.note_sizes()

        make_once(self.folder, source.cache / "lock", make, source.report)


def _is_whole(archive: Path) -> bool:
    try:
        return archive.stat().st_size == int(_size_of(archive).read_text())
    except (OSError, ValueError):
        return False


def _size_of(archive: Path) -> Path:
    return archive.with_suffix(".size")
