"""The faults, one function for each kind; `plan.WEIGHTS` has their frequencies."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from tests.simulation import shards
from tests.simulation.agent import AgentHost
from tests.simulation.cluster import SETTINGS, TOPICS, Cluster
from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.host import Host
from tests.simulation.hostile import HOSTILE, perform_hostile
from tests.simulation.network import SLOW_US, SLUGGISH_US, VERY_SLOW_US, Connection
from tests.simulation.plan import GROUPS, WEIGHTS, Fault
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, SetContent

SHORT_US = (10_000, 500_000)
LONG_US = (500_000, 6_000_000)  # longer than any session
MOVING_US = 1_500_000
LOOK_US = 5_000
MAX_PARTITIONS = 8
MAX_DIGITS = 20  # of an epoch
OBSTRUCTING = (
    '"frozen":true',
    '"starts_paused":true',
    '"strategy":"nonsense"',
    '"strategy":"range"',
    '"strategy":"round_robin"',
    '"strategy":"cooperative_sticky"',
    '"strategy":"balanced"',
)
GARBAGE = (b"\xc1", b"", b"\x80", b"\x81\xa7version\x02")

Do = Callable[[Cluster, Random], None]


def perform(cluster: Cluster, fault: Fault) -> None:
    """Cause one fault."""
    perform_kind(cluster, fault.kind, fault.pick)


def perform_kind(cluster: Cluster, kind: str, pick: int) -> None:
    cluster.faults[kind] += 1
    cluster.schedule.tell("FAULT", kind)
    if kind in HOSTILE:
        perform_hostile(cluster, kind, pick)
    else:
        FAULTS[kind](cluster, Random(pick))


def _duration_us(draw: Random) -> int:
    return draw.randrange(*draw.choice((SHORT_US, SHORT_US, LONG_US)))


def _agent(cluster: Cluster, draw: Random) -> AgentHost | None:
    agents = cluster.living_agents()
    return draw.choice(agents) if agents else None


def _coordinator(cluster: Cluster, draw: Random) -> CoordinatorHost:
    """Pick a coordinator, mostly the leader, because faults of standbys have little effect."""
    living = cluster.living_coordinators()
    leading = [process for process in living if process.leading()]
    return draw.choice(leading if leading and draw.random() < 0.8 else living)


def _tell(cluster: Cluster, host: Host, text: str) -> None:
    cluster.schedule.tell("FAULT", f"{host.name} {text}")


# Agents ---------------------------------------------------------------------------------------------------------------


def _join(cluster: Cluster, draw: Random) -> None:
    static = draw.random() < 0.4
    group = draw.choice(list(GROUPS))
    instance_id = draw.choice(["i1", "i2"]) if static else None
    cluster.add_agent(group, instance_id)  # possibly one in use: then the older of the two is fenced


def _storm(cluster: Cluster, draw: Random) -> None:
    for _ in range(draw.randint(2, 6)):
        cluster.schedule.after(draw.randrange(200_000), cluster.add_agent, draw.choice(list(GROUPS)))


def _close_agent(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None:
        _tell(cluster, agent, "is closed")
        cluster.applications[agent.name].close()


def _kill_agent(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None:
        _tell(cluster, agent, "is killed")
        agent.kill()
        settings = agent.settings
        cluster.schedule.after(draw.randrange(3_000_000), cluster.add_agent, settings.group, settings.instance_id)


def _suspend_agent(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None:
        _suspend(cluster, agent, _duration_us(draw))


def _suspend(cluster: Cluster, host: AgentHost | CoordinatorHost, duration_us: int) -> None:
    if not host.suspended:
        _tell(cluster, host, f"is suspended for {duration_us} us")
        suspend(host)
        cluster.schedule.after(duration_us, resume, host)


def suspend(host: AgentHost | CoordinatorHost) -> None:
    """Suspend a process; the ensemble no longer hears from it."""
    host.suspend()
    _connection_changed(host)


def resume(host: AgentHost | CoordinatorHost) -> None:
    """Resume a process if it is suspended."""
    if host.suspended:
        host.tell("resumes")
        host.resume()
        _connection_changed(host)


def _connection_changed(host: AgentHost | CoordinatorHost) -> None:
    if host.connection is not None:
        host.connection.heard_or_not()


def _cut_agent(cluster: Cluster, draw: Random) -> None:
    _cut(cluster, _agent(cluster, draw), draw)


def _cut(cluster: Cluster, host: AgentHost | CoordinatorHost | None, draw: Random) -> None:
    if host is not None and host.connection is not None:
        duration_us = _duration_us(draw)
        _tell(cluster, host, f"is cut off for {duration_us} us")
        host.connection.cut_link(duration_us)


def _expire_agent(cluster: Cluster, draw: Random) -> None:
    """Expire a session only by its timeout: the lease relies on a live agent's session not ending earlier."""
    agent = _agent(cluster, draw)
    if agent is not None and agent.connection is not None:
        _tell(cluster, agent, "is cut off until its session is over")
        agent.connection.cut_link(agent.connection.timeout_ms * 1_000 + draw.randrange(1_000_000))


