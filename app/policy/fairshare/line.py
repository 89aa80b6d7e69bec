"""The line of one pool: who gets its slots next, in slot-seconds and by weight.

Each tenant has a *pass*: slot-seconds it used, and is expected to use for what is in flight,
÷ its effective weight. The waiting tenant with the lowest pass is next. All free accounts
stand in the line as one. Nobody saves up credit while it is idle, at its cap or behind a
held lane; nobody owes anything after a moment without contention.

Mutable, but pure: no clock, no I/O. It says who may be next and not which jobs; it does not
interrupt what runs. What an allocation grants is charged when it was dispatched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

from app.policy.fairshare.accounts import Account, Grant, TenantClaim
from app.policy.fairshare.contest import Contest
from app.policy.fairshare.costs import charged, corrected, taken_back
from app.policy.fairshare.draw import Draw
from app.policy.fairshare.heaps import Entity, Kind
from app.policy.fairshare.tiers import Entitlement, Tier, entitlement_of

NOTHING_HELD: Mapping[str, int] = {}
#: However short the jobs, an allocation is divided among so many if they wait.
LEAST_TURNS = 16
EQUAL = Entitlement(1.0)


class FairLine:
    """Everybody who waits, or was served, in one pool."""

    def __init__(self, default_seconds: float, virtual_time: float = 0.0) -> None:
        self._default_seconds = default_seconds
        self._kinds: dict[Entitlement, Kind] = {}
        self._known: dict[int, tuple[Entity, TenantClaim]] = {}
        self._paying = Contest(virtual_time)
        self._free = Contest(0.0)
        # A kind of its own: a paying tenant of the same entitlement would not be the group.
        self._group = Entity(0, Kind(entitlement_of(Tier.FREE)), virtual_time, default_seconds)
        self._group_waits = False
        self._lanes = 0
        self._most_free: int | None = None

    @property
    def virtual_time(self) -> float:
        """Where newcomers start: what the last one picked was served."""
        return self._paying.virtual_time

    @property
    def waiting_weight(self) -> float:
        """Effective weight of all that could be picked at the last allocation."""
        return self._paying.total

    @property
    def lanes(self) -> int:
        """Lanes in which somebody waits, held or not."""
        return self._lanes

    def know(self, tenant_id: int, standing: TenantClaim, served: float | None = None) -> None:
        """A new tenant or a changed standing; ``served`` is its account of before a restart."""
        contest = self._contest(standing)
        known = self._known.get(tenant_id)
        kind = self._kind(EQUAL if standing.free else standing.entitlement)
        if known is None:
            entity = Entity(tenant_id, kind, contest.virtual_time, self._default_seconds)
        else:
            entity, before = known
            self._contest(before).forget(entity)
            if before.free != standing.free:
                self._regroup(entity, standing.free)
        entity.kind, entity.cap = kind, standing.cap
        if served is not None:
            entity.served = served - self.virtual_time + contest.virtual_time
        self._known[tenant_id] = (entity, standing)
        contest.touch(entity)

    def knows(self, tenant_id: int) -> bool:
        return tenant_id in self._known

    def forget(self, tenant_id: int) -> bool:
        """Nothing of it waits or is in flight: what is known of it goes; False if something is."""
        entity, standing = self._known[tenant_id]
        if entity.lanes or entity.in_flight or entity.pending:
            return False
        self._contest(standing).forget(entity)
        del self._known[tenant_id]
        return True

    def waits(self, tenant_id: int) -> bool:
        """Whether jobs of it wait, in any lane."""
        return bool(self._known[tenant_id][0].lanes)

    def arrive(self, tenant_id: int, lane: str) -> None:
        """Jobs of the tenant wait in this lane."""
        entity, standing = self._known[tenant_id]
        if lane not in entity.lanes:
            self._lanes += 1
            entity.lanes |= {lane}
            self._contest(standing).touch(entity)

    def empty(self, tenant_id: int, lane: str) -> None:
        """None wait in it any more."""
        entity, standing = self._known[tenant_id]
        if lane in entity.lanes:
            self._lanes -= 1
            entity.lanes -= {lane}
            self._contest(standing).touch(entity)

    def clear(self) -> None:
        """Nothing waits in the whole pool: nobody owes anybody."""
        if self._lanes:
            for entity, standing in self._known.values():
                if entity.lanes:
                    entity.lanes = frozenset()
                    self._contest(standing).touch(entity)
            self._lanes = 0
        self.rest()

    def allocate(
        self,
        room: int,
        *,
        slots: int,
        held: Mapping[str, int] = NOTHING_HELD,
        most_free: int | None = None,
        quantum: float = 0.0,
    ) -> list[Grant]:
        """Up to ``room`` jobs, whose turn it is; nothing is charged yet.

        ``held``: lanes that give at most so many now (0: none). A tenant with a limited lane
        uses that limit up as if all its jobs came from it. ``most_free``: jobs that free
        accounts may have in flight together. ``quantum``: slot-seconds that one may get before
        the next is looked at, but not more than a part of the room.
        """
        self._most_free = most_free
        limits = dict(held)
        self._paying.settle()
        self._free.settle()
        paying = self._paying.open(limits)
        free = self._free.open(limits)
        self._seat_group(any(heap.members for heap in free))
        self._paying.weigh(paying, self._group.kind if self._group_waits else None)
        self._free.weigh(free, None)
        self._paying.bound_debts(slots)
        self._free.bound_debts(slots if most_free is None else most_free)
        at_once = max(1, room // LEAST_TURNS)
        return self._pick(
            room,
            Draw(self._paying, paying, limits, quantum, at_once),
            Draw(self._free, free, limits),
        )

    def allocate_slice(
        self, room: int, tenant_id: int | None, held: Mapping[str, int] = NOTHING_HELD
    ) -> list[Grant]:
        """Up to ``room`` jobs for workers that are not everybody's: those of one tenant, or, if
        none is named, of the free accounts in turn."""
        limits = dict(held)
        if tenant_id is None:
            self._free.settle()
            free = self._free.open(limits)
            self._free.weigh(free, None)
            draw = Draw(self._free, free, limits)
            draw.take(room, inf)
            return draw.grants()
        if tenant_id not in self._known:
            return []
        entity, _ = self._known[tenant_id]
        jobs = room if entity.cap is None else min(room, entity.cap - entity.in_flight)
        lanes = {lane: min(jobs, held.get(lane, jobs)) for lane in sorted(entity.lanes)}
        lanes = {lane: most for lane, most in lanes.items() if most > 0}
        return [Grant(tenant_id, jobs, lanes)] if jobs > 0 and lanes else []

    def _pick(self, room: int, paying: Draw, free: Draw) -> list[Grant]:
        group = self._group
        left_free = inf if self._most_free is None else self._most_free - group.in_flight
        trial = group.pending
        while room > 0:
            rival = inf
            if self._group_waits and left_free > 0 and free.lowest() < inf:
                rival = group.served + trial / group.kind.weight
            picks = len(paying.take(room, rival))
            room -= picks
            if picks:
                free.close()  # limits of lanes are everybody's
            elif rival == inf:
                break
            else:
                trial += free.take(1, inf)[0].expected
                room -= 1
                left_free -= 1
                paying.close()
        if left_free <= 0:
            self._group_waits = False
        return paying.grants() + free.grants()

    def dispatched(self, tenant_id: int, seconds: Sequence[float]) -> None:
        """Jobs that are expected to take so long were dispatched."""
        if not seconds:
            return
        entity, standing = self._known[tenant_id]
        self._charge(entity, standing, charged(entity, seconds), len(seconds))
        # Time is what was served, not what was estimated: a newcomer would start with a debt
        # for jobs that may turn out to be a hundred times as short, and would keep it.
        contest = self._contest(standing)
        contest.virtual_time = max(contest.virtual_time, contest.served(entity))
        if standing.free:
            self._paying.virtual_time = max(self.virtual_time, self._group.served)

    def returned(self, tenant_id: int, seconds: Sequence[float]) -> None:
        """They could not be published: as if they had not been dispatched."""
        entity, standing = self._known[tenant_id]
        charge = min(taken_back(entity, seconds), entity.pending)
        self._charge(entity, standing, -charge, -len(seconds))

    def reconcile(self, tenant_id: int, *, used: float, pending: float, in_flight: int) -> None:
        """The truth: slot-seconds used since the last time, and what is in flight now."""
        entity, standing = self._known[tenant_id]
        pending = corrected(entity, used=used, pending=pending, in_flight=in_flight)
        entity.served += used / entity.kind.weight
        if standing.free:
            self._group.served += used / self._group.kind.weight
        self._charge(entity, standing, pending - entity.pending, in_flight - entity.in_flight)

    def set_in_flight(self, tenant_id: int, in_flight: int) -> None:
        entity, standing = self._known[tenant_id]
        self._charge(entity, standing, 0.0, in_flight - entity.in_flight)

    def waiting(self, held: Collection[str] = ()) -> bool:
        """Anybody may be picked from a lane that is not held."""
        self._paying.settle()
        self._free.settle()
        slice_left = self._most_free is None or self._group.in_flight < self._most_free
        return self._paying.waits(held) or (slice_left and self._free.waits(held))

    @property
    def free_full(self) -> bool:
        """Whether free accounts have all in flight that they may, as of the last allocation."""
        return self._most_free is not None and self._group.in_flight >= self._most_free

    def at_cap(self) -> list[int]:
        """Waiting tenants that only their cap keeps back."""
        self._paying.settle()
        self._free.settle()
        return sorted((*self._paying.capped, *self._free.capped))

    def rest(self, held: Collection[str] = ()) -> None:
        """Nobody had to wait: debts are forgiven. Not among free accounts that wait for their
        slice: newcomers would be behind the largest debtor."""
        self._paying.rest()
        if not self._free.waits(held):
            self._free.rest()
        self._paying.virtual_time = max(self.virtual_time, self._group.served)

    def account(self, tenant_id: int) -> Account:
        """Where a tenant stands; of a free account, its place among them."""
        entity, standing = self._known[tenant_id]
        contest = self._contest(standing)
        served = contest.served(entity) - contest.virtual_time + self.virtual_time
        weight = self._group.kind.weight if standing.free else entity.kind.weight
        pass_ = served + entity.pending / entity.kind.weight
        return Account(served, entity.pending, pass_, entity.in_flight, weight)

    def _contest(self, standing: TenantClaim) -> Contest:
        return self._free if standing.free else self._paying

    def _kind(self, entitlement: Entitlement) -> Kind:
        kind = self._kinds.get(entitlement)
        if kind is None:
            kind = self._kinds[entitlement] = Kind(entitlement)
        return kind

    def _charge(self, entity: Entity, standing: TenantClaim, seconds: float, jobs: int) -> None:
        if standing.free:
            self._group.pending = max(0.0, self._group.pending + seconds)
            self._group.in_flight += jobs
        entity.pending = max(0.0, entity.pending + seconds)
        entity.in_flight = max(0, entity.in_flight + jobs)
        self._contest(standing).touch(entity)

    def _regroup(self, entity: Entity, free: bool) -> None:
        """It changed between paying and free: its work in flight goes with it."""
        sign = 1 if free else -1
        self._group.pending = max(0.0, self._group.pending + sign * entity.pending)
        self._group.in_flight += sign * entity.in_flight
        entity.served = (self._free if free else self._paying).virtual_time

    def _seat_group(self, anybody: bool) -> None:
        """The group joins when one of its accounts may be picked."""
        room = self._most_free is None or self._group.in_flight < self._most_free
        if anybody and room and not self._group_waits:
            self._paying.lift(self._group)
        self._group_waits = anybody and room
        self._paying.forgive(self._group)
