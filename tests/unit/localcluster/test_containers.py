"""Docker engines that cannot be used are one line; what a host sees of the machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from zkrebalancer.localcluster import containers
from zkrebalancer.localcluster.containers import Engine, visible_folders
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError
from zkrebalancer.localcluster.hosts import HostCluster

HERE = {"Name": socket.gethostname(), "SecurityOptions": ["name=seccomp"]}


def test_without_an_engine_the_error_says_where_it_was_sought_and_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    cluster = HostCluster(engine=f"unix://{tmp_path}/no.sock", directory=folder)
    with pytest.raises(MissingToolError, match=r"no Docker engine answers at unix://.*no\.sock .*install docker\.io"):
        cluster.start()
    assert not folder.exists()


def test_the_engine_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/other.sock")
    with pytest.raises(MissingToolError, match=r"other\.sock"):
        Engine("", "c")


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingToolError, match=r'pip install "zkrebalancer\[docker\]"'):
        Engine("", "c")


def engine_that_says(info: dict[str, object] | Exception, monkeypatch: pytest.MonkeyPatch) -> Engine:
    docker = pytest.importorskip("docker")

    def answer(_client: object) -> dict[str, object]:
        if isinstance(info, Exception):
            raise info
        return info

    monkeypatch.setattr(docker.DockerClient, "info", answer)
    monkeypatch.setattr(docker.APIClient, "_retrieve_server_version", lambda _client: "1.44")
    return Engine("unix:///x.sock", "c")


def test_an_engine_of_this_machine_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_that_says({**HERE}, monkeypatch).address == "unix:///x.sock"


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({**HERE, "Name": "elsewhere"}, r"runs on another machine \(elsewhere\)"),
        ({**HERE, "SecurityOptions": ["name=rootless"]}, "is rootless"),
        (PermissionError(13, "Permission denied"), "no right .* member of the group docker"),
        (ConnectionResetError("gone"), r"no Docker engine answers at unix:///x\.sock \(gone\)"),
    ],
)
def test_an_engine_whose_containers_are_out_of_reach(
    info: dict[str, object] | Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LocalClusterError, match=text):
        engine_that_says(info, monkeypatch)


def test_an_engine_that_is_missing_is_refused_in_the_words_of_the_system(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    address = f"unix://{tmp_path}/x.sock"
    with pytest.raises(
        MissingToolError, match=rf"no Docker engine answers at {address} \(No such file or directory\):"
    ):
        Engine(address, "c")


def test_a_host_sees_the_system_and_the_folders_at_the_top_of_what_it_needs(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/usr/bin")
    folders = visible_folders([str(link), "/proc/self"])
    assert {"/usr", "/etc", f"/{tmp_path.parts[1]}", "/proc"} <= {*folders}
    assert folders == sorted(set(folders))
    assert not any(Path(folder).is_symlink() for folder in folders)


def test_networks_of_this_machine_are_read_from_its_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = tmp_path / "route"
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    routes.write_text(
        f"{head}eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\nbr-1 000712C6 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
    )
    monkeypatch.setattr(containers, "_ROUTES", routes)
    assert [str(network) for network in containers._routed()] == ["198.18.7.0/24"]
