"""The settings of `consumer-agent run`, from a file, the environment and flags; flags override the others.

All are read before any is checked, so that all faults are reported at once, each with its origin.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from consumer_agent import config as configuration
from consumer_agent.config import Check, ConsumerConfig, Fault, choice, integer, text_fault
from consumer_agent.kafka_config import is_secret, kafka_key
from consumer_agent.sidecar.frames import CODECS
from consumer_agent.sidecar.sidecar import SidecarSettings
from zkrebalancer.protocol import addresses, paths
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.registration import BLACK_LIST, WHITE_LIST, stop_limit_ms
from zkrebalancer.protocol.suggestions import unknown
from zkrebalancer.runtime.toml_file import read_toml

PREFIX = "CONSUMER_AGENT_"
KAFKA_PREFIX = f"{PREFIX}KAFKA_"
SHARED_PREFIX = "ZKREBALANCER_"  # of the settings of ZooKeeper, which all commands share
MASKED = frozenset({"zookeeper_password"})
NO_SETTINGS = frozenset({f"{PREFIX}CONFIG", f"{PREFIX}FAILPOINT"})  # our variables that are no settings
LOG_LEVELS = ("debug", "info", "warning", "error")
MASK = "********"
SIDECAR_DEFAULTS: Mapping[str, Any] = {entry.name: entry.default for entry in fields(SidecarSettings)}
_THREADS = re.compile(r"(.*?)(?::([0-9]{1,5}))?")


@dataclass(slots=True)
class Settings:
    """Values by name, their origins, and the faults found while reading."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # a name, or `kafka_config.` and a key of librdkafka
    faults: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # variables that look like settings

    def put(self, key: str, value: object, origin: str) -> None:
        """Set a value, or replace an earlier one; `kafka_config` is replaced key by key."""
        if key == "kafka_config" and isinstance(value, Mapping):
            for name, setting in value.items():
                self.values.setdefault(key, {})[name] = setting
                self.origins[f"{key}.{name}"] = origin
        else:
            self.values[key] = value
        self.origins[key] = origin

    def group_of(self, settings_class: type) -> dict[str, Any]:
        """Return the values of the fields of a settings class."""
        return {entry.name: self.values[entry.name] for entry in fields(settings_class) if entry.name in self.values}


# ---- reading


