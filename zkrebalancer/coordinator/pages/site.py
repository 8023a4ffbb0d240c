"""The pages by path: the files of the program that runs in the browser, and the data that it asks for.

| path | answer |
|---|---|
| `/` | the page |
| `/page/groups?search=&state=&page=` | all groups, sums, the last rebalances |
| `/page/group?name=&topic=&lanes=&member=&members=` | one group |
| `/page/live/groups`, `/page/live/group` | the same as server-sent events, whenever it changes |
| `/page/live/plan?name=` | what a rebalance would move now; one event, then the end |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.pages import group_view, overview
from zkrebalancer.coordinator.pages.asking import Asking, NoAnswerError
from zkrebalancer.coordinator.pages.foresight import Foresight
from zkrebalancer.coordinator.pages.group_view import Parts
from zkrebalancer.coordinator.pages.live import Document, Make, Streams, encode
from zkrebalancer.coordinator.pages.overview import MAX_SEARCH, Listed, Overview, Rendered, Wanted
from zkrebalancer.coordinator.pages.recent import Recent
from zkrebalancer.observe import inspection
from zkrebalancer.protocol import history, paths
from zkrebalancer.protocol.calls import Content, Refusal, Refused
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.history import Rebalanced
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.election import ElectionState
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.http_limits import Renderer
from zkrebalancer.runtime.http_server import JSON, NOT_FOUND, OK, UNAVAILABLE, Answer, Stream

STATIC = Path(__file__).with_name("static")
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
EVENT_STREAM = "text/event-stream"
OWN = "script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = (
    ("Content-Security-Policy", f"{OWN}; {NOTHING}"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)
MAX_PAGE = 1_000_000
MAX_FIELDS = 10  # of a query
SETTLING_US = 5_000_000  # after a change, what the leader writes about it may still come
LONGEST_KEPT_US = 15_000_000  # not every change is noticed, such as the end of an error
LEADER_KEPT_US = 2_000_000

Query = Mapping[str, str]
Leader = tuple[Document | None, str | None]  # if none is known, perhaps why


class Site:
    """Answers requests by path and query."""

    def __init__(
        self,
        monitor: Monitor,
        asking: Asking,
        foresight: Foresight,
        renderer: Renderer,
        lag_line: Callable[[str], str | None] = lambda _group: None,
    ) -> None:
        """Follow the coordinator from now on. `lag_line`: what is known of a group's level of lag."""
        self._lag_line = lag_line
        self._monitor = monitor
        self._asking = asking
        self._foresight = foresight
        self._overview = Overview(monitor)
        self._recent = Recent()
        self._streams = Streams()
        self._renderer = renderer
        self._rendered = Rendered()
        self._files = {f"/page/{file.name}": file for file in STATIC.iterdir() if file.suffix in KINDS}
        self._files["/"] = STATIC / "index.html"
        self._leader: tuple[int, str, Leader] = (-LEADER_KEPT_US, "", (None, None))  # when it was read, and where
        monitor.shards.keep_turnover()
        monitor.listeners.append(lambda effect, cause: self._recent.note(effect, cause, clock.epoch_ms()))

    def __call__(self, path: str, query: str) -> Answer | Stream | None:
        """Return an answer; None if there is no such path."""
        if path in self._files:
            return self._file(self._files[path])
        if not path.startswith("/page/"):
            return None
        fields, name = _fields(query), path.removeprefix("/page/")
        if name == "live/plan":
            return self._stream(self._streams.once, lambda: self._plan(fields))
        makers: dict[str, Callable[[Query], Make]] = {"groups": self._groups, "group": self._group}
        make = makers.get(name.removeprefix("live/"))
        if make is None:
            return Answer(NOT_FOUND, JSON, encode({"error": "unknown path"}), HEADERS)
        is_live = name.startswith("live/")
        return (
            self._stream(self._streams.follow, make(fields)) if is_live else Answer(OK, JSON, make(fields)(), HEADERS)
        )

    def close(self) -> None:
        """End what runs for readers."""
        self._foresight.close()

    @staticmethod
    def _file(file: Path) -> Answer:
        return Answer(OK, KINDS[file.suffix], file.read_bytes(), HEADERS)

    def _stream(self, follow: Callable[[Make], Any], make: Make) -> Answer | Stream:
        if self._streams.is_full:
            return Answer(UNAVAILABLE, JSON, encode({"error": "too many readers; ask again later"}), HEADERS)
        return Stream(EVENT_STREAM, follow(make), HEADERS)

    # Who leads --------------------------------------------------------------------------------------------------------

    def _coordinator(self, group: str = "") -> Document:
        """Return what this coordinator is, and the leader if it is another one: the leader of this group, if any.

        If no leader is known, `unknown` says why.
        """
        health, machine = self._monitor.health(), self._monitor.machine_of(group)
        leads = health.leads and (not group or machine is None or machine.shard.number in self._monitor.led)
        identity = self._monitor.shards.identity
        own = {**health.facts, "host": identity.host, "leads": leads, "faults": health.faults}
        if not self._monitor.is_connected:
            own["state"] = ElectionState.DISCONNECTED.value
        leader, unknown = (None, None) if leads else self._other_leader(machine)
        return {"coordinator": own, "leader": leader, "unknown": unknown}

    def _other_leader(self, machine: Coordinator | None) -> Leader:
        if not self._monitor.is_connected:
            return None, "ZooKeeper does not answer this coordinator"
        if machine is None:
            return None, "this coordinator does not know yet how many shards of groups there are"
        path = machine.shard.coordinator
        read_us, known_path, leader = self._leader
        if clock.steady_us() < read_us + LEADER_KEPT_US and path == known_path:
            return leader
        leader = self._read_leader(path)
        self._leader = clock.steady_us(), path, leader
        return leader

    def _read_leader(self, path: str) -> Leader:
        try:
            node = self._asking.get(path)
        except NoAnswerError as error:
            return None, str(error)
        if isinstance(node, Refused) and node.refusal is not Refusal.NO_NODE:
            return None, f"ZooKeeper refuses to show {path}: {node.refusal.value}"
        found, identity = inspection.leader_in(node), self._monitor.shards.identity
        if found is None:
            return None, None
        if (found.brokerid, found.host, found.http) == (identity.brokerid, identity.host, identity.http):
            return None, (
                "the leader's node names this coordinator, which does not lead: it is stopping, or it was restarted and"
                " the session of its former process has not ended"
            )
        return {**asdict(found), "name": found.name}, None

    # Documents --------------------------------------------------------------------------------------------------------

    def _groups(self, fields: Query) -> Make:
        wanted = Wanted(fields.get("search", "")[:MAX_SEARCH], fields.get("state") or None, _page(fields, "page"))

        def make() -> bytes:
            role = self._coordinator()
            if not role["coordinator"]["leads"]:
                return encode(role)
            listed = self._overview.look()
            known = self._rendered.find(listed, role, wanted)
            return self._listing(listed, role, wanted) if known is None else known

        return make

    def _listing(self, listed: Listed, role: Document, wanted: Wanted) -> bytes:
        """Make a page of what is known when its turn has come, unless another reader's turn has brought it."""

        def prepare() -> Callable[[], bytes]:
            nonlocal listed
            listed, ended = self._overview.look(), tuple(self._recent.ended)
            known = self._rendered.find(listed, role, wanted)
            if known is not None:
                return lambda: known
            return lambda: encode(
                {
                    **role,
                    **overview.document(listed, wanted, clock.boot_ms()),
                    "ended": [asdict(one) for one in reversed(ended)],
                }
            )

        content = self._renderer.make(prepare)
        self._rendered.keep(listed, role, wanted, content)
        return content

    def _group(self, fields: Query) -> Make:
        name = fields.get("name", "")
        parts = Parts(
            fields.get("topic", "")[:MAX_SEARCH],
            _page(fields, "lanes"),
            fields.get("member", "")[:MAX_SEARCH],
            _page(fields, "members"),
        )
        key: object = None
        changed_us, made_us, content = 0, 0, b""

        def make() -> bytes:
            nonlocal key, changed_us, made_us, content
            role, now_us = self._coordinator(name), clock.steady_us()
            before, key = key, (role, self._key(name))
            if key != before:
                changed_us = now_us
            if key != before or now_us < changed_us + SETTLING_US or now_us >= made_us + LONGEST_KEPT_US:
                content = self._group_document(name, role, parts)
                made_us = now_us
            return content

        return make

    def _key(self, name: str) -> object:
        """Return what differs after a change of a group."""
        coordinator, group = self._monitor.machine_of(name), self._monitor.group(name)
        if coordinator is None:
            return None
        if group is None:
            return self._absence(name, coordinator)
        refusals, version = len(coordinator.scheduler.refusals.known), self._recent.versions.get(name)
        view, is_outdated = group.view, self._monitor.is_outdated(name)
        of_view = view.created_zxid, view.settings_version, len(view.members)
        return group.state, group.story.since_us, version, of_view, is_outdated, refusals, self._lag_line(name)

    def _absence(self, name: str, coordinator: Coordinator) -> Document:
        """Return why a leader does not have a group."""
        error = coordinator.quarantine.out.get(name)
        kind = "loading" if error is None and self._monitor.is_unread(name) else "missing"
        return {kind: name[:MAX_SEARCH], "error": error}

    def _group_document(self, name: str, role: Document, parts: Parts) -> bytes:
        coordinator = self._monitor.machine_of(name)
        if not role["coordinator"]["leads"] or coordinator is None:
            return encode(role)
        for is_last in (False, True):  # of the readings: a rebalance may have ended while the page waited for its turn
            if self._monitor.group(name) is None:
                break
            version, past = self._recent.versions.get(name, 0), self._past(name)
            prepare = partial(self._prepared_group, name, role, parts, past, None if is_last else version)
            if content := self._renderer.make(prepare):
                return content
        return encode({**role, **self._absence(name, coordinator)})

    def _prepared_group(
        self,
        name: str,
        role: Document,
        parts: Parts,
        read: tuple[tuple[Rebalanced, ...], list[str]],
        version: int | None,
    ) -> Callable[[], bytes]:
        """Copy a group when the page's turn has come; make nothing if the group is gone, or had events since `version`.

        The history is read before, because metrics would wait in the same turn for ZooKeeper's answer.
        """
        coordinator, group = self._monitor.machine_of(name), self._monitor.group(name)
        if group is None or coordinator is None or version not in {None, self._recent.versions.get(name, 0)}:
            return lambda: b""
        past, problems = read
        slo = {} if problems and not past else group.view.settings.slo
        levels = group_view.levels(slo, past, self._lag_line(name))
        extra = {"problems": problems, "levels": levels, "reading": self._reading(name)}
        planned = self._recent.planned.get(name)
        copied = group_view.copy(coordinator, group, planned, clock.steady_us(), clock.epoch_ms())
        return lambda: encode({**role, **group_view.document(copied, past, parts, clock.boot_ms()), **extra})

    def _reading(self, name: str) -> list[str]:
        if self._monitor.is_unread(name):
            return ["this coordinator has not read the group yet; until then, it knows no member of it"]
        if self._monitor.is_outdated(name):
            return ["the group waits to be read again; until then, what is shown may be outdated"]
        return []

    def _past(self, name: str) -> tuple[tuple[Rebalanced, ...], list[str]]:
        """Return the recorded rebalances of a group, and why others cannot be read."""
        try:
            node = self._asking.get(paths.history(name))
            if isinstance(node, Refused) and node.refusal is not Refusal.NO_NODE:
                return (), [f"history: ZooKeeper refuses to show it: {node.refusal.value}"]
            found = history.decode(node.content) if isinstance(node, Content) else history.History()
        except (NoAnswerError, NodeContentError) as error:
            return (), [f"history: {error}"]
        return found.rebalances, [f"history: {problem}" for problem in found.problems]

    def _plan(self, fields: Query) -> bytes:
        name = fields.get("name", "")
        role, coordinator = self._coordinator(name), self._monitor.machine_of(name)
        if not role["coordinator"]["leads"] or coordinator is None:
            return encode(role)
        if self._monitor.group(name) is None:
            return encode({**role, **self._absence(name, coordinator)})
        return encode({**role, "group": name, "plan": self._foresight.plan(name)})


def _fields(query: str) -> Query:
    try:
        return {name: values[0] for name, values in parse_qs(query, max_num_fields=MAX_FIELDS).items()}
    except ValueError:
        return {}


def _page(fields: Query, name: str) -> int:
    number = fields.get(name, "1")
    return min(int(number), MAX_PAGE) if number.isascii() and number.isdigit() and len(number) < 10 else 1
