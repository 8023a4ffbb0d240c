"""Runs of experiments, in folders or in files of results: what was run, and whether it can be trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zkrebalancer.protocol.errors import ConfigurationError

RESULT = "result.json"
EVENTS = "events"
PARTS = (  # of a result's details
    *("member", "broker", "zookeeper", "coordinator", "group", "gateway", "controller", "topic_mirror", "producer"),
    "run",
)
TUNED, HEARTBEAT = "tuned", "heartbeat-"  # names of settings; heartbeat-50 is tuned with heartbeats every 50 ms
JVM = ("run", "options of each JVM")  # also of the servers, which every protocol uses
WAITS = ("quiet_s", "longest pause before a step, s")  # how long a run rests from one change to the next
_NUMBER, _FIGURE = int | float, int | float | None  # None: not measured
_RESULT = {"protocol": str, "scenario": str, "settings": str, "members": int, "partitions": int, "seed": int}
_STEP = {"number": int, "name": str}
_THROUGHPUT = dict.fromkeys(("delivered_per_s", "lag_max_per_s"), list)
_LAGS = {**_THROUGHPUT, **dict.fromkeys(("delivered_per_s_min", "lag_max", "lag_back_ms"), _FIGURE)}
_STEP_WITHOUT_EVENTS = {
    **dict.fromkeys(("settled_ms", "unowned_partition_ms", "moved", "moved_least"), _NUMBER),
    **dict.fromkeys(("first_record_ms", "requests", "cpu_ms"), _FIGURE),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions under which protocols are compared: scenario, settings, size and broker."""

    scenario: str
    settings: str
    members: int
    partitions: int
    broker: str

    def __str__(self) -> str:
        """Return the setting as a heading."""
        size = f"{self.members} members, {self.partitions} partitions"
        return f"{self.scenario}, {self.settings} settings, {size}, {self.broker}"

    @property
    def heartbeat(self) -> str:
        """The heartbeats that these settings are named after, as "50 ms"; empty: they are not."""
        interval = self.settings.removeprefix(HEARTBEAT)
        return f"{interval} ms" if interval != self.settings and interval.isdecimal() else ""

    @property
    def without_heartbeats(self) -> Setting:
        """The same for a protocol that has no heartbeats."""
        return replace(self, settings=TUNED) if self.heartbeat else self


@dataclass(frozen=True, slots=True)
class Run:
    """One run; `name` is its key in the tables. A run with `doubts` is left out of all statistics unless asked for.

    `has_events`: it is a folder, not a line in a file of results. `steps` and `measures` are those of its result.
    """

    name: str
    protocol: str
    setting: Setting
    seed: int
    members_per_process: int
    doubts: tuple[str, ...]
    versions: str
    machine: str
    is_complete: bool = True
    details: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False)  # settings by part and name
    has_events: bool = True
    has_many_records: bool = False
    steps: Sequence[Mapping[str, Any]] = field(default=(), compare=False)
    measures: Mapping[str, Any] = field(default_factory=dict, compare=False)
    started_at: str = ""  # unknown

    @property
    def conditions(self) -> Iterator[tuple[str, str]]:
        """The settings and versions of a run; runs of a protocol are pooled only if these are the same."""
        yield "versions", self.versions
        yield from ((f"{part} {name}".strip(), value) for (part, name), value in self.details.items())

    @property
    def waits(self) -> list[str | None]:
        """How long it rested from one change to the next, as its details say it."""
        return [self.details.get(("run", name)) for name in WAITS]


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Return every run below these folders and in these files of results, sorted; a path named twice is read once.

    Raises:
        ConfigurationError: there is no run, a result cannot be read, two paths contain the same run, or trusted runs of
            one protocol and setting had other members per process, settings or versions, or those of one setting other
            options of their JVMs.

    """
    runs: list[Run] = []
    seen: dict[Path, Path] = {}
    for path in {path.resolve() if path.is_file() else path: path for path in paths}.values():
        runs += _in_file(path) if path.is_file() else _below(path, seen)
    _require_different(runs)
    _require_same_conditions(run for run in runs if not run.doubts)
    _require_same_servers(run for run in runs if not run.doubts)
    return sorted(runs, key=lambda run: (*_place(run.setting), run.protocol, run.seed, run.name))


def _place(setting: Setting) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return where a setting is in a report: those with other heartbeats follow the tuned one, short ones first."""
    return natural(str(setting.without_heartbeats)), natural(setting.heartbeat)


def natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers by value: heartbeat-200 before heartbeat-1000."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text)]


def _below(directory: Path, seen: dict[Path, Path]) -> Iterator[Run]:
    results = sorted(directory.rglob(RESULT))
    if not results:
        raise ConfigurationError(f"{directory} has no run: no {RESULT} below it")
    for path in results:
        if seen.setdefault(path.resolve(), directory) != directory:
            raise ConfigurationError(f"{path.parent} is below {seen[path.resolve()]} and {directory}; name only one")
    for path in results:
        has_events = next((path.parent / EVENTS).glob("*.jsonl"), None) is not None
        missing = () if has_events else ("its events are missing",)
        where = str(path)
        yield _run(_parsed(_content(path), where), where, run_name(directory, path.parent), missing)


