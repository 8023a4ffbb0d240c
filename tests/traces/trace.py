"""Runs a scenario that is written as text, and writes below each of its lines what the coordinator did.

A line that begins with `> ` is a step of the scenario (`STEPS`); all others are what came of it: the coordinator's
transactions, its telemetry events and warnings, in order, with the virtual time since the step in milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.world import GROUP, World
from tests.support.zk_model import Session
from zkrebalancer.protocol import command, fields, offset_copy, ownership, paths, registration
from zkrebalancer.protocol.calls import Check, Create, Delete, Multi, Operation, SetContent
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.rebalance.effects import Emit, Event, Request, ShutDown, Warn

PROMPT = "> "
FAULTS = ("before-kill", "after-kill", "before-break", "after-break")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(slots=True)
class Trace(World):
    """A world that writes down what its coordinators do."""

    lines: list[str] = field(default_factory=list)
    began_us: int = 0

    def feed(self, process: object, event: Event) -> list[object]:  # type: ignore[override]
        effects = World.feed(self, process, event)  # type: ignore[arg-type]
        number = self.coordinators.index(process) + 1  # type: ignore[arg-type]
        for effect in effects:
            text = described(effect)
            if text is not None:
                self.lines.append(f"  {(self.now_us - self.began_us) // 1_000:5d} C{number} {text}")
        return list(effects)


def described(effect: object) -> str | None:
    """Return what a reader should see of an effect; reads and computations are left out."""
    if isinstance(effect, Request) and isinstance(effect.call, Multi):
        parts = [written(operation) for operation in effect.call.operations if not isinstance(operation, Check)]
        return f"writes {'; '.join(parts)}"
    if isinstance(effect, Emit):
        shown = {key: value for key, value in effect.fields.items() if key not in {"command_id", "plan_us", "asked_us"}}
        generation = "" if effect.generation is None else f" (generation {effect.generation})"
        return f"event {effect.kind}{generation} {', '.join(f'{k}={v}' for k, v in shown.items())}".rstrip()
    if isinstance(effect, Warn):
        return f"warns {UUID.sub('UUID', effect.text)}"
    return None


def written(operation: Operation) -> str:
    """Return one operation, short."""
    name = operation.path.removeprefix(paths.group(GROUP) + "/")
    if isinstance(operation, Create) and name.startswith("deleted_offsets/"):
        copy = offset_copy.decode(operation.content)
        return f"create deleted_offsets/… = {copy.topic} of {copy.incarnation}: {dict(copy.offsets)}"
    if isinstance(operation, Create) and operation.sequence:
        sent = command.decode(operation.content)
        what = "all" if sent.partitions is None else compact(frozenset(sent.partitions))
        return f"{'start' if isinstance(sent, StartFetcher) else 'stop'} {what} to {name.split('/')[1]}"
    if isinstance(operation, Delete):
        return f"delete {name}"
    if isinstance(operation, SetContent | Create):
        content = operation.content.decode()
        text = f" = {content}" if content and len(content) < 30 else ""
        return f"{'set' if isinstance(operation, SetContent) else 'create'} {name}{text}"
    raise TypeError(f"not an operation to show: {operation}")


def compact(partitions: frozenset[fields.TopicPartition]) -> str:
    """Return {("t", 0), ("t", 1)} as t[0-1]."""
    return " ".join(
        f"{topic}[{','.join(str(a) if a == b else f'{a}-{b}' for a, b in ranges)}]"
        for topic, ranges in fields.topics_to_ranges(partitions).items()
    )


def at_next_write(trace: Trace, fault: str, text: str) -> None:
    """Let `fault` happen at the next transaction whose description holds `text`; `FAULTS` names them."""
    perform_next = trace.zk.perform_next

    def perform_with_fault(session: Session) -> None:
        _call_id, call = session.sent[0]
        if text not in (described(Request(0, call)) or ""):
            perform_next(session)
            return
        trace.zk.perform_next = perform_next  # type: ignore[method-assign]
        if fault.startswith("after"):
            perform_next(session)
        if fault.endswith("kill"):
            trace.kill_coordinator(next(c for c in trace.coordinators if c.session is session))
        else:
            trace.zk.disconnect(session)
            trace.zk.reconnect(session)

    if fault not in FAULTS:
        raise ValueError(f"fault {fault!r}: one of {', '.join(FAULTS)}")
    trace.zk.perform_next = perform_with_fault  # type: ignore[method-assign]


def subscribe(trace: Trace, client: str, text: str) -> None:
    """Let a registered agent replace its subscription."""
    agent = trace.agents[client]
    agent.registration = agent.registration._replace(subscription=json.loads(text))
    write(trace, SetContent(paths.ids(GROUP, agent.name), registration.encode(agent.registration)))


def claim(trace: Trace, client: str, topic: str, count: str) -> None:
    """Let an agent write into its own record that it owns the first partitions of a topic besides."""
    agent = trace.agents[client]
    path = paths.owners(GROUP, agent.name or "")
    record = ownership.decode_owners(trace.zk.nodes[path].content)
    partitions = {**record.partitions, **{(topic, number): 0 for number in range(int(count))}}
    trace.rogues.add(agent.name or "")
    write(trace, SetContent(path, ownership.encode_owners(record._replace(partitions=partitions))))


def forget_given(trace: Trace) -> None:
    """Leave the group as a version does that does not record what it gives."""
    nodes = [paths.given(GROUP, name) for name in trace.zk.children(paths.given(GROUP))]
    trace.rogues.update(trace.zk.children(paths.owners(GROUP)))
    write(trace, *map(Delete, (*nodes, paths.given(GROUP))))


def answer_late(trace: Trace, client: str) -> None:
    """Let a silent agent answer: the coordinator has asked for its record, but not read it, when its time is over."""
    agent, process = trace.agents[client], trace.leader()
    agent.silent = False
    while trace.act(agent):
        pass
    trace.deliver(process)
    trace.now_us = trace.next_deadline_us() or trace.now_us
    trace.tick()


def write(trace: Trace, *operations: Operation) -> None:
    """Write as somebody outside."""
    trace.zk.perform(Multi(operations))


def settle(trace: Trace) -> None:
    """Let everybody act until nothing moves, without time going on."""
    trace.run()


STEPS: dict[str, Callable[..., object]] = {
    "coordinator": lambda trace: trace.add_coordinator(),
    "topic": lambda trace, name, count, topic_id="id-1": trace.set_topic(name, int(count), topic_id),
    "delete-topic": lambda trace, name: trace.delete_topic(name),
    "group": lambda trace, text="": trace.create_group(text.encode()),
    "configure": lambda trace, text="": trace.configure(text.encode()),
    "agent": lambda trace, client, text="{}": trace.add_agent(client, **json.loads(text)),
    "close": lambda trace, client: trace.leave(trace.agents.pop(client)),
    "kill": lambda trace, client: trace.kill_agent(trace.agents.pop(client)),
    "silence": lambda trace, client: setattr(trace.agents[client], "silent", True),
    "wake": lambda trace, client: setattr(trace.agents[client], "silent", False),
    "answer-late": answer_late,
    "poison": lambda trace, client: trace.zk.perform(
        Multi(
            (
                Create(
                    f"{paths.channel(GROUP, trace.agents[client].name or '')}/{paths.COMMAND_PREFIX}",
                    b"?",
                    sequence=True,
                ),
            )
        )
    ),
    "garble": lambda trace, client: trace.zk.perform(
        Multi((SetContent(paths.owners(GROUP, trace.agents[client].name or ""), b"?"),))
    ),
    "claim": claim,
    "delete-record": lambda trace, client: write(trace, Delete(paths.owners(GROUP, trace.agents[client].name or ""))),
    "forget-given": forget_given,
    "subscribe": subscribe,
    "garble-registration": lambda trace, client: write(
        trace, SetContent(paths.ids(GROUP, trace.agents[client].name), b'{"version":1}')
    ),
    "other-group": lambda trace, name: write(trace, Create(paths.group(name))),
    "depose": lambda trace: write(trace, Delete(paths.COORDINATOR)),
    "at-next-write": at_next_write,
    "kill-leader": lambda trace: trace.kill_coordinator(trace.leader()),
    "stop-leader": lambda trace: trace.feed(trace.leader(), ShutDown()),
    "break-connection": lambda trace: (
        trace.zk.disconnect(trace.leader().session),
        trace.zk.reconnect(trace.leader().session),
    ),
    "pass": lambda trace, milliseconds: trace.pass_time(int(milliseconds)),
    "owned": lambda trace: trace.lines.extend(
        f"        {name}: {compact(frozenset(held)) or 'nothing'}" for name, held in sorted(trace.owned().items())
    ),
}


def play(text: str) -> str:
    """Run the steps of a trace and return the whole text anew."""
    trace = Trace()
    for line in text.splitlines():
        if line.startswith("# ") or not line.startswith(PROMPT):
            if line.startswith("#"):
                trace.lines.append(line)
            continue
        trace.lines.append(line)
        trace.began_us = trace.now_us
        step, _, rest = line.removeprefix(PROMPT).partition(" ")
        arguments = (
            rest.split(maxsplit=1)
            if step in {"agent", "subscribe"}
            else [rest]
            if step in {"group", "configure"}
            else rest.split()
        )
        STEPS[step](trace, *[argument for argument in arguments if argument])
        trace.check()
        settle(trace)
    return "\n".join(trace.lines) + "\n"
