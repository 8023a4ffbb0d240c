"""Class archives are made once for each Java; what is missing or does not fit is left out."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from zkrebalancer.localcluster.class_archives import ClassArchives
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.jars import JarSource
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.programs import IN_PRODUCTION, QUICK_START

MAIN = "kafka.Kafka"


@pytest.fixture
def source(tmp_path: Path) -> JarSource:
    return JarSource(tmp_path / "cache", None, lambda _line: None)


def java_of(home: Path, release: str) -> str:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "release").write_text(release)
    return str(home / "bin" / "java")


def found(java: str, class_path: str, source: JarSource) -> ClassArchives:
    archives = ClassArchives.of(java, class_path, source)
    assert archives is not None
    return archives


def test_each_java_and_each_class_path_has_its_own(tmp_path: Path, source: JarSource) -> None:
    first = found(java_of(tmp_path, "17.0.1"), "a.jar", source)
    assert found(java_of(tmp_path, "17.0.1"), "a.jar", source) == first
    assert found(java_of(tmp_path, "17.0.1"), "b.jar", source) != first
    assert found(java_of(tmp_path, "17.0.2"), "a.jar", source) != first
    assert ClassArchives.of(str(tmp_path / "elsewhere" / "bin" / "java"), "a.jar", source) is None


def test_they_are_recorded_once(tmp_path: Path, source: JarSource) -> None:
    archives = found(java_of(tmp_path, "17"), "a.jar", source)
    assert archives.options(MAIN) == []
    recorded: list[ClassArchives] = []

    def record(partial: ClassArchives) -> None:
        recorded.append(partial)
        (option, _silent) = partial.options(MAIN)
        assert option.startswith("-XX:ArchiveClassesAtExit=")
        Path(option.partition("=")[2]).touch()

    archives.make_once(record, source)
    archives.make_once(record, source)
    assert len(recorded) == 1
    assert archives.options(MAIN)[0] == f"-XX:SharedArchiveFile={archives.folder}/{MAIN}.jsa"
    assert archives.options("another.Main") == []


def test_a_failed_recording_leaves_nothing(tmp_path: Path, source: JarSource) -> None:
    archives = found(java_of(tmp_path, "17"), "a.jar", source)

    def record(partial: ClassArchives) -> None:
        raise LocalClusterError(f"no server for {partial.folder}")

    with pytest.raises(LocalClusterError):
        archives.make_once(record, source)
    assert [path.name for path in source.cache.iterdir()] == ["lock"]


def test_a_damaged_archive_is_ignored_silently(source: JarSource, tmp_path: Path) -> None:
    """In `options`, do not look at the size: the JVM ends."""
    java = find_java()
    archives = found(java, "", source)

    def start(options: list[str], jvm_options: Sequence[str] = QUICK_START) -> str:
        line = [java, "-Xshare:auto", *jvm_options, *options, "-version"]
        # A JVM that crashes writes its log into the current folder.
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        return done.stdout + done.stderr

    def record(partial: ClassArchives) -> None:
        start(partial.options(MAIN))

    archives.make_once(record, source)
    file = archives.folder / f"{MAIN}.jsa"
    whole = file.read_bytes()
    expected = start([])
    assert start(archives.options(MAIN)) == expected
    told = "-Xlog:cds=info,cds+dynamic=info"  # after the option that silences it
    assert "Mapped dynamic region" in start([*archives.options(MAIN), told], IN_PRODUCTION), "it does not fit"
    middle = len(whole) // 2
    zeros = bytes(len(whole) // 4)
    for damaged in (whole[:middle], whole[:middle] + zeros + whole[middle + len(zeros) :], b"none" * 9_999, b""):
        file.unlink()
        file.write_bytes(damaged)
        assert start(archives.options(MAIN)) == expected
