"""Test programs of other projects, built once from package registries into the user's cache.

franz-go comes as a Go module; librdkafka's sources and tests are in the crate `rdkafka-sys`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.jars import KAFKA_3, JarSource

FRANZ_GO = "v1.22.2"
RDKAFKA_SYS = "4.10.0+2.12.1"
KIP_848 = "848"  # a test of librdkafka with the newer protocol


# What cannot pass with `--assign central`, and what it says there.
NOT_CENTRAL = {
    "Test848RegexBrokerResolves": "it waits for an internal topic, which the coordinator never assigns",
    "0113": "six of its parts expect rounds of all, or what its own strategy gives; the others run alone",
    "0132": "it expects exactly what the clients' own strategies give, and a comma in the group's name",
}
ONLY_CENTRAL = tuple(
    f"0113/{part}"
    for part in (
        "a_assign_tests",
        "c_subscribe_no_cb_test",
        "d_change_subscription_add_topic",
        "e_change_subscription_remove_topic",
        "f_assign_call_cooperative",
        "g_incremental_assign_call_eager",
        "h_delete_topic",
        "i_delete_topic_2",
        "j_delete_topic_no_rb_callback",
        "m_unsubscribe_2",
        "s_subscribe_when_rebalancing",
        "t_max_poll_interval_exceeded",
        "v_commit_during_rebalance",
    )
)


class BuildError(Exception):
    """A suite cannot be built here; the text says why."""


@dataclass(frozen=True, slots=True)
class Program:
    """How one test is run."""

    command: list[str]
    environment: Mapping[str, str]
    needed: tuple[str, ...]  # what it prints if it ran, and did not skip the test


@dataclass(frozen=True, slots=True)
class Suite:
    """A program that runs some tests against a bootstrap address."""

    name: str
    tests: tuple[str, ...]
    build: Callable[[Path], None]
    run: Callable[[Path, Path, str, str], Program]  # where it was built, a folder to write to, bootstrap address, test
    version: str

    def built(self, report: Callable[[str], None]) -> Path:
        """Return the folder in which it was built; build it if it is missing. Raises BuildError."""
        source = JarSource.of(None, None, report)
        folder = source.cache / f"conformance-{self.name}-{self.version}"

        def make(partial: Path) -> None:
            report(f"building {self.name}'s tests, once")
            self.build(partial)

        make_once(folder, source.cache / f"conformance-{self.name}.lock", make, report)
        return folder


def _run(folder: Path, *command: str) -> str:
    """Run a step of a build and return its output; raises BuildError."""
    if shutil.which(command[0]) is None and not Path(folder, command[0]).exists():
        raise BuildError(f"there is no {command[0]}")
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2_000:]}")
    return done.stdout


def _build_franz_go(folder: Path) -> None:
    _run(folder, "go", "mod", "init", "conformance")
    module = json.loads(_run(folder, "go", "mod", "download", "-json", f"github.com/twmb/franz-go@{FRANZ_GO}"))
    _run(Path(module["Dir"]), "go", "test", "-vet=off", "-c", "-o", str(folder / "kgo.test"), "./pkg/kgo")


def _build_librdkafka(folder: Path) -> None:
    crate = folder / "crate"
    (crate / "src").mkdir(parents=True)
    (crate / "src" / "lib.rs").touch()
    (crate / "Cargo.toml").write_text(
        '[package]\nname = "conformance"\nversion = "0.0.0"\nedition = "2021"\n\n'
        f'[dependencies]\nrdkafka-sys = "={RDKAFKA_SYS.partition("+")[0]}"\n'
    )
    metadata = json.loads(_run(crate, "cargo", "metadata", "--format-version", "1"))
    (manifest,) = (one["manifest_path"] for one in metadata["packages"] if one["name"] == "rdkafka-sys")
    sources = folder / "librdkafka"
    shutil.copytree(Path(manifest).parent / "librdkafka", sources)
    _run(sources, "./configure", "--disable-gssapi", "--disable-curl")
    _run(sources, "make", f"-j{os.cpu_count() or 1}", "libs")
    _run(sources, "make", f"-j{os.cpu_count() or 1}", "-C", "tests", "build")


def _run_franz_go(folder: Path, _work: Path, bootstrap: str, test: str) -> Program:
    command = [str(folder / "kgo.test"), "-test.v", "-test.timeout", "600s", "-test.run", f"^{test}$"]
    limits = {"KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "20000", "KGO_LOG_LEVEL": "none"}
    return Program(command, {"KGO_SEEDS": bootstrap, **limits}, (f"--- PASS: {test}",))


def _run_librdkafka(folder: Path, work: Path, bootstrap: str, test: str) -> Program:
    sources = folder / "librdkafka"
    number, _, part = test.partition("/")
    number, _, protocol = number.partition("-")
    settings = work / "test.conf"
    settings.write_text(f"metadata.broker.list={bootstrap}\ntest.topic.random=true\ntest.timeout.multiplier=3\n")
    libraries = os.pathsep.join(str(sources / name) for name in ("src", "src-cpp"))
    environment = {
        "LD_LIBRARY_PATH": libraries,
        "RDKAFKA_TEST_CONF": str(settings),
        "TESTS": number,
        "TEST_KAFKA_VERSION": KAFKA_3,  # some of its tests ask for a version
        "TEST_CONSUMER_GROUP_PROTOCOL": "consumer" if protocol == KIP_848 else "classic",
        **({"SUBTESTS": part} if part else {}),
    }
    return Program([str(sources / "tests" / "test-runner"), "-p1"], environment, ("PASSED",))


SUITES = (
    Suite(
        "franz-go",
        ("TestGroupSimple", "Test848RegexBrokerResolves", "TestGroupETL"),
        _build_franz_go,
        _run_franz_go,
        FRANZ_GO,
    ),
    Suite(
        "librdkafka",
        ("0102", f"0102-{KIP_848}", "0106", "0113", f"0113-{KIP_848}", "0132", *ONLY_CENTRAL),
        _build_librdkafka,
        _run_librdkafka,
        RDKAFKA_SYS,
    ),
)
