"""Hosts whose first process is systemd: containers with this machine's programs and a few files of `/etc`.

Each has its own control groups, network address, journal and `/etc/systemd/system`.
"""

from __future__ import annotations

import io
import tarfile
from functools import partial
from pathlib import Path

from tests.support.docker_engine import Engine
from tests.support.waiting import wait_until

IMAGE, NETWORK, SUBNET = "systemd-host", "hosts", "172.30.77"
LINKS = ("bin", "sbin", "lib", "lib64")
COPIED = ("passwd", "group", "shadow", "nsswitch.conf", "ld.so.cache", "ssl", "alternatives", "pip.conf")
FOLDERS = ("usr", "etc/systemd/system", "opt", "root", "var/log", "var/lib")
# What a container has no use for, or may not do.
MASKED = (
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "proc-sys-fs-binfmt_misc.automount", "getty.target"),
    *("systemd-logind.service", "systemd-timesyncd.service", "systemd-udevd.service", "systemd-udev-trigger.service"),
    *("timers.target", "systemd-firstboot.service", "systemd-remount-fs.service"),
)
# systemd needs control groups that it may write, of the second version.
CGROUPS = "/sys/fs/cgroup"
# A unit's credentials are mounted in a namespace of their own and reach it only if mounts are shared; as on a machine.
START = f"""mount -o remount,rw /sys; umount -R {CGROUPS}; mount -t cgroup2 cgroup2 {CGROUPS}
mount --make-rshared /; exec /lib/systemd/systemd"""
RIGHTS = (  # not --privileged: that fails where this machine's root lacks one capability
    *("--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--security-opt=seccomp=unconfined"),
    *("--security-opt=apparmor=unconfined", "--security-opt=systempaths=unconfined", "--cgroupns=private"),
)
MOUNTS = ("--mount=type=bind,source=/usr,target=/usr,readonly", "--tmpfs=/run", "--tmpfs=/tmp:exec")


def make_image(engine: Engine, java: Path) -> None:
    """Make the image; `java`: the Java of this machine, whose settings in `/etc` are copied."""
    archive = io.BytesIO()
    linked = sorted({path.resolve() for path in java.rglob("*") if path.is_symlink()})
    settings = [path for path in linked if path.is_relative_to("/etc") and path.parts[2] not in COPIED]
    with tarfile.open(fileobj=archive, mode="w") as tar:
        links = {name: f"usr/{name}" for name in LINKS}
        links |= {f"etc/systemd/system/{unit}": "/dev/null" for unit in MASKED}
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.addfile(tarfile.TarInfo("etc/machine-id"))  # systemd writes it
        for file in (*(Path("/etc", name) for name in COPIED), *settings):
            if file.exists():
                tar.add(file, str(file).lstrip("/"))
    engine.docker("import", "-", IMAGE, stdin=archive.getvalue())


class Host:
    """A running host; `run` runs a script in its shell, as root."""

    def __init__(self, engine: Engine, number: int, *options: str) -> None:
        """Start it as `b1`, `b2` …; the others are found by this name, and as `zk1` …."""
        self.name = f"b{number}"
        self._engine = engine
        others = (f"--add-host={kind}{one}:{SUBNET}.{10 + one}" for one in (1, 2, 3) for kind in ("b", "zk"))
        place = (f"--name={self.name}", f"--hostname={self.name}", f"--network={NETWORK}")
        command = (*place, f"--ip={SUBNET}.{10 + number}", *others, *RIGHTS, *MOUNTS, *options, IMAGE)
        engine.docker("run", "--detach", *command, "sh", "-c", START)
        failed = partial(self.tells, "systemctl --failed; systemctl list-jobs")
        wait_until(lambda: self.tells("systemctl is-system-running") == "running", failed)

    def run(self, script: str) -> str:
        """Run a script; return its output, or fail with what it wrote."""
        return self._engine.docker("exec", "--interactive", self.name, "bash", "-e", stdin=script.encode())

    def tells(self, script: str) -> str:
        """Return the output of a script that may fail."""
        return self.run(f"{{ {script}; }} 2>&1 || true")

    def write(self, path: str, text: str) -> None:
        """Write a file that all may read."""
        self._engine.docker(
            "exec",
            "--interactive",
            self.name,
            "sh",
            "-c",
            f"mkdir -p {Path(path).parent} && cat > {path}",
            stdin=text.encode(),
        )