def _drop_agent_connection(cluster: Cluster, draw: Random) -> None:
    _drop(cluster, _agent(cluster, draw))


def _drop(cluster: Cluster, host: AgentHost | CoordinatorHost | None) -> None:
    if host is not None and host.connection is not None:
        _tell(cluster, host, "loses its connection")
        host.connection.break_off()


def _lose_agent_reply(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None and agent.connection is not None:
        _lose_reply(cluster, agent, agent.connection, draw)


def _lose_reply(cluster: Cluster, host: Host, connection: Connection, draw: Random) -> None:
    _tell(cluster, host, "is going to lose a reply")
    connection.loses_next_reply = True
    connection.lags_after_loss = draw.random() < 0.5


def _slow_agent(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None and agent.connection is not None:
        _slow_down(cluster, agent, agent.connection, draw)


def _strand_agent(cluster: Cluster, draw: Random) -> None:
    """Delay an agent's messages until it is evicted; they arrive after others have got its partitions."""
    agent = _agent(cluster, draw)
    if agent is not None and agent.connection is not None:
        group = agent.settings.group
        cluster.write(SetContent(paths.group(group), cluster.settings(group, SETTINGS[1])))
        cluster.add_agent(group)
        duration_us = draw.randrange(2_000_000, 5_000_000)
        agent.connection.slow_down(duration_us, VERY_SLOW_US)
        if draw.random() < 0.5:  # then it also finishes old records late
            cluster.applications[agent.name].block(duration_us * 3 // 4)


def _slow_down(cluster: Cluster, host: Host, connection: Connection, draw: Random) -> None:
    duration_us = draw.randrange(*LONG_US)
    _tell(cluster, host, f"has a slow connection for {duration_us} us")
    connection.slow_down(duration_us, draw.choice((SLOW_US, SLOW_US, VERY_SLOW_US)))


def _block_application(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None:
        duration_us = _duration_us(draw)
        _tell(cluster, agent, f"has an application that hangs for {duration_us} us")
        cluster.applications[agent.name].block(duration_us)


def _stop_polling(cluster: Cluster, draw: Random) -> None:
    """Hang an application for as long as the faults last."""
    agent = _agent(cluster, draw)
    if agent is not None:
        _tell(cluster, agent, "has an application that no longer polls")
        cluster.applications[agent.name].blocked = True


# Coordinators ---------------------------------------------------------------------------------------------------------


def _resubscribe(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None:
        topics = draw.choice([{"t": 1}, {"u": 1}])
        _tell(cluster, agent, f"subscribes to {sorted(topics)}, and later to all again")
        agent.resubscribe(topics)
        agent.after(draw.randrange(3_000_000), _subscribe_to_all, cluster, agent, draw)


def _subscribe_to_all(cluster: Cluster, agent: AgentHost, draw: Random) -> None:
    agent.resubscribe(agent.settings.subscription)
    if draw.random() < 0.7:  # while that is written
        agent.after(draw.randrange(1_000), _drop, cluster, agent)


def _kill_coordinator(cluster: Cluster, draw: Random) -> None:
    process = _coordinator(cluster, draw)
    _tell(cluster, process, "is killed")
    process.kill()
    process.connection.drop()
    cluster.add_coordinator()


def _suspend_coordinator(cluster: Cluster, draw: Random) -> None:
    _suspend(cluster, _coordinator(cluster, draw), _duration_us(draw))


def _cut_coordinator(cluster: Cluster, draw: Random) -> None:
    _cut(cluster, _coordinator(cluster, draw), draw)


def _expire_coordinator(cluster: Cluster, draw: Random) -> None:
    _coordinator(cluster, draw).connection.expire()


def _drop_coordinator_connection(cluster: Cluster, draw: Random) -> None:
    _drop(cluster, _coordinator(cluster, draw))


def _lose_coordinator_reply(cluster: Cluster, draw: Random) -> None:
    process = _coordinator(cluster, draw)
    _lose_reply(cluster, process, process.connection, draw)


def _slow_coordinator(cluster: Cluster, draw: Random) -> None:
    process = _coordinator(cluster, draw)
    _slow_down(cluster, process, process.connection, draw)
    if draw.random() < 0.5:
        process.connection.break_off()  # then it reads everything again, slowly


def _break_while_moving(cluster: Cluster, draw: Random) -> None:
    """Disconnect the leader while slow agents acknowledge commands and others join; it then reads everything slowly.

    It may reconnect to a server that lacks its own latest writes.
    """
    process, group = _coordinator(cluster, draw), draw.choice(list(GROUPS))
    for agent in cluster.living_agents(group):
        if agent.connection is not None:
            agent.connection.slow_down(MOVING_US, SLUGGISH_US)
    process.connection.slow_down(MOVING_US, SLOW_US)
    for _ in range(draw.randint(1, 3)):
        cluster.schedule.after(draw.randrange(MOVING_US // 2), cluster.add_agent, group)
    _break_when_commanded(cluster, process, group, cluster.schedule.now_us + MOVING_US)


def _break_when_commanded(cluster: Cluster, process: CoordinatorHost, group: str, until_us: int) -> None:
    zk = cluster.ensemble.zk
    if any(zk.children(paths.channel(group, name)) for name in zk.children(paths.channel(group))):
        session = process.connection.session
        if session is not None:
            cluster.ensemble.lag_behind(session.server, MOVING_US)
        _drop(cluster, process)
    elif cluster.schedule.now_us < until_us:
        cluster.schedule.after(LOOK_US, _break_when_commanded, cluster, process, group, until_us)


def _resign(cluster: Cluster, draw: Random) -> None:
    process = _coordinator(cluster, draw)
    process.run(process.shut_down)
    cluster.add_coordinator()


def _depose(cluster: Cluster, draw: Random) -> None:
    """Delete the leader's node; its server lags, so it leads on until it notices."""
    session, ensemble = _coordinator(cluster, draw).connection.session, cluster.ensemble
    if session is not None and session.server in ensemble.servers[1:]:
        ensemble.lag(ensemble.servers.index(session.server), draw.randrange(*LONG_US))
        _join(cluster, draw)
    cluster.write(Delete(shards.some(ensemble, draw).coordinator))


def _write_epoch(cluster: Cluster, draw: Random) -> None:
    """Write the epoch as an operator: the leader has to be elected again."""
    path = shards.some(cluster.ensemble, draw).epoch
    content = cluster.ensemble.zk.nodes[path].content
    if content.isdigit() and len(content) < MAX_DIGITS:  # otherwise another program has just written it
        cluster.write(SetContent(path, b"%d" % (int(content) + draw.randrange(3))))


def _set_shards(cluster: Cluster, draw: Random) -> None:
    shards.set_number(cluster.ensemble, draw.randint(1, shards.MAX_COUNT))


# Servers, clocks ------------------------------------------------------------------------------------------------------


def _lag_server(cluster: Cluster, draw: Random) -> None:
    cluster.ensemble.lag(draw.randrange(1, len(cluster.ensemble.servers)), _duration_us(draw))


def _cut_server_off(cluster: Cluster, draw: Random) -> None:
    cluster.ensemble.cut_server_off(draw.randrange(300_000, 8_000_000))


def _restart_zookeeper(cluster: Cluster, draw: Random) -> None:
    if not cluster.ensemble.down:
        cluster.ensemble.restart(draw.randrange(100_000, 3_000_000))


def _jump_wall_clock(cluster: Cluster, draw: Random) -> None:
    host = draw.choice([*cluster.living_agents(), *cluster.living_coordinators()])
    host.wall_offset_ms += draw.choice([-10, 10]) * draw.randrange(10_000_000)  # up to 28 hours


def _stop_kafka(cluster: Cluster, draw: Random) -> None:
    cluster.brokers.down_until_us = cluster.schedule.now_us + _duration_us(draw)


# Topics, operators ----------------------------------------------------------------------------------------------------


def _grow_topic(cluster: Cluster, draw: Random) -> None:
    topic = draw.choice(list(TOPICS))
    count = sum(name == topic for name, _number in cluster.brokers.logs)
    if 0 < count < MAX_PARTITIONS:
        cluster.set_topic(topic, count + draw.randint(1, 2))


def _recreate_topic(cluster: Cluster, draw: Random) -> None:
    topic = draw.choice(list(TOPICS))
    if cluster.has_topic(topic) and topic not in cluster.kept_topics:
        cluster.delete_topic(topic)
        away_us = draw.choice([0, draw.randrange(5_000), draw.randrange(800_000)])
        cluster.schedule.after(away_us, cluster.set_topic, topic, draw.randint(1, 5))


def _configure(cluster: Cluster, draw: Random) -> None:
    """Change settings, mostly during a rebalance."""
    group = draw.choice(list(GROUPS))
    more = draw.choice(SETTINGS) if draw.random() < 0.4 else f"{SETTINGS[0]},{draw.choice(OBSTRUCTING)}"
    if draw.random() < 0.4:
        more = f"{more},{draw.choice(_operated(cluster, group))}"
    cluster.schedule.tell("FAULT", f"settings of {group}: {more}")
    change = SetContent(paths.group(group), cluster.settings(group, more))
    cluster.schedule.after(draw.randrange(15_000), cluster.write, change)
    if draw.random() < 0.5:
        cluster.write(SetContent(paths.group(group), cluster.settings(group, SETTINGS[0])))


def _operated(cluster: Cluster, group: str) -> list[str]:
    """Return settings that drain an instance, all members, or one (each has a host of its own), freeze, or hold back.

    A freeze ends by itself; a plan that waits is approved, or is not.
    """
    hosts = [one.name for one in cluster.living_agents(group)]
    some = [f'"drained_hosts":["{host}"]' for host in hosts]
    node = cluster.ensemble.zk.nodes.get(paths.generation(group))
    generation = node.content.decode() if node is not None and node.content.isdigit() else ""  # it may be garbled
    approved = f',"approved_moves":9,"approved_generation":{generation}' if generation else ""
    now_ms = cluster.living_coordinators()[0].wall_ms()
    return [
        '"drained_members":["i1"]',
        f'"drained_hosts":{json.dumps(hosts)}',
        *some,
        f'"frozen":true,"frozen_until_ms":{now_ms + 2_000}',
        '"approve_moves_above":0',
        '"approve_moves_above":1',
        f'"approve_moves_above":0{approved}',
    ]


def _ask(cluster: Cluster, draw: Random) -> None:
    """Request a rebalance as `zkrebalancer groups rebalance` does."""
    path = paths.group(draw.choice(list(GROUPS)))
    node = cluster.ensemble.zk.nodes.get(path)
    if node is not None:
        cluster.write(SetContent(path, node.content, node.version))


def _poison(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None and agent.consumer is not None:
        prefix = f"{paths.channel(agent.settings.group, agent.consumer)}/{paths.COMMAND_PREFIX}"
        cluster.write(Create(prefix, draw.choice(GARBAGE), sequence=True))


def _garbage_record(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None and agent.consumer is not None:
        path = paths.owners(agent.settings.group, agent.consumer)
        cluster.write(SetContent(path, draw.choice([b"{}", b"\xff", b'{"version":2}'])))


def _delete_registration(cluster: Cluster, draw: Random) -> None:
    """Delete a registration, preferably of an agent with a pending command.

    An agent without an ownership record keeps its registration: if both are missing, its session counts as over.
    """
    zk = cluster.ensemble.zk
    registered = [
        (agent.settings.group, agent.consumer)
        for agent in cluster.living_agents()
        if agent.consumer is not None and paths.owners(agent.settings.group, agent.consumer) in zk.nodes
    ]
    busy = [key for key in registered if paths.channel(*key) in zk.nodes and zk.children(paths.channel(*key))]
    if registered:
        cluster.write(Delete(paths.ids(*draw.choice(busy or registered))))


def _delete_channel(cluster: Cluster, draw: Random) -> None:
    agent = _agent(cluster, draw)
    if agent is not None and agent.consumer is not None:
        channel = paths.channel(agent.settings.group, agent.consumer)
        commands = cluster.ensemble.zk.children(channel) if channel in cluster.ensemble.zk.nodes else ()
        cluster.write(*[Delete(f"{channel}/{name}") for name in commands], Delete(channel))


FAULTS: dict[str, Do] = {kind: globals()[f"_{kind}"] for kind in [*WEIGHTS, "set_shards"]}
