"""What later tests need is installed once for all workers, by functions that are there."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support import installing

INTEGRATION = Path(__file__).parents[1] / "integration"


def test_each_file_and_its_function_are_there() -> None:
    for name, (module, function) in installing.PROVIDERS.items():
        assert (INTEGRATION / name).exists()
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("worker", "file", "begins"),
    [("gw0", "test_pages.py", True), ("gw1", "test_pages.py", False), ("gw0", "test_poll.py", False)],
)
def test_the_first_worker_installs_what_its_files_need(
    monkeypatch: pytest.MonkeyPatch, worker: str, file: str, begins: bool
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: begun.append(command))
    config = cast("pytest.Config", SimpleNamespace(workerinput={"workerid": worker}))
    installing.begin(config, [INTEGRATION / file])
    assert [command[-1] for command in begun] == [file] * begins


def test_a_single_process_leaves_it_to_the_tests() -> None:
    assert installing.begin(cast("pytest.Config", SimpleNamespace()), [INTEGRATION / "test_pages.py"]) is None
