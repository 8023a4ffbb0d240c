"""The Docker engine of this machine, as far as hosts need it: a base image, a network, containers.

Everything has a label with the cluster's folder, by which `remove_all` finds it again, from any process.
"""

from __future__ import annotations

import importlib
import io
import ipaddress
import json
import os
import random
import socket
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError

LABEL = "zkrebalancer.cluster"
HOST_LABEL = "zkrebalancer.host"
RUNNING = frozenset({"running", "paused"})  # states of a container with processes
REQUEST_TIMEOUT_S = 120
STOP_LIMIT_S = 90  # three programs, one after the other
# For iptables and tc in the host's own network. Its servers do not run as root, unless the user is root.
CAPABILITIES = ("NET_ADMIN", "NET_RAW")
SUBNETS = ipaddress.IPv4Network("198.18.0.0/15")  # reserved for tests of networks (RFC 2544): nobody's real addresses
MAX_SUBNETS_TRIED = 50
_SYSTEM_FOLDERS = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr")
_ROUTES = Path("/proc/net/route")


class Engine:
    """A Docker engine, and what one cluster has in it."""

    def __init__(self, address: str, cluster: str) -> None:
        """Connect to the engine at `address`, or with "" to the user's (DOCKER_HOST); `cluster` labels what is made.

        Raises:
            MissingToolError: no Docker engine answers, or the Python library is missing.
            LocalClusterError: no right to use the engine, or it runs elsewhere.

        """
        try:
            self._docker = importlib.import_module("docker")
        except ImportError:
            message = 'the library docker is not installed: pip install "zkrebalancer[docker]"'
            raise MissingToolError(message) from None
        self.address = address or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self._label = f"{LABEL}={cluster}"
        self._labels = {LABEL: cluster}
        self._network: Any = None
        try:
            self._client = self._docker.DockerClient(base_url=self.address, timeout=REQUEST_TIMEOUT_S)
            about = self._client.info()
        except (self._docker.errors.DockerException, OSError) as error:
            raise _unreachable(self.address, error) from None
        is_rootless = any("rootless" in option for option in about.get("SecurityOptions") or ())
        if is_rootless or about["Name"] != socket.gethostname():
            what = "is rootless" if is_rootless else f"runs on another machine ({about['Name']})"
            raise LocalClusterError(f"the Docker engine at {self.address} {what}, so its containers cannot be reached")

    def remove_all(self) -> None:
        """Remove the cluster's containers, networks and images."""
        filters = {"label": self._label}
        with self._errors():
            for container in self._client.containers.list(all=True, filters=filters, ignore_removed=True):
                container.remove(force=True, v=True)
            for network in self._client.networks.list(filters=filters):
                network.remove()
            for image in self._client.images.list(all=True, filters=filters):
                self._client.images.remove(image.id)

    def states(self) -> dict[str, str]:
        """Return host -> "running", "paused", "exited" or another state of Docker."""
        with self._errors():
            found = self._client.containers.list(all=True, filters={"label": self._label}, ignore_removed=True)
            return {container.labels[HOST_LABEL]: container.status for container in found}

    def import_base(self) -> str:
        """Make an image that has only links and empty folders; the machine's own files are mounted into it."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name in _SYSTEM_FOLDERS:
                if Path("/", name).is_symlink():
                    tar.add(f"/{name}", name)
            folder = tarfile.TarInfo("tmp")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        with self._errors():
            changes = [f"LABEL {json.dumps(LABEL)}={json.dumps(self._labels[LABEL])}"]
            answer = self._client.api.import_image_from_data(archive.getvalue(), changes=changes)
        return str(json.loads(answer.splitlines()[-1])["status"])

    def create_network(self) -> ipaddress.IPv4Network:
        """Create a network with addresses that this machine does not use, and return them."""
        taken = [network for network in _routed() if network.overlaps(SUBNETS)]
        candidates = [one for one in SUBNETS.subnets(new_prefix=24) if not any(map(one.overlaps, taken))]
        types = self._docker.types
        for subnet in random.sample(candidates, min(len(candidates), MAX_SUBNETS_TRIED)):
            ipam = types.IPAMConfig(pool_configs=[types.IPAMPool(subnet=str(subnet))])
            name = f"zkrebalancer-{str(subnet.network_address).replace('.', '-')}"
            try:
                self._network = self._client.networks.create(name, driver="bridge", ipam=ipam, labels=self._labels)
            except self._docker.errors.APIError as error:
                if "overlap" not in str(error) and "already exists" not in str(error):
                    raise LocalClusterError(f"Docker: no network can be created: {error.explanation}") from None
            else:
                return subnet
        raise LocalClusterError(f"no free network of {SUBNETS} was found after {MAX_SUBNETS_TRIED} tries")

    def create_host(
        self,
        name: str,
        address: str,
        image: str,
        command: list[str],
        mounts: Mapping[str, str],
        environment: Mapping[str, str],
        disk: tuple[str, int] | None,
    ) -> Host:
        """Create a container that is not started yet.

        `mounts`: path -> "ro" or "rw", the same outside and inside; `disk`: a folder in memory, and its size in MB.
        """
        user = f"{os.getuid()}:{os.getgid()}"
        options: dict[str, Any] = {}
        if disk is not None:
            options["tmpfs"] = {disk[0]: f"size={disk[1]}m,mode=0700,uid={os.getuid()},gid={os.getgid()}"}
        endpoint = {self._network.name: self._client.api.create_endpoint_config(ipv4_address=address)}
        with self._errors():
            container = self._client.containers.create(
                image,
                command,
                name=f"{self._network.name}-{name}",
                hostname=name,
                user=user,
                labels={**self._labels, HOST_LABEL: name},
                environment=dict(environment),
                volumes={path: {"bind": path, "mode": mode} for path, mode in mounts.items()},
                network=self._network.name,
                networking_config=endpoint,
                cap_drop=["ALL"],
                cap_add=list(CAPABILITIES),
                security_opt=["no-new-privileges"],
                **options,
            )
        return Host(name, address, container, self._network, self._errors)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the library's errors into one line."""
        try:
            yield
        except self._docker.errors.APIError as error:
            raise LocalClusterError(f"Docker at {self.address}: {error.explanation or error}") from None
        except (self._docker.errors.DockerException, OSError) as error:  # `requests` raises an OSError
            raise _unreachable(self.address, error) from None


