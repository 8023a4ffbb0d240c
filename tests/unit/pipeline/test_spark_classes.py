"""The class archive of Spark's JVM: recorded once, by a JVM that ended well, and only where it can fit."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from zkrebalancer.pipeline.spark_classes import ARCHIVE, OTHER_VARIABLES, archives_of, class_options


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a Java, beside a Spark and an empty cache; no JVM runs."""
    for folder in ("java/bin", "spark/jars", "cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "java" / "release").write_text("17")
    (tmp_path / "spark" / "jars" / "a.jar").write_text("a")
    for name in OTHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    return str(tmp_path / "java" / "bin" / "java")


def start(monkeypatch: pytest.MonkeyPatch, script: str) -> subprocess.Popen[bytes]:
    """Start what stands for Spark's JVM: it ends when its standard input does."""
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process, shutdown=lambda: None))
    return process


def fail(jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
    raise ValueError("no")


def test_a_batch_records_the_archive_and_all_use_it(java: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with class_options(java, {}, records=False) as options:
        assert options == []
    with class_options(java, {}, records=True) as (option, _silent):
        name, _, path = option.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        jvm = start(monkeypatch, f"cat; echo classes > '{path}'")
        with class_options(java, {}, records=True) as others:
            assert others == []  # this JVM runs already
    assert jvm.returncode == 0
    archives = archives_of(java, os.environ)
    assert archives is not None
    assert (archives.folder / f"{ARCHIVE}.jsa").read_text() == "classes\n"
    for records in (False, True):
        with class_options(java, {}, records=records) as options:
            assert options[0] == f"-XX:SharedArchiveFile={archives.folder}/{ARCHIVE}.jsa"


def test_a_jvm_that_failed_records_nothing(java: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = archives_of(java, os.environ)
    assert archives is not None
    with class_options(java, {}, records=True) as (option, _silent):
        start(monkeypatch, f"cat; echo half > '{option.partition('=')[2]}'; exit 1")
    assert not archives.folder.exists()
    jvm = start(monkeypatch, "cat")
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(ValueError, match="no"), class_options(java, {}, records=True):
        fail(jvm, monkeypatch)
    assert jvm.returncode == -signal.SIGKILL
    assert [path.name for path in archives.folder.parent.iterdir()] == [f"{archives.folder.name}.lock"]


def test_a_full_disk_fails_no_batch(
    java: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archives = archives_of(java, os.environ)
    assert archives is not None
    with class_options(java, {}, records=True) as (option, _silent):
        path = Path(option.partition("=")[2])
        jvm = start(monkeypatch, f"cat; touch '{path}'; mkdir '{path.with_suffix('.size')}'")
    assert jvm.returncode == 0
    assert "cannot be recorded" in caplog.text
    assert [path.name for path in archives.folder.parent.iterdir()] == [f"{archives.folder.name}.lock"]


def test_an_archive_belongs_to_the_jars_and_to_the_class_path(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = archives_of(java, os.environ)
    assert archives_of(java, os.environ) == first is not None
    os.utime(tmp_path / "spark" / "jars" / "a.jar", (1, 1))  # installed again
    second = archives_of(java, os.environ)
    assert second is not None
    assert second != first
    with class_options(java, {"spark.driver.extraClassPath": "b.jar"}, records=True) as options:
        assert options == []
    for name in ("HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        assert archives_of(java, {**os.environ, name: "--driver-class-path b.jar pyspark-shell"}) is None
    (tmp_path / "spark" / "conf").mkdir()
    assert archives_of(java, os.environ) is None
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    assert archives_of(java, os.environ) is None
