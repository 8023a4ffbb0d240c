"""A problem in the units of `balanced`: everything is relative to an average active member.

A member is active unless it is being drained. The average one has strength 1 and load 1, regardless of the size of the
group and the unit of lag. Thus a utilisation (load / strength) of 1.2 is 20 % above the mean, and the terms of the
objective can be added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.columns import NOBODY, Columns, Flags, Rows
from zkrebalancer.assignment.subscribers import kinds_of

Floats: TypeAlias = npt.NDArray[np.float64]
Indexes: TypeAlias = npt.NDArray[np.intp]

MIN_STRENGTH = 1e-6  # of an active member, relative to the strongest one: keeps quotients finite


@dataclass(frozen=True, eq=False)
class Case:
    """P partitions, M members, R racks; K kinds of topics: topics with the same subscribers are of one kind.

    A reader is an active subscriber. Loads add up to the number of active members.
    """

    columns: Columns
    options: BalancedOptions
    strength: Floats  # [M] normalised capacity; 0: being drained
    load: Floats  # [P]
    kind: Rows  # [P] kind of the row's topic
    reads: Flags  # [S, K] whether a subscription reads a kind
    pinned: Flags  # [P] must stay with its owner

    @cached_property
    def active(self) -> Flags:
        """Whether each member is active, [M]."""
        return self.strength > 0

    @cached_property
    def average_load(self) -> float:
        """The mean load of the partitions that have a reader."""
        count = np.count_nonzero(self.load)
        return float(self.load.sum() / count) if count else 0.0

    @cached_property
    def price(self) -> Floats:
        """The cost of moving each row away from its owner, [P]; 0 for rows without an owner."""
        options = self.options
        cost = options.move_cost * self.load + options.min_gain * self.average_load
        return np.where(self.columns.owner >= 0, cost, 0.0)

    @cached_property
    def crosses(self) -> Flags:
        """Whether a member in each rack would read the row across racks, [P, R + 1].

        False for rows whose racks are unknown, and for members without a rack (the last column).
        """
        holds = self.columns.rack_sets
        is_known = holds.any(axis=1, keepdims=True)
        crosses: Flags = np.pad(~holds & is_known, ((0, 0), (0, 1)))
        return crosses[self.columns.rack_set]

    @cached_property
    def readers(self) -> tuple[Rows, ...]:
        """Return the readers of each kind, in the order of members."""
        subscription = self.columns.subscription
        return tuple(
            np.flatnonzero(self.reads[subscription, kind] & self.active).astype(np.int32)
            for kind in range(self.reads.shape[1])
        )

    @cached_property
    def reader_count(self) -> Rows:
        """Number of readers of each kind, [K]."""
        return np.array([len(readers) for readers in self.readers], np.int32)

    @cached_property
    def free_to_move(self) -> Flags:
        """Rows that may be placed freely, [P]: not pinned, and with a reader."""
        return ~self.pinned & (self.reader_count > 0)[self.kind]

    @cached_property
    def even_share(self) -> npt.NDArray[np.int64]:
        """The partitions of each topic per reader in an even spread, rounded up, [T]."""
        columns = self.columns
        counts = np.diff(columns.first)
        kinds = np.zeros(len(counts), np.int32)
        kinds[columns.topic] = self.kind
        readers = self.reader_count[kinds] if len(self.reader_count) else np.zeros(len(counts), np.int32)
        return -(-counts // np.maximum(readers, 1))

    @cached_property
    def components(self) -> tuple[Rows, Rows]:
        """The component of each member, [M], and of each kind, [K]; different components share no topic."""
        kind_count = self.reads.shape[1]
        of_kind = np.arange(kind_count, dtype=np.int32)
        while True:
            of_subscription = np.where(self.reads, of_kind, kind_count).min(axis=1, initial=kind_count)
            links = np.where(self.reads, of_subscription[:, None], kind_count).min(axis=0, initial=kind_count)
            linked = np.minimum(of_kind, links).astype(np.int32)
            if np.array_equal(linked, of_kind):
                return of_subscription[self.columns.subscription].astype(np.int32), of_kind
            of_kind = linked

    def carried(self, target: Rows) -> Floats:
        """Return the load of each member under a target, [M]."""
        given = target >= 0
        return np.bincount(target[given], self.load[given], len(self.strength)).astype(np.float64, copy=False)

    def counts(self, target: Rows) -> Indexes:
        """Return the number of partitions of each member under a target, [M]."""
        return np.bincount(target[target >= 0], minlength=len(self.strength))

    def is_moved(self, target: Rows) -> Flags:
        """Return the rows that a target moves from their owner to another member, [P]."""
        moved: Flags = (target >= 0) & (self.columns.owner >= 0) & (target != self.columns.owner)
        return moved

    def has_left(self, target: Rows) -> Flags:
        """Return the rows that leave their owner under a target, including those left unassigned, [P]."""
        left: Flags = (self.columns.owner >= 0) & (target != self.columns.owner)
        return left

    def is_across(self, rows: Indexes, members: Rows) -> Flags:
        """Return for each row whether its member reads it across racks; False for NOBODY."""
        if not len(self.strength):
            return np.zeros(len(rows), np.bool_)
        across: Flags = self.crosses[rows, self.columns.rack[members]] & (members >= 0)
        return across


def to_case(columns: Columns, options: BalancedOptions) -> Case:
    """Return the problem in the units of the objective."""
    columns = _with_few_racks(columns)
    capacity = columns.capacity / max(columns.capacity.max(initial=0.0), np.finfo(np.float64).tiny)
    strength = np.where(columns.capacity > 0, np.maximum(capacity, MIN_STRENGTH), 0.0)
    active = strength > 0
    reads, kind_of_topic = kinds_of(columns.threads > 0)
    kind = kind_of_topic[columns.topic]
    is_read: Flags = np.any(reads[np.unique(columns.subscription[active])], axis=0)[kind]
    load = np.where(is_read, _loads(columns, options), 0.0)
    # Scale again: unread rows with huge loads may have scaled the others down to almost nothing.
    load = load / load.max() if load.any() else is_read.astype(np.float64)
    if active.any():
        strength *= active.sum() / strength.sum()
    if is_read.any():
        load *= active.sum() / load.sum()
    return Case(columns, options, strength, load, kind, reads, _pinned(columns, options))


def _with_few_racks(columns: Columns) -> Columns:
    """Return a group with one rack in place of those with replicas of the same partitions: mostly of none.

    Each rack is looked at for each partition: with one for each of thousands of members, that took minutes.
    """
    distinct, kind_of_rack = kinds_of(columns.rack_sets)
    if distinct.shape == columns.rack_sets.shape:
        return columns
    return replace(columns, rack=np.append(kind_of_rack, np.int32(NOBODY))[columns.rack], rack_sets=distinct)


def _loads(columns: Columns, options: BalancedOptions) -> Floats:
    """Return the load of each row, from rate and lag, relative to the greatest one and not below the floor."""
    load: Floats = columns.rate + columns.lag / options.catch_up_s
    if not load.any():
        return np.ones(len(load))
    load /= load.max()
    floor: Floats = np.maximum(load, options.load_floor * load.mean())
    return floor


def _pinned(columns: Columns, options: BalancedOptions) -> Flags:
    pinned = np.zeros(len(columns.owner), np.bool_)
    for topic, name in enumerate(columns.topics):
        if name in options.pinned:
            rows, wanted = slice(*columns.first[topic : topic + 2]), options.pinned[name]
            pinned[rows] = np.isin(columns.numbers_of(topic), [*wanted])
    pinned &= columns.owner != NOBODY
    return pinned
