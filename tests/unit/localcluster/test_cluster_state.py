"""The state file and process records: recorded processes are killed, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster import processes, state
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.processes import ProcessRecord


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def record_of(process: subprocess.Popen[bytes]) -> ProcessRecord:
    record = processes.record(process.pid)
    assert record is not None
    return record


def cluster_of(*records: ProcessRecord) -> state.ClusterState:
    servers = tuple(state.ServerState(f"server-{one.pid}", one, 1, "log") for one in records)
    return state.ClusterState("127.0.0.1:1", "", {"broker": "none"}, servers)


def test_round_trip_of_a_state_file(tmp_path: Path) -> None:
    written = cluster_of(ProcessRecord(1, "boot/2"), ProcessRecord(3, "boot/4"))
    state.write(tmp_path, written)
    assert state.read(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_without_a_state_file_there_is_no_cluster(tmp_path: Path) -> None:
    assert state.read(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"zookeeper": "z", "bootstrap": "", "settings": {}, "servers": [1]}']
)
def test_the_error_for_an_invalid_state_file_names_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(LocalClusterError, match=r"cluster\.json is invalid"):
        state.read(tmp_path)


def test_ending_a_cluster_kills_its_processes_and_removes_the_folder(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    state.write(folder, cluster_of(record_of(child)))
    state.end_cluster(folder)
    assert child.wait(WITHIN_S) == -9
    assert not folder.exists()


def test_a_recycled_pid_is_neither_alive_nor_killed(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    real = record_of(child)
    boot, ticks = real.began.split("/")
    earlier = ProcessRecord(child.pid, f"{boot}/{int(ticks) - 1}")
    other_boot = ProcessRecord(child.pid, f"another-boot/{ticks}")
    folder = tmp_path / "cluster"
    folder.mkdir()
    state.write(folder, cluster_of(earlier, other_boot))
    assert state.dead_servers(cluster_of(earlier, other_boot, real)) == list(cluster_of(earlier, other_boot).servers)
    state.end_cluster(folder)
    assert child.poll() is None
    assert processes.is_alive(real)
    assert not folder.exists()


def test_a_process_that_ended_is_dead_even_before_it_is_reaped(child: subprocess.Popen[bytes]) -> None:
    record = record_of(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert Path(f"/proc/{child.pid}").exists()
    assert not processes.is_alive(record)
    assert processes.record(child.pid) is None


def test_ending_a_process_that_is_gone_has_no_effect(child: subprocess.Popen[bytes]) -> None:
    record = record_of(child)
    child.kill()
    child.wait()
    processes.end(record)


def test_a_pid_that_is_now_a_thread_of_another_process_is_not_killed() -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        processes.end(ProcessRecord(thread.native_id, "boot/1"))
    finally:
        is_over.set()
        thread.join()


def test_a_cluster_whose_removal_is_interrupted_can_still_be_ended(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    for name in ("a-data", "z-data"):
        (folder / name).mkdir(parents=True)
    (folder / "server.log").write_text("")
    state.write(folder, cluster_of())
    with mock.patch("shutil.rmtree", side_effect=InterruptedError), pytest.raises(InterruptedError):
        state.clear(folder)
    assert state.read(folder) == cluster_of()
    state.end_cluster(folder)
    assert not folder.exists()


def test_a_cluster_is_removed_with_links_and_files_without_a_suffix(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "cluster", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "zookeeper-1").symlink_to(elsewhere)
    (folder / "myid").write_text("1")
    state.write(folder, cluster_of())
    state.end_cluster(folder)
    assert not folder.exists()
    assert elsewhere.exists()


def test_a_folder_without_a_state_file_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "kept.log").write_text("")
    state.end_cluster(tmp_path)
    assert (tmp_path / "kept.log").exists()
