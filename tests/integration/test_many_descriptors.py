"""ZooKeeper works in a process with more open files than select(2) supports, such as one with a hundred consumers."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import Children, ListChildren
from zkrebalancer.runtime.zk import BlockingZk

SELECT_LIMIT = 1_024  # FD_SETSIZE


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * SELECT_LIMIT)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(SELECT_LIMIT)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_with_many_open_files_asks_zookeeper(agent_cluster: LocalCluster, many_open_files: None) -> None:
    with BlockingZk(agent_cluster.zookeeper) as zk:
        assert isinstance(zk.perform(ListChildren("/")), Children)