def _in_file(path: Path) -> Iterator[Run]:
    """Return the runs of a file with a result in each line, as it is published without the runs' events."""
    lines = _content(path).splitlines()
    if not lines:
        raise ConfigurationError(f"{path} has no run: it is empty")
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        result = _parsed(line, where)
        for step in result.get("steps") or ():
            _require(step, _STEP_WITHOUT_EVENTS, _of_step(step, where))
        yield replace(_run(result, where, where, ()), has_events=False)


def _require_different(runs: Iterable[Run]) -> None:
    first: dict[tuple[Setting, str, int, str], Run] = {}
    for run in runs:
        other = first.setdefault((run.setting, run.protocol, run.seed, run.started_at), run)
        if run.started_at and other is not run:
            both = f"{other.name} and {run.name}"
            raise ConfigurationError(f"{both} are the same run, started at {run.started_at}; leave one out")


def _require_same_conditions(runs: Iterable[Run]) -> None:
    first: dict[tuple[Setting, str], Run] = {}
    for run in runs:
        other = first.setdefault((run.setting, run.protocol), run)
        if run.members_per_process != other.members_per_process:
            both = [f"{one.name} had {one.members_per_process} members in a process" for one in (other, run)]
            raise ConfigurationError(f"{', '.join(both)}: compare them separately")
        differing = sorted(key for key, _value in {*run.conditions} ^ {*other.conditions})
        if differing:
            names = f"{other.name} and {run.name}"
            raise ConfigurationError(
                f"{names} differ in {', '.join(dict.fromkeys(differing))}: compare them separately"
            )


def _require_same_servers(runs: Iterable[Run]) -> None:
    """Refuse to compare protocols whose servers ran with and without the optimizing compiler."""
    first: dict[Setting, Run] = {}
    for run in runs:
        other = first.setdefault(run.setting.without_heartbeats, run)
        options = [one.details.get(JVM) for one in (other, run)]
        if options[0] != options[1]:
            both = [f"{one.name} had {of or 'no options'}" for one, of in zip((other, run), options, strict=True)]
            raise ConfigurationError(f"{', '.join(both)} for JVMs: compare them separately")


def run_name(directory: Path, folder: Path) -> str:
    """Return the key of a run: the folder as named by the user, then the path below it."""
    return f"{directory}/{folder.relative_to(directory)}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from None


def _parsed(content: bytes, where: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(content)
    except ValueError as error:
        raise ConfigurationError(f"{where}: cannot be read ({error})") from None
    _require(document, _RESULT, where)
    for key, kind in (("steps", list), ("measures", dict)):  # a run without events has none
        if document.get(key):
            _require(document, {key: kind}, where)
    for step in document.get("steps") or ():
        _require(step, _STEP, where)
        if step.get("delivered_per_s") is not None:
            _require(step, _LAGS, _of_step(step, where))
    return dict(document)


def _require(found: Any, types: Mapping[str, Any], where: str) -> None:  # noqa: ANN401  # unchecked JSON
    for key, kind in types.items():
        if not isinstance(found, dict) or key not in found or not isinstance(found[key], kind):
            raise ConfigurationError(f"{where}: {key} is missing or of another type")


def _of_step(step: Mapping[str, Any], where: str) -> str:
    return f"{where}: step {step['number']}"


def _run(document: Mapping[str, Any], where: str, name: str, missing: tuple[str, ...]) -> Run:
    match document.get("details"):
        case {"broker": {"kind": str(broker)}, "members_per_process": int(members_per_process)}:
            pass
        case _:
            raise ConfigurationError(f"{where}: details of broker and members_per_process are missing")
    doubts = [str(doubt) for doubt in document.get("doubts") or ()]
    if not document.get("complete"):
        doubts.append("it did not finish")
    if not document.get("trusted") and not doubts:
        doubts.append("it is marked as untrusted")
    setting = Setting(document["scenario"], document["settings"], document["members"], document["partitions"], broker)
    versions, machine = (_as_text(document.get(key)) for key in ("versions", "machine"))
    return Run(
        name,
        document["protocol"],
        setting,
        document["seed"],
        members_per_process,
        (*doubts, *missing),
        versions,
        machine,
        bool(document.get("complete")),
        _flat(document["details"]),
        has_many_records=bool(document["details"].get("record_bytes")),
        steps=document.get("steps") or (),
        measures=document.get("measures") or {},
        started_at=str(document.get("started_at") or ""),
    )


def _flat(details: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the settings in a run's details by part (of PARTS) and name; what is in no part is of the run."""
    found = {("run", name): str(value) for name, value in details.items() if isinstance(value, str | int | float)}
    for part in PARTS:
        of_part = details.get(part)
        found |= {(part, str(name)): str(value) for name, value in of_part.items()} if isinstance(of_part, dict) else {}
    return found


def _as_text(values: Any) -> str:  # noqa: ANN401  # unchecked JSON
    entries = values.items() if isinstance(values, dict) else ()
    return ", ".join(f"{key} {value}" for key, value in entries if not key.startswith("load"))
