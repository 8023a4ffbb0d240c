"""The image: built from the Dockerfile, it runs a coordinator without rights, is healthy, and stops on SIGTERM."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.sources import ROOT
from tests.support import docker_engine
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports

FEW_RIGHTS = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=host")
pytestmark = pytest.mark.long


@pytest.fixture
def engine() -> Iterator[docker_engine.Engine]:
    """Start an engine that has the image; its socket needs a short path."""
    docker_engine.provide()
    with docker_engine.engine(Path(tempfile.mkdtemp(prefix="image-"))) as engine:
        docker_engine.import_base(engine, "base")
        build = ["--file", str(ROOT / "deploy/docker/Dockerfile"), "--build-arg", "BASE=base", "--tag", "zkrebalancer"]
        engine.docker("build", "--network=host", "--quiet", *build, str(ROOT))
        yield engine


def test_the_image(engine: docker_engine.Engine, tmp_path: Path) -> None:
    _check_versions(engine)
    with LocalCluster(broker="none", directory=tmp_path / "cluster") as cluster:
        _check_coordinator(engine, cluster.zookeeper, tmp_path)


def _check_versions(engine: docker_engine.Engine) -> None:
    asked = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()))"
    python = ["run", "--rm", *FEW_RIGHTS, "zkrebalancer", "/opt/zkrebalancer/bin/python", "-I", "-c", asked]
    found = set(engine.docker(*python).lower().replace("-", "_").split()) - {"zkrebalancer==0.1.0"}
    assert {name.partition("==")[0] for name in found} >= {"kazoo", "gevent", "confluent_kafka"}
    assert found <= set((ROOT / "constraints.txt").read_text().lower().replace("-", "_").split())


def _check_coordinator(engine: docker_engine.Engine, zookeeper: str, folder: Path) -> None:
    http = f"{HOST}:{free_ports(1)[0]}"
    settings = folder / "coordinator.toml"
    settings.write_text(f'zookeeper = "{zookeeper}"\nbroker_id = 77\nhttp = "{http}"\n')
    folder.chmod(0o755)
    mount = f"--mount=type=bind,source={settings},target=/etc/zkrebalancer/coordinator.toml,readonly"
    health = ("--health-interval=1s", f"--env=LIVENESS_URL=http://{http}/liveness")
    command = ("zkrebalancer", "coordinator", "--config", "/etc/zkrebalancer/coordinator.toml")
    container = engine.docker("run", "--detach", *FEW_RIGHTS, mount, *health, "zkrebalancer", *command)

    def state() -> dict[str, object]:
        found: dict[str, object] = json.loads(engine.docker("inspect", "--format={{json .State}}", container))
        return found

    give_up_at = time.monotonic() + WITHIN_S
    while '"healthy"' not in json.dumps(state()):
        assert state()["Running"], state()
        assert time.monotonic() < give_up_at, state()
        time.sleep(0.2)
    assert engine.docker("exec", container, "python", "-I", "-c", "import os; print(os.getuid())") == "65532"
    engine.docker("stop", "--time=60", container)
    assert state()["ExitCode"] == 0, state()
