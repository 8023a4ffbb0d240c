"""Jars: each one is verified, errors name the jar, jars are fetched once and never partially."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.errors import JarError, LocalClusterError, MissingToolError
from zkrebalancer.protocol.errors import ConfigurationError

GOOD = {"a-1.jar": b"alpha", "b-2.jar": b"beta"}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in GOOD.items()}


def write_jars(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


class FakeIvy:
    """Replaces `java … org.apache.ivy.Main`: copies prepared jars to the target of `-retrieve`."""

    def __init__(self, folder: Path, contents: dict[str, bytes], exit_code: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.calls = folder / "calls"
        served = write_jars(folder / "served", contents)
        self.java = folder / "java"
        self.java.write_text(
            f'#!/bin/sh\necho "$@" >> {self.calls}\nwhile [ "$1" != -retrieve ]; do shift; done\n'
            f'cp {served}/* "$(dirname "$2")"\necho "[SUCCESSFUL ] x!a.jar"\n'
            f'echo ":: x#a;1: not found"\nexit {exit_code}\n'
        )
        self.java.chmod(0o755)

    def call_count(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> jars.JarSource:
    monkeypatch.setattr(jars, "read_sums", lambda _version: SUMS)
    monkeypatch.setattr(jars, "_pyspark_jars", lambda: tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return jars.JarSource(tmp_path / "cache", None, lambda _line: None)


@pytest.mark.parametrize(
    ("version", "required"),
    [
        ("1.1.1", "kafka_2.12-1.1.1"),
        ("3.9.2", "zookeeper-3.8.4"),
        ("4.4.0", "kafka_2.13-4.4.0"),
        (jars.HELIX, "helix-core-2.0.1"),
    ],
)
def test_the_projects_list_of_sums_is_valid(version: str, required: str) -> None:
    sums = jars.read_sums(version)
    assert any(required in name for name in sums)
    assert all(name.endswith(".jar") and len(bytes.fromhex(digest)) == 32 for name, digest in sums.items())


def test_a_changed_jar_is_named(tmp_path: Path) -> None:
    folder = write_jars(tmp_path / "jars", {**GOOD, "b-2.jar": b"tampered"})
    with pytest.raises(JarError, match=r"b-2\.jar is not the expected jar"):
        jars.verify(folder, SUMS)


def test_a_missing_jar_is_named(tmp_path: Path) -> None:
    folder = write_jars(tmp_path / "jars", {"a-1.jar": b"alpha"})
    with pytest.raises(JarError, match=r"b-2\.jar is missing"):
        jars.verify(folder, SUMS)


def test_jars_are_fetched_once_and_only_listed_ones_are_used(tmp_path: Path, source: jars.JarSource) -> None:
    ivy = FakeIvy(tmp_path / "ivy", {**GOOD, "stranger.jar": b"?"})
    first = jars.class_path("3.9.2", str(ivy.java), source)
    assert jars.class_path("3.9.2", str(ivy.java), source) == first
    folder = source.cache / "kafka-3.9.2"
    assert first == f"{folder}/a-1.jar:{folder}/b-2.jar"
    assert ivy.call_count() == 1


def test_helix_comes_with_kafkas_client(tmp_path: Path, source: jars.JarSource) -> None:
    ivy = FakeIvy(tmp_path / "ivy", GOOD)
    folder = source.cache / f"helix-2.0.1-with-kafka-{jars.KAFKA_4}"
    assert jars.helix_class_path(str(ivy.java), source) == f"{folder}/a-1.jar:{folder}/b-2.jar"


def test_a_wrong_jar_from_the_network_does_not_reach_the_cache(tmp_path: Path, source: jars.JarSource) -> None:
    ivy = FakeIvy(tmp_path / "ivy", {**GOOD, "a-1.jar": b"evil"})
    with pytest.raises(JarError, match=r"a-1\.jar"):
        jars.class_path("3.9.2", str(ivy.java), source)
    assert [path.name for path in source.cache.iterdir()] == ["lock"]


def test_a_modified_jar_in_the_cache_is_an_error(tmp_path: Path, source: jars.JarSource) -> None:
    ivy = FakeIvy(tmp_path / "ivy", GOOD)
    jars.class_path("3.9.2", str(ivy.java), source)
    (source.cache / "kafka-3.9.2" / "a-1.jar").write_bytes(b"changed")
    with pytest.raises(JarError, match=r"a-1\.jar"):
        jars.class_path("3.9.2", str(ivy.java), source)


def test_a_failed_fetch_reports_the_reason_and_leaves_no_files(tmp_path: Path, source: jars.JarSource) -> None:
    ivy = FakeIvy(tmp_path / "ivy", GOOD, exit_code=1)
    with pytest.raises(LocalClusterError, match=r"from Maven Central \(:: x#a;1: not found\): .*--kafka-home"):
        jars.class_path("3.9.2", str(ivy.java), source)
    assert [path.name for path in source.cache.iterdir()] == ["lock"]


def test_concurrent_requests_fetch_the_jars_once(tmp_path: Path, source: jars.JarSource) -> None:
    ivy = FakeIvy(tmp_path / "ivy", GOOD)
    paths: list[str] = []
    threads = [
        threading.Thread(target=lambda: paths.append(jars.class_path("3.9.2", str(ivy.java), source))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert ivy.call_count() == 1


def test_ivy_uses_the_mirror_in_the_users_maven_settings(tmp_path: Path, source: jars.JarSource) -> None:
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    settings.write_text(
        "<settings><mirrors><mirror><mirrorOf>*</mirrorOf><url>file:/m</url></mirror></mirrors></settings>"
    )
    ivy = FakeIvy(tmp_path / "ivy", GOOD)
    jars.class_path("3.9.2", str(ivy.java), source)
    assert "-settings" in ivy.calls.read_text()


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingToolError, match=r'pip install "zkrebalancer\[cluster\]"'):
        jars.class_path("3.9.2", "java", jars.JarSource(tmp_path, None, lambda _line: None))


def test_the_error_names_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalClusterError, match=r"cache folder .*file/cache cannot be used"):
        jars.class_path("3.9.2", "java", jars.JarSource(tmp_path / "file" / "cache", None, lambda _line: None))


def test_an_installation_replaces_the_jars_of_its_own_major_version(tmp_path: Path, source: jars.JarSource) -> None:
    home = tmp_path / "kafka"
    write_jars(home / "libs", {"kafka_2.13-3.7.0.jar": b""})
    ivy = FakeIvy(tmp_path / "ivy", GOOD)
    installed = jars.JarSource(source.cache, home, source.report)
    assert jars.class_path("3.9.2", str(ivy.java), installed) == f"{home}/libs/*"
    assert "kafka-4.4.0" in jars.class_path("4.4.0", str(ivy.java), installed)


def test_a_folder_without_kafka_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a Kafka 3 or 4 installation"):
        jars.home_major(tmp_path)


def test_the_environment_determines_where_jars_are() -> None:
    environment = {"XDG_CACHE_HOME": "/cache", "KAFKA_HOME": "/opt/kafka"}
    source = jars.JarSource.of(None, None, lambda _line: None, environment)
    assert (source.cache, source.kafka_home) == (Path("/cache/zkrebalancer"), Path("/opt/kafka"))