def gather(files: Sequence[str], environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """Read the files, the environment and the flags; `flags` has strings, or lists of them, by setting.

    Each overrides those before it. Without `files`, a variable may name one.
    """
    settings = Settings()
    variable = environment.get(f"{PREFIX}CONFIG")
    for path in files or ([] if variable is None else [variable]):
        _read_file(settings, path)
    _read_environment(settings, environment)
    for key, value in flags.items():
        if key == "kafka_config":
            for text in value:
                name, _, setting = text.partition("=")
                settings.put(key, {name: setting}, f"--kafka {name}")
        else:
            settings.put(key, _typed(key, value), f"--{_FLAGS.get(key, key).replace('_', '-')}")
    return settings


def _read_file(settings: Settings, path: str) -> None:
    try:
        document = read_toml(path)
    except ConfigurationError as error:
        settings.faults.append(str(error))
        return
    for key, value in document.items():
        if key == "kafka_config" and not isinstance(value, Mapping):
            settings.faults.append(f"{path}: {key}: must be a table, not {value!r:.80}")
        elif key in KINDS:
            settings.put(key, value, f"{path}: {key}")
        else:
            settings.faults.append(f"{path}: {unknown(key, KINDS)}")


def _read_environment(settings: Settings, environment: Mapping[str, str]) -> None:
    for key in KINDS:
        name = f"{SHARED_PREFIX}{key.upper()}"
        if key.startswith("zookeeper") and environment.get(name):
            settings.put(key, _typed(key, environment[name]), name)
    for name, text in sorted(environment.items()):
        key = name.removeprefix(PREFIX).lower()
        if name.startswith(KAFKA_PREFIX):
            settings.put("kafka_config", {kafka_key(name.removeprefix(KAFKA_PREFIX)): text}, name)
        elif name.startswith(PREFIX) and key in KINDS:
            settings.put(key, _typed(key, text), name)
        elif name.startswith(PREFIX) and name not in NO_SETTINGS:
            settings.ignored.append(name)


def _typed(key: str, value: object) -> object:
    """Convert a string to its setting's type; if that fails, return the string, which the check refuses."""
    if not isinstance(value, str):
        return value
    kind = KINDS[key].removesuffix(" | None")
    if kind == "int" and re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        return int(value)
    if kind == "float" and re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?", value):
        return float(value)
    if kind == "bool":
        return {"true": True, "false": False}.get(value.lower(), value)
    return value.split(",") if kind == "list" else value


# ---- judging


def find_faults(settings: Settings) -> list[str]:
    """Return all faults with their origins, one line each."""
    values = settings.values
    found = configuration.find_faults(settings.group_of(ConsumerConfig))
    for key, check in _CHECKS.items():
        text = check(values[key]) if key in values else None
        if text is not None:
            found.append(Fault(key, text))
    refused = {fault.key for fault in found}
    found += _relations(values, refused)
    return settings.faults + [f"{_origin(settings, fault)}: {fault.text}" for fault in found]


def _origin(settings: Settings, fault: Fault) -> str:
    setting = fault.text.partition(" ")[0]
    if f"{fault.key}.{setting}" in settings.origins:
        return settings.origins[f"{fault.key}.{setting}"]
    if fault.key in settings.origins:
        return settings.origins[fault.key]
    flag = f"--{_FLAGS.get(fault.key, fault.key).replace('_', '-')}"
    return f"{fault.key} ({flag}, {PREFIX}{fault.key.upper()} or {fault.key} in the file)"


def _relations(values: Mapping[str, Any], refused: set[str]) -> list[Fault]:
    """Return faults between settings that are valid by themselves."""
    found = _child_faults(values, refused)
    if not refused & {"topics", "pattern", "pattern_type"}:
        found += _subscription_faults(values)
    return found


def _child_faults(values: Mapping[str, Any], refused: set[str]) -> list[Fault]:
    own = [entry.name for entry in fields(SidecarSettings)]
    if "exec" not in values:
        return [Fault(key, "applies only with --exec") for key in (*own, "dead_letter") if key in values]
    known: dict[str, Any] = {entry.name: entry.default for entry in fields(ConsumerConfig)}
    known |= {**SIDECAR_DEFAULTS, **values}
    found = []
    if known["enable_auto_commit"] is False:
        found.append(
            Fault("enable_auto_commit", "must be true with --exec: what the command acknowledges is committed")
        )
    failures, restarts = known["max_failures"], known["max_restarts"]
    if not refused & {"max_failures", "max_restarts"} and failures > restarts:
        text = f"{failures} is more than max_restarts ({restarts}): a record that kills the child is never given up"
        found.append(Fault("max_failures", text))
    revoke_ms, interval_ms = known["revoke_timeout_ms"], known["max_poll_interval_ms"]
    if not refused & {"revoke_timeout_ms", "max_poll_interval_ms"} and revoke_ms >= interval_ms:
        text = f"{revoke_ms} is not below max_poll_interval_ms ({interval_ms}), after which the partitions are lost"
        found.append(Fault("revoke_timeout_ms", text))
    return found


def fit_revoke_timeout(settings: Settings, stop_timeout_ms: int, rebalance_timeout_ms: int) -> tuple[int, list[str]]:
    """Return how long the command may take to release partitions, and why that is too long for this group.

    The coordinator waits for the agent's registered stop timeout, and at least for the group's `rebalance_timeout_ms`.
    The default is two thirds of that wait, at most the usual default.
    """
    limit_ms = stop_limit_ms(stop_timeout_ms, rebalance_timeout_ms)
    revoke_ms = settings.values.get("revoke_timeout_ms")
    if revoke_ms is None:
        return min(SIDECAR_DEFAULTS["revoke_timeout_ms"], limit_ms * 2 // 3), []
    if revoke_ms < limit_ms:
        return revoke_ms, []
    group = f"rebalance_timeout_ms of group {settings.values['group']}"
    limit = f"stop_timeout_ms ({stop_timeout_ms})" if limit_ms == stop_timeout_ms else f"{group} ({limit_ms})"
    text = f"{revoke_ms} is not below {limit}, after which others get partitions that the command still works on"
    return revoke_ms, [f"{_origin(settings, Fault('revoke_timeout_ms', text))}: {text}"]


def _subscription_faults(values: Mapping[str, Any]) -> list[Fault]:
    key = "pattern" if values.get("pattern") is not None else "topics"
    try:
        wanted = configuration.subscription(**subscription_arguments(values))
    except RebalancerError as error:
        return [Fault(key, str(error).removeprefix("subscribe: "))]
    kind, _, letters = str(values.get("dead_letter", "")).partition(":")
    if kind != "topic":
        return []
    if letters in wanted.topics or (wanted.kind != "static" and _matches(wanted.kind, values["pattern"], letters)):
        return [Fault("dead_letter", f"topic {letters} is one of those that this agent reads")]
    return []


def _matches(kind: str, pattern: str, topic: str) -> bool:
    from zkrebalancer.protocol.patterns import TopicFilter  # noqa: PLC0415  # re2 is loaded only for patterns

    return TopicFilter(kind, pattern).matches(topic)


def subscription_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Consumer.subscribe`."""
    topics: dict[str, int] | None = None
    if "topics" in values:
        found = [_THREADS.fullmatch(topic) for topic in values["topics"]]
        topics = {match[1]: int(match[2] or 1) for match in found if match is not None}
    return {"topics": topics, "pattern": values.get("pattern"), "pattern_type": values.get("pattern_type", WHITE_LIST)}


# ---- showing


def effective(settings: Settings) -> dict[str, tuple[Any, str]]:
    """Return every effective value with its origin, defaults included; secrets are masked."""
    shown: dict[str, tuple[Any, str]] = {}
    for entry in (*fields(ConsumerConfig), *fields(SidecarSettings)):
        if entry.name not in KINDS:
            continue
        if entry.default is not MISSING or entry.default_factory is not MISSING:
            default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
            shown[entry.name] = (default, "default")
    shown |= {key: (value, settings.origins[key]) for key, value in settings.values.items()}
    for name, value in shown.pop("kafka_config", ({}, ""))[0].items():
        key = f"kafka_config.{name}"
        shown[key] = (MASK if is_secret(name) else value, settings.origins[key])
    for key in MASKED & settings.values.keys():
        shown[key] = (MASK, settings.origins[key])
    if "exec" not in settings.values:
        shown = {key: shown[key] for key in shown if key not in {entry.name for entry in fields(SidecarSettings)}}
    return {key: shown[key] for key in shown if shown[key][0] is not None}


def as_toml(shown: Mapping[str, tuple[Any, str]]) -> str:
    """Format the result of `effective` as a file for `--config`; comments name the origins."""
    lines: list[str] = []
    table = ["", "[kafka_config]"]
    for key, (value, origin) in shown.items():
        is_kafka = key.startswith("kafka_config.")
        name = json.dumps(key.removeprefix("kafka_config.")) if is_kafka else key
        text = json.dumps(value, ensure_ascii=False, default=str)  # TOML allows no surrogate escapes,
        text = text.replace("\x7f", "\\u007f")  # and this character only escaped
        (table if is_kafka else lines).append(f"{name} = {text}  # {origin}")
    return "\n".join(lines + (table if len(table) > 2 else []))


# ---- checks of the settings that ConsumerConfig does not check


def _topics(value: object) -> str | None:
    if not isinstance(value, list) or not value or not all(isinstance(topic, str) for topic in value):
        return f"must be a list of NAME[:THREADS], not {value!r:.80}"
    for topic in value:
        name, colon, threads = topic.partition(":")
        if colon and not re.fullmatch(r"[0-9]{1,5}", threads):
            return f"{topic!r:.80}: the number of threads after ':' is not a number"
        if not paths.is_legal_topic(name):
            return f"{name!r:.80} is not a topic's name"
    return None


def _dead_letter(value: object) -> str | None:
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind not in {"topic", "file"} or not name or "\0" in name:
        return f"must be topic:NAME or file:PATH, not {value!r:.80}"
    return f"{name!r:.80} is not a topic's name" if kind == "topic" and not paths.is_legal_topic(name) else None


def _exec(value: object) -> str | None:
    if not isinstance(value, str):
        return text_fault(value)
    try:
        shlex.split(value)
    except ValueError as error:
        return f"cannot be split into words: {error}"
    return text_fault(value)


def _http(value: object) -> str | None:
    is_one = isinstance(value, str) and "," not in value and addresses.servers_fault(value) is None
    return None if is_one else f"must be HOST:PORT, not {value!r:.80}"


_FLAGS = {"topics": "topic", "group_instance_id": "instance_id", "events_directory": "events"}
_CHECKS: dict[str, Check] = {
    "topics": _topics,
    "pattern": text_fault,
    "pattern_type": choice(WHITE_LIST, BLACK_LIST),
    "exec": _exec,
    "frames": choice(*CODECS),
    "dead_letter": _dead_letter,
    "max_failures": integer(1, 1_000),
    "max_restarts": integer(0, 1_000_000),
    "max_in_flight_records": integer(1, 100_000),
    "max_in_flight_bytes": integer(1_000, 1_000_000_000),
    "revoke_timeout_ms": integer(1, 3_600_000),
    "drain_timeout_ms": integer(0, 3_600_000),
    "http": _http,
    "log_level": choice(*LOG_LEVELS),
}
_LISTS = frozenset({"topics"})
KINDS: dict[str, str] = {
    **{key: "list" if key in _LISTS else "str" for key in _CHECKS},
    **{entry.name: str(entry.type) for entry in (*fields(ConsumerConfig), *fields(SidecarSettings))},
}
FUNCTIONS = ("key_deserializer", "value_deserializer", "on_deserialization_error")  # which only Python can set
for _decided in ("command", "enable_auto_finish", *FUNCTIONS):  # by `exec`
    del KINDS[_decided]
