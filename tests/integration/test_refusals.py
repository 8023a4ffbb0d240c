"""Commands on a real server that withholds a right: one line that names it, and a non-zero exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kazoo.security import Permissions

from tests.integration.commands import run
from tests.integration.rights import denied
from tests.integration.scenario import remove
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Create, Done, Get, Multi
from zkrebalancer.runtime.zk import BlockingZk

GROUP = "g"
RESET = ("reset-offsets", GROUP, "--to-offset", "9")


@pytest.fixture(scope="module")
def zookeeper(agent_cluster: LocalCluster) -> Iterator[str]:
    """Make a chroot with two groups, one of them with stored offsets."""
    hosts = f"{agent_cluster.zookeeper}/refusals"
    with BlockingZk(agent_cluster.zookeeper) as above:
        assert isinstance(above.perform(Multi((Create("/refusals"),))), Done)
        made = [Create(paths.CONSUMERS), Create(paths.GROUPS)]
        for group in (GROUP, "other"):
            made.append(Create(paths.group(group), b'{"version":1}'))
            made += [Create(f"{paths.group(group)}/{child}") for child in paths.GROUP_CHILDREN]
        made += [Create(paths.offsets(GROUP, "t"), b"incarnation"), Create(paths.offsets(GROUP, "t", 0), b"5")]
        with BlockingZk(hosts) as zk:
            assert isinstance(zk.perform(Multi(tuple(made))), Done)
        yield hosts
        remove(above, "/refusals")


def content_of(zookeeper: str, path: str) -> bytes:
    with BlockingZk(zookeeper) as zk:
        node = zk.perform(Get(path))
    assert isinstance(node, Content)
    return node.content


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    ("command", "path", "right"),
    [
        (("list",), paths.GROUPS, "READ"),
        (("describe", GROUP), paths.owners(GROUP), "READ"),
        (("configure", GROUP, "frozen=true"), paths.group(GROUP), "WRITE"),
        (RESET, paths.group(GROUP), "WRITE"),
        (RESET, paths.offsets(GROUP, "t", 0), "WRITE"),
        (RESET, paths.offsets(GROUP), "READ"),
    ],
)
def test_the_right_that_is_missing_is_named(
    zookeeper: str, command: tuple[str, ...], path: str, right: str, options: tuple[str, ...]
) -> None:
    """Fails if a refusal is treated as a missing node, or as a change by another program."""
    with denied(zookeeper, path, getattr(Permissions, right)):
        result = run("zkrebalancer", "groups", *command, "--zookeeper", zookeeper, *options)
    expected = f"Error: ZooKeeper refuses {path}: no permission, right {right} is missing; grant it"
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert (result.returncode, line[: len(expected)]) == (1, expected)
    assert content_of(zookeeper, paths.offsets(GROUP, "t", 0)) == b"5"
    settings = json.loads(content_of(zookeeper, paths.group(GROUP)))
    assert not settings.get("frozen")
    assert not settings.get("starts_paused")


def test_one_group_that_may_not_be_read_does_not_hide_the_others(zookeeper: str) -> None:
    with denied(zookeeper, paths.channel(GROUP), Permissions.READ):
        result = run("zkrebalancer", "groups", "list", "--zookeeper", zookeeper, "--json")
    assert result.returncode == 1
    assert [group["group"] for group in json.loads(result.stdout)["groups"]] == ["other"]
    assert f"a group is not in the list: ZooKeeper refuses {paths.channel(GROUP)}" in result.stderr