class Host:
    """One container with servers, and its faults."""

    def __init__(self, name: str, address: str, container: Any, network: Any, errors: Any) -> None:  # noqa: ANN401
        """Wrap a container; the last three are objects of the library, which has no types."""
        self.name = name
        self.address = address
        self._container = container
        self._network = network
        self._errors = errors

    @property
    def is_running(self) -> bool:
        """Whether its first process runs."""
        with self._errors():
            self._container.reload()
            return bool(self._container.status in RUNNING)

    def start(self) -> None:
        """Start the container, and so its servers."""
        with self._errors():
            self._container.start()

    def stop(self) -> None:
        """Stop the servers cleanly, the last one first, and then the container."""
        with self._errors():
            self._container.stop(timeout=STOP_LIMIT_S)

    def kill(self) -> None:
        """Kill everything on the host at once, as a power failure does."""
        with self._errors():
            self._container.kill()

    def pause(self) -> None:
        """Suspend every process."""
        with self._errors():
            self._container.pause()

    def resume(self) -> None:
        """Resume every process."""
        with self._errors():
            self._container.unpause()

    def disconnect(self) -> None:
        """Remove the host's network interface."""
        with self._errors():
            self._network.disconnect(self._container)

    def connect(self) -> None:
        """Give the host its interface and address again."""
        with self._errors():
            self._network.connect(self._container, ipv4_address=self.address)

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command on the host as root; return its exit code and output."""
        with self._errors():
            done = self._container.exec_run(list(command), user="0:0")
        return done.exit_code, done.output.decode(errors="replace").strip()


def visible_folders(needed: list[str]) -> list[str]:
    """Return the folders to mount so that a container sees these paths, and the machine's system, as they are."""
    tops = {f"/{name}" for name in _SYSTEM_FOLDERS}
    tops |= {f"/{path.parts[1]}" for name in needed for path in (Path(name), Path(name).resolve()) if path.parts[1:]}
    return sorted(top for top in tops if Path(top).is_dir() and not Path(top).is_symlink())


def _unreachable(address: str, error: BaseException) -> LocalClusterError:
    if "Permission denied" in str(error):
        text = f"no right to use the Docker engine at {address}: run as root, or as a member of the group docker"
        return LocalClusterError(text)
    while error.__context__ is not None:  # the library puts the system's words in those of three others
        error = error.__context__
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return MissingToolError(
        f"no Docker engine answers at {address} ({reason}): install and start one (Debian: apt-get install docker.io),"
        " or set DOCKER_HOST"
    )


def _routed() -> Iterator[ipaddress.IPv4Network]:
    """Yield the networks to which this machine has a route, without the default one."""
    for line in _ROUTES.read_text().splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask:
            yield ipaddress.IPv4Network((destination, mask.bit_count()))
