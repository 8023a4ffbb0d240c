"""The local search: members give away or exchange single partitions as long as that lowers the cost.

A step examines one member, the most promising first, and evaluates all its exchanges with a few partners at once: each
of its partitions (or none) for each of theirs (or none). The best exchange is applied if it lowers the cost. A member
without a gain is not examined again until it changes. The search ends when no member is left to examine, after many
fruitless steps in a row, or at the limit of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from zkrebalancer.assignment.balanced.case import Case, Floats, Indexes
from zkrebalancer.assignment.columns import NOBODY, Flags, Rows

ALL_PARTNERS = 16  # in a group of at most this many members, every other member is a partner
LIGHTEST_PARTNERS = 6
OWNER_PARTNERS = 4  # owners to which a partition may return
RACK_PARTNERS = 4  # racks whose lightest member is a partner, because it would read a partition within its rack
MAX_KINDS = 4  # kinds of a member's partitions to examine: those with the most rows
MAX_ROWS = 32  # of one member to examine in an exchange
PATIENCE = 32  # fruitless steps in a row before the search ends
MIN_GAIN = 1e-9  # smaller gains are rounding errors


def improve(case: Case, target: Rows) -> int:
    """Lower the cost of a target by local search, in place; return the number of steps."""
    if not case.free_to_move.any() or np.count_nonzero(case.active) < 2:
        return 0
    search = _Search(case, target)
    steps = search.run(case.options.max_search_steps)
    search.undo_useless_moves()
    return steps


@dataclass(slots=True)
class _Search:
    case: Case
    target: Rows
    carried: Floats = field(init=False)  # [M]
    utilisation: Floats = field(init=False)  # [M] load / strength; -1 for a drained member
    counts: Indexes = field(init=False)  # [M]
    left: int = field(init=False)  # number of partitions that are not with their owner
    held: dict[int, Indexes] = field(init=False)  # rows of the members examined so far
    order: Indexes = field(init=False)  # rows sorted by member at the beginning
    begins: Indexes = field(init=False)

    def __post_init__(self) -> None:
        case, target = self.case, self.target
        self.carried, self.counts = case.carried(target), case.counts(target)
        self.utilisation = np.full(len(self.carried), -1.0)
        np.divide(self.carried, case.strength, out=self.utilisation, where=case.active)
        self.left = int(np.count_nonzero(case.has_left(target)))
        self.held = {}
        self.order = np.argsort(target, kind="stable")
        self.begins = np.searchsorted(target[self.order], np.arange(len(case.strength) + 1))

    def run(self, max_steps: int) -> int:
        steps = fruitless = 0
        waiting = self._promising()
        while len(waiting):
            changed: set[int] = set()
            for member in waiting.tolist():
                if steps == max_steps or fruitless == PATIENCE:
                    return steps
                steps += 1
                changed_now = self._step(member)
                fruitless = 0 if changed_now else fruitless + 1
                changed |= changed_now
            in_order = np.array(sorted(changed), np.intp)
            waiting = in_order[np.argsort(-self.utilisation[in_order], kind="stable")]
        return steps

    def undo_useless_moves(self) -> None:
        """Return partitions to their owners while a move gains less than its price; not limited in steps."""
        case, owner = self.case, self.case.columns.owner
        is_found = True
        while is_found:
            rows = np.flatnonzero(case.is_moved(self.target) & case.free_to_move & case.active[owner])
            returned = [self._return_from(member) for member in np.unique(self.target[rows]).tolist()]
            is_found = any(returned)

    def _return_from(self, giver: int) -> bool:
        """Undo the moves to one member that gain nothing, the worst first; return whether there was one."""
        case, owner = self.case, self.case.columns.owner
        is_found = False
        while True:
            rows = self._rows_of(giver)
            owners = owner[rows]
            rows = rows[case.free_to_move[rows] & (owners >= 0) & (owners != giver) & case.active[owners]]
            takers, place = np.unique(owner[rows], return_inverse=True)
            if not len(rows):
                return is_found
            nothing = np.full(len(takers), NOBODY, np.intp)
            change = self._change_of_cost(giver, rows, nothing, takers)[np.arange(len(rows)), place]
            worst = int(change.argmin())
            if change[worst] > -MIN_GAIN:
                return is_found
            self._exchange(giver, int(owner[rows[worst]]), int(rows[worst]), NOBODY)
            is_found = True

    def _promising(self) -> Indexes:
        """Return the members with a positive upper bound of the gain, highest first."""
        case, options = self.case, self.case.options
        utilisation = self.utilisation
        lowest = utilisation[case.active].min()
        second, highest = np.partition(utilisation, -2)[-2:]
        gain = options.uneven_cost * case.strength * (utilisation - lowest) ** 2
        gain[utilisation == highest] += options.peak_cost * (highest - second)
        rows = np.flatnonzero((self.target >= 0) & case.free_to_move)
        members = self.target[rows]
        across = case.load[rows] * case.is_across(rows, members)
        gain += options.rack_cost * np.bincount(members, across, len(gain))
        price = np.where(members == case.columns.owner[rows], case.price[rows], 0.0)
        cheapest = np.full(len(gain), np.inf)
        np.minimum.at(cheapest, members, price)
        gain -= cheapest
        order: Indexes = np.argsort(-gain, kind="stable")
        promising: Indexes = order[case.active[order] & (gain[order] > MIN_GAIN)]
        return promising

    def _rows_of(self, member: int) -> Indexes:
        if member not in self.held:
            self.held[member] = self.order[self.begins[member] : self.begins[member + 1]]
        return self.held[member]

    def _exchangeable(self, member: int) -> Indexes:
        """Return at most MAX_ROWS movable rows of a member, chosen evenly from heavy to light."""
        rows = self._rows_of(member)
        rows = rows[self.case.free_to_move[rows]]
        if len(rows) > MAX_ROWS:
            by_load = rows[np.argsort(-self.case.load[rows], kind="stable")]
            rows = by_load[np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.intp)]
        return rows

    def _step(self, giver: int) -> set[int]:
        """Apply the best exchange of one member; return the members that changed."""
        rows = self._exchangeable(giver)
        partners = self._partners(giver, rows)
        if not len(partners):
            return set()
        best = self._best_exchange(giver, rows, partners, with_rows=False)
        if best is None:
            best = self._best_exchange(giver, rows, partners, with_rows=True)
        if best is None:
            return set()
        given, taken, partner = best
        self._exchange(giver, partner, given, taken)
        return {giver, partner}

    def _partners(self, giver: int, rows: Indexes) -> Indexes:
        case = self.case
        if np.count_nonzero(case.active) <= ALL_PARTNERS:
            return np.setdiff1d(np.flatnonzero(case.active), [giver])
        kinds, counts = np.unique(case.kind[rows], return_counts=True)
        kinds = kinds[np.argsort(-counts, kind="stable")][:MAX_KINDS]
        if not len(kinds):
            return np.empty(0, np.intp)
        pool = (
            case.readers[kinds[0]] if len(kinds) == 1 else np.unique(np.concatenate([case.readers[k] for k in kinds]))
        )
        utilisation = self.utilisation
        chosen = [_lightest(pool, utilisation, LIGHTEST_PARTNERS)]
        owners = case.columns.owner[rows]
        owners = np.unique(owners[(owners >= 0) & (owners != giver)])
        chosen.append(owners[case.active[owners]][:OWNER_PARTNERS].astype(np.intp))
        rack = case.columns.rack
        across = rows[case.crosses[rows, rack[giver]]]
        if len(across):
            homes = np.flatnonzero(~case.crosses[across, :-1].all(axis=0))[:RACK_PARTNERS]
            chosen.extend(_lightest(pool[rack[pool] == home], utilisation, 1) for home in homes)
        partners: Indexes = np.setdiff1d(np.concatenate(chosen), [giver])
        return partners

    def _best_exchange(
        self, giver: int, rows: Indexes, partners: Indexes, *, with_rows: bool
    ) -> tuple[int, int, int] | None:
        """Return the exchange that lowers the cost most: (row given or NOBODY, row taken or NOBODY, partner)."""
        theirs = [self._exchangeable(partner) if with_rows else np.empty(0, np.intp) for partner in partners.tolist()]
        given = np.append(rows, NOBODY)
        taken = np.concatenate([np.append(of_partner, NOBODY) for of_partner in theirs])
        partner = np.repeat(partners, [len(of_partner) + 1 for of_partner in theirs])
        change = self._change_of_cost(giver, given, taken, partner)
        best = int(change.argmin())
        row, column = divmod(best, change.shape[1])
        if change[row, column] > -MIN_GAIN:
            return None
        return int(given[row]), int(taken[column]), int(partner[column])

    def _change_of_cost(self, giver: int, given: Indexes, taken: Indexes, partner: Indexes) -> Floats:
        """Return the change of the cost by each exchange, [given, taken]; infinite if it is not allowed."""
        case, options = self.case, self.case.options
        # As an index, NOBODY is the last element; `is_given` and `is_taken` make it weigh nothing.
        is_given, is_taken = given != NOBODY, taken != NOBODY
        given_load, taken_load = case.load[given] * is_given, case.load[taken] * is_taken
        net = given_load[:, None] - taken_load
        change = self._change_of_load(giver, partner, net)

        rack = case.columns.rack
        here, there = rack[giver], rack[partner]
        given_across = case.crosses[given][:, there].astype(np.float64) - case.crosses[given, here][:, None]
        taken_across = case.crosses[taken, here].astype(np.float64) - case.crosses[taken, there]
        change += options.rack_cost * (given_load[:, None] * given_across + taken_load * taken_across)

        owner, price = case.columns.owner, case.price
        given_leaves = is_given[:, None] * ((owner[given][:, None] != partner) * 1 - (owner[given] != giver)[:, None])
        taken_leaves = is_taken * ((owner[taken] != giver) * 1 - (owner[taken] != partner))
        change += price[given][:, None] * given_leaves + price[taken] * taken_leaves
        change += options.spread_cost * case.average_load * self._change_of_crowding(giver, given, taken, partner)

        forbidden = ~self._reads(given[:, None], partner) & is_given[:, None]
        forbidden |= ~self._reads(taken, np.full(len(taken), giver)) & is_taken
        if options.max_partitions_per_member is not None:
            grows = is_given[:, None] * 1 - is_taken
            forbidden |= (grows > 0) & (self.counts[partner] >= options.max_partitions_per_member)
            forbidden |= (grows < 0) & (self.counts[giver] >= options.max_partitions_per_member)
        if options.max_moves_per_rebalance is not None:
            more = given_leaves * (owner[given] >= 0)[:, None] + taken_leaves * (owner[taken] >= 0)
            forbidden |= (more > 0) & (self.left + more > options.max_moves_per_rebalance)
        change[forbidden] = np.inf
        return change

    def _change_of_load(self, giver: int, partner: Indexes, net: Floats) -> Floats:
        """Return the change of the cost of peak and unevenness if `net` load goes from the giver to each partner."""
        options, strength = self.case.options, self.case.strength
        utilisation = self.utilisation
        giver_after = (self.carried[giver] - net) / strength[giver]
        partner_after = (self.carried[partner] + net) / strength[partner]
        unevenness = strength[giver] * ((giver_after - 1) ** 2 - (utilisation[giver] - 1) ** 2)
        unevenness += strength[partner] * ((partner_after - 1) ** 2 - (utilisation[partner] - 1) ** 2)
        top = np.argpartition(-utilisation, min(2, len(utilisation) - 1))[:3]
        top = top[np.argsort(-utilisation[top], kind="stable")]
        others = np.zeros(len(partner))
        for member in top[::-1]:
            if member != giver:
                others = np.where(partner == member, others, utilisation[member])
        peak = np.maximum(np.maximum(giver_after, partner_after), others)
        change: Floats = options.uneven_cost * unevenness + options.peak_cost * (peak - utilisation[top[0]])
        return change

    def _change_of_crowding(self, giver: int, given: Indexes, taken: Indexes, partner: Indexes) -> Floats | float:
        """Return the change of the number of partitions above their topic's even share, [given, taken]."""
        case = self.case
        if case.options.spread_cost == 0:
            return 0.0
        members = np.unique(np.append(partner, giver))
        topic = case.columns.topic
        rows = np.concatenate([self._rows_of(member) for member in members.tolist()])
        if not len(rows):
            return 0.0
        topics, numbers = np.unique(topic[rows], return_inverse=True)
        at = np.repeat(np.arange(len(members)), [len(self._rows_of(member)) for member in members.tolist()])
        counts = np.bincount(at * len(topics) + numbers, minlength=len(members) * len(topics))
        above = counts.reshape(len(members), -1) - case.even_share[topics]  # [member, topic]
        of_given = np.searchsorted(topics, topic[given]).clip(max=len(topics) - 1)
        of_taken = np.searchsorted(topics, topic[taken]).clip(max=len(topics) - 1)
        here, there = np.searchsorted(members, giver), np.searchsorted(members, partner)
        gives = (above[there][:, of_given].T >= 0) * 1.0 - (above[here, of_given] > 0)[:, None]
        takes = (above[here, of_taken] >= 0) * 1.0 - (above[there, of_taken] > 0)
        is_given, is_taken = (given != NOBODY)[:, None], taken != NOBODY
        same = is_given & is_taken & (of_given[:, None] == of_taken)
        return np.where(same, 0.0, gives * is_given + takes * is_taken)

    def _reads(self, rows: Indexes, members: Indexes) -> Flags:
        return self.case.reads[self.case.columns.subscription[members], self.case.kind[rows]]

    def _exchange(self, giver: int, partner: int, given: int, taken: int) -> None:
        owner = self.case.columns.owner
        for row, source, taker in ((given, giver, partner), (taken, partner, giver)):
            if row != NOBODY:
                self.held[source] = self._rows_of(source)[self._rows_of(source) != row]
                self.held[taker] = np.append(self._rows_of(taker), row)
                self.target[row] = taker
                self._carry(source, -self.case.load[row], -1)
                self._carry(taker, self.case.load[row], 1)
                self.left += int(owner[row] >= 0) * (int(owner[row] != taker) - int(owner[row] != source))

    def _carry(self, member: int, load: float, count: int) -> None:
        self.carried[member] += load
        self.utilisation[member] = self.carried[member] / self.case.strength[member]
        self.counts[member] += count


def _lightest(members: Indexes | Rows, utilisation: Floats, count: int) -> Indexes:
    """Return the `count` members with the lowest utilisation; ties go to the first ones."""
    at = utilisation[members]
    if len(members) > count:
        bound = np.partition(at, count - 1)[count - 1]
        members, at = members[at <= bound], at[at <= bound]
    return members[np.argsort(at, kind="stable")][:count].astype(np.intp)
