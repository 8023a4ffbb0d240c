"""Java programs are compiled once; failures are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkrebalancer.experiments import java_programs
from zkrebalancer.localcluster import cached
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError
from zkrebalancer.localcluster.jars import JarSource
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.locks import locked


@pytest.fixture
def source(tmp_path: Path) -> JarSource:
    return JarSource(tmp_path / "cache", None, lambda _line: None)


def fake_java(folder: Path, script: str) -> str:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return str(java)


def test_a_program_is_compiled_once_until_it_changes(tmp_path: Path, source: JarSource) -> None:
    (tmp_path / "Hello.java").write_text("final class Hello { }")
    java = find_java()
    folder = java_programs.compiled([tmp_path / "Hello.java"], "", java, source)
    assert [path.name for path in folder.iterdir()] == ["Hello.class"]
    assert java_programs.compiled([tmp_path / "Hello.java"], "", "no-java", source) == folder
    (tmp_path / "Hello.java").write_text("final class Hello { int changed; }")
    assert java_programs.compiled([tmp_path / "Hello.java"], "", java, source) != folder


def test_a_failed_compilation_is_an_error_and_leaves_nothing(tmp_path: Path, source: JarSource) -> None:
    (tmp_path / "Hello.java").write_text("final class Hello { int }")
    with pytest.raises(LocalClusterError, match="expected"):
        java_programs.compiled([tmp_path / "Hello.java"], "", find_java(), source)
    assert [path.name for path in source.cache.iterdir()] == ["lock"]


def test_a_jre_is_not_enough(tmp_path: Path, source: JarSource) -> None:
    (tmp_path / "Hello.java").write_text("")
    java = fake_java(tmp_path, "echo 'Module jdk.compiler not found, required by ALL-MODULE-PATH' >&2; exit 1")
    with pytest.raises(MissingToolError, match="is a JRE"):
        java_programs.compiled([tmp_path / "Hello.java"], "", java, source)


def test_what_is_compiled_already_waits_for_nobody(
    tmp_path: Path, source: JarSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "Program.java"
    program.touch()
    monkeypatch.setattr(java_programs, "_compile", lambda *_arguments: None)
    monkeypatch.setattr(cached, "LOCK_DEADLINE_S", 0.0)
    folder = java_programs.compiled([program], "", "java", source)
    with locked(source.cache / "lock", 0.0):  # somebody fetches jars, which takes minutes
        assert java_programs.compiled([program], "", "java", source) == folder
