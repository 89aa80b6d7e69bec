"""Fair queue of one pool: which tenant gets its slots next, in slot-seconds and by weight.

Stride scheduling: each tenant has a *pass*, the slot-seconds it used and is expected to use for
what is in flight, ÷ its effective weight. The waiting tenant with the lowest pass is next. All free
accounts compete as one. Nobody saves up credit while idle, at its cap or behind a held lane; nobody
owes anything after a moment without contention. It says whose jobs are next, not which, and
preempts nothing; what an allocation grants is charged when it has been dispatched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from app.policy.fairshare.allocation import Allocation, Grant
from app.policy.fairshare.heaps import Entity, WeightClass
from app.policy.fairshare.run_queue import RunQueue
from app.policy.fairshare.tiers import Entitlement, Tier, entitlement_of

NOTHING_HELD: Mapping[str, int] = {}
#: However short the jobs, an allocation is divided among so many tenants if they wait.
LEAST_TURNS = 16
EQUAL = Entitlement(1.0)
#: Seconds of a job whose type never ran, by pool, and in a pool that a deployment adds.
FIRST_SECONDS = {"short": 10.0, "medium": 60.0, "long": 600.0}
OTHER_SECONDS = 60.0


def default_seconds(pool: str) -> float:
    """Seconds charged for a job of a type that was never measured."""
    return FIRST_SECONDS.get(pool, OTHER_SECONDS)


@dataclass(frozen=True, slots=True)
class TenantClaim:
    """What a tenant may claim in a pool."""

    entitlement: Entitlement
    #: Free accounts share one claim.
    free: bool = False
    #: Jobs that it may have in flight; None: any number.
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's position on the scale of the pool's virtual time."""

    #: Slot-seconds used ÷ weight, in the pool's virtual time. Needed after a restart.
    served: float
    #: Slot-seconds that the jobs in flight are expected to take.
    pending: float
    #: served + pending ÷ weight: the lowest is next.
    pass_: float
    in_flight: int
    #: Effective weight; for a free account, that of the whole group.
    weight: float


class FairQueue:
    def __init__(self, default_seconds: float, virtual_time: float = 0.0) -> None:
        self._default_seconds = default_seconds
        self._classes: dict[Entitlement, WeightClass] = {}
        self._known: dict[int, tuple[Entity, TenantClaim]] = {}
        self._paying = RunQueue(virtual_time)
        self._free = RunQueue(0.0)
        # A separate class: a paying tenant with the same entitlement would not be the group.
        free = WeightClass(entitlement_of(Tier.FREE))
        self._group = Entity(0, free, virtual_time, default_seconds)
        self._group_waits = False
        #: Lanes with queued jobs, held or not.
        self.lanes = 0
        self._most_free: int | None = None

    @property
    def virtual_time(self) -> float:
        """Where newcomers start: what the last one picked was served."""
        return self._paying.virtual_time

    @property
    def waiting_weight(self) -> float:
        """Effective weight of all that could be picked at the last allocation."""
        return self._paying.total

    def set_tenant(self, tenant_id: int, claim: TenantClaim, served: float | None = None) -> None:
        """Add a tenant or change its claim; ``served`` is its account from before a restart."""
        run_queue = self._run_queue(claim)
        known = self._known.get(tenant_id)
        weight_class = self._class_of(EQUAL if claim.free else claim.entitlement)
        if known is None:
            entity = Entity(tenant_id, weight_class, run_queue.virtual_time, self._default_seconds)
        else:
            entity, before = known
            self._run_queue(before).remove(entity)
            if before.free != claim.free:
                self._regroup(entity, claim.free)
        entity.weight_class, entity.cap = weight_class, claim.cap
        if served is not None:
            entity.served = served - self.virtual_time + run_queue.virtual_time
        self._known[tenant_id] = (entity, claim)
        run_queue.mark_dirty(entity)

    def has_tenant(self, tenant_id: int) -> bool:
        return tenant_id in self._known

    def remove_tenant(self, tenant_id: int) -> bool:
        """Remove it, unless something of it waits or is in flight; whether it was removed."""
        entity, claim = self._known[tenant_id]
        if entity.lanes or entity.in_flight or entity.pending:
            return False
        self._run_queue(claim).remove(entity)
        del self._known[tenant_id]
        return True

    def is_waiting(self, tenant_id: int) -> bool:
        """Whether jobs of it wait, in any lane."""
        return bool(self._known[tenant_id][0].lanes)

    def waits_in(self, tenant_id: int, lane: str) -> bool:
        """Whether jobs of it wait in this lane."""
        return tenant_id in self._known and lane in self._known[tenant_id][0].lanes

    def add_lane(self, tenant_id: int, lane: str) -> None:
        """Jobs of the tenant wait in this lane."""
        entity, claim = self._known[tenant_id]
        if lane not in entity.lanes:
            self.lanes += 1
            entity.lanes |= {lane}
            self._run_queue(claim).mark_dirty(entity)

    def remove_lane(self, tenant_id: int, lane: str) -> None:
        """No jobs of the tenant wait in this lane any more."""
        entity, claim = self._known[tenant_id]
        if lane in entity.lanes:
            self.lanes -= 1
            entity.lanes -= {lane}
            entity.note_given(0)
            self._run_queue(claim).mark_dirty(entity)

    def clear(self) -> None:
        """Nothing waits in the whole pool: nobody owes anybody."""
        if self.lanes:
            for entity, claim in self._known.values():
                if entity.lanes:
                    entity.lanes = frozenset()
                    self._run_queue(claim).mark_dirty(entity)
            self.lanes = 0
        self.forgive_debts()

    def allocate(
        self,
        most: int,
        *,
        slots: int,
        held: Mapping[str, int] = NOTHING_HELD,
        most_free: int | None = None,
        quantum: float = 0.0,
    ) -> list[Grant]:
        """Grants of up to ``most`` jobs together; nothing is charged yet.

        ``held``: lanes that give at most so many now (0: none). A tenant with a limited lane
        uses that limit up as if all its jobs came from it. ``most_free``: jobs that free
        accounts may have in flight together. ``quantum``: slot-seconds that one tenant may get
        in a row, but not more than a part of the allocation.
        """
        self._most_free = most_free
        limits = dict(held)
        self._apply_changes()
        paying = self._paying.open(limits)
        free = self._free.open(limits)
        self._admit_group(any(heap.members for heap in free))
        self._paying.weigh(paying, self._group.weight_class if self._group_waits else None)
        self._free.weigh(free, None)
        self._paying.bound_debts(slots)
        self._free.bound_debts(slots if most_free is None else most_free)
        at_once = max(1, most // LEAST_TURNS)
        return self._pick(
            most,
            Allocation(self._paying, paying, limits, quantum, at_once),
            Allocation(self._free, free, limits),
        )

    def allocate_slice(
        self, most: int, tenant_id: int | None, held: Mapping[str, int] = NOTHING_HELD
    ) -> list[Grant]:
        """Up to ``most`` jobs for dedicated workers: of one tenant, or, if none is named, of the
        free accounts."""
        limits = dict(held)
        if tenant_id is None:
            self._free.apply_changes()
            free = self._free.open(limits)
            self._free.weigh(free, None)
            allocation = Allocation(self._free, free, limits)
            allocation.take(most, inf)
            return allocation.grants()
        if tenant_id not in self._known:
            return []
        entity, _ = self._known[tenant_id]
        jobs = most if entity.cap is None else min(most, entity.cap - entity.in_flight)
        lanes = {lane: min(jobs, held.get(lane, jobs)) for lane in sorted(entity.lanes)}
        lanes = {lane: limit for lane, limit in lanes.items() if limit > 0}
        return [Grant(tenant_id, jobs, lanes)] if jobs > 0 and lanes else []

    def _pick(self, most: int, paying: Allocation, free: Allocation) -> list[Grant]:
        group = self._group
        left_free = inf if self._most_free is None else self._most_free - group.in_flight
        trial = group.pending
        while most > 0:
            rival = inf
            if self._group_waits and left_free > 0 and free.lowest() < inf:
                rival = group.served + trial / group.weight_class.weight
            picks = len(paying.take(most, rival))
            most -= picks
            if picks:
                free.close()  # both share the limits of lanes
            elif rival == inf:
                break
            else:
                trial += free.take(1, inf)[0].expected
                most -= 1
                left_free -= 1
                paying.close()
        if left_free <= 0:
            self._group_waits = False
        return paying.grants() + free.grants()

    def dispatched(self, tenant_id: int, seconds: Sequence[float]) -> None:
        """Jobs that are expected to take so long were dispatched."""
        if not seconds:
            return
        entity, claim = self._known[tenant_id]
        entity.note_given(len(seconds))
        self._charge(entity, claim, entity.charge(seconds), len(seconds))
        # Time is what was served, not what was estimated: a newcomer would start with a debt
        # for jobs that may turn out to be a hundred times as short, and would keep it.
        run_queue = self._run_queue(claim)
        run_queue.virtual_time = max(run_queue.virtual_time, run_queue.served(entity))
        if claim.free:
            self._paying.virtual_time = max(self.virtual_time, self._group.served)

    def take_back(self, tenant_id: int, seconds: Sequence[float]) -> None:
        """They could not be published: as if they had not been dispatched."""
        entity, claim = self._known[tenant_id]
        charge = min(entity.refund(seconds), entity.pending)
        self._charge(entity, claim, -charge, -len(seconds))

    def reconcile(self, tenant_id: int, *, used: float, pending: float, in_flight: int) -> None:
        """Replace estimates: slot-seconds used since the last call, and what is in flight now."""
        entity, claim = self._known[tenant_id]
        pending = entity.correct(used=used, pending=pending, in_flight=in_flight)
        entity.served += used / entity.weight_class.weight
        if claim.free:
            self._group.served += used / self._group.weight_class.weight
        self._charge(entity, claim, pending - entity.pending, in_flight - entity.in_flight)

    def set_in_flight(self, tenant_id: int, in_flight: int) -> None:
        entity, claim = self._known[tenant_id]
        self._charge(entity, claim, 0.0, in_flight - entity.in_flight)

    def any_waiting(self, held: Collection[str] = ()) -> bool:
        """Whether any tenant may be picked from a lane that is not held."""
        self._apply_changes()
        free = not self.free_full and self._free.any_waiting(held)
        return self._paying.any_waiting(held) or free

    def any_in(self, lane: str, *, free: bool = False) -> bool:
        """Whether any tenant may be picked from this lane, or any free account."""
        self._apply_changes()
        if free:
            return self._free.any_in(lane)
        return self._paying.any_in(lane) or (not self.free_full and self._free.any_in(lane))

    @property
    def free_full(self) -> bool:
        """Whether free accounts have all in flight that they may, as of the last allocation."""
        return self._most_free is not None and self._group.in_flight >= self._most_free

    def at_cap(self) -> list[int]:
        """Waiting tenants that only their cap holds back."""
        self._apply_changes()
        return sorted((*self._paying.capped, *self._free.capped))

    def forgive_debts(self, held: Collection[str] = ()) -> None:
        """Nobody had to wait: nobody owes anything. Except among free accounts that wait for
        their slice: newcomers would be behind the largest debtor."""
        self._paying.forgive_debts()
        if not self._free.any_waiting(held):
            self._free.forgive_debts()
        self._paying.virtual_time = max(self.virtual_time, self._group.served)

    def account(self, tenant_id: int) -> Account:
        """A tenant's account; for a free account, relative to the other free accounts."""
        entity, claim = self._known[tenant_id]
        run_queue = self._run_queue(claim)
        served = run_queue.served(entity) - run_queue.virtual_time + self.virtual_time
        weight = self._group.weight_class.weight if claim.free else entity.weight_class.weight
        pass_ = served + entity.pending / entity.weight_class.weight
        return Account(served, entity.pending, pass_, entity.in_flight, weight)

    def _apply_changes(self) -> None:
        self._paying.apply_changes()
        self._free.apply_changes()

    def _run_queue(self, claim: TenantClaim) -> RunQueue:
        return self._free if claim.free else self._paying

    def _class_of(self, entitlement: Entitlement) -> WeightClass:
        if entitlement not in self._classes:
            self._classes[entitlement] = WeightClass(entitlement)
        return self._classes[entitlement]

    def _charge(self, entity: Entity, claim: TenantClaim, seconds: float, jobs: int) -> None:
        if claim.free:
            self._group.pending = max(0.0, self._group.pending + seconds)
            self._group.in_flight += jobs
        entity.pending = max(0.0, entity.pending + seconds)
        entity.in_flight = max(0, entity.in_flight + jobs)
        self._run_queue(claim).mark_dirty(entity)

    def _regroup(self, entity: Entity, free: bool) -> None:
        """It changed between paying and free: its work in flight goes with it."""
        sign = 1 if free else -1
        self._group.pending = max(0.0, self._group.pending + sign * entity.pending)
        self._group.in_flight += sign * entity.in_flight
        entity.served = (self._free if free else self._paying).virtual_time

    def _admit_group(self, anybody: bool) -> None:
        """The group joins when one of its accounts may be picked."""
        waits = anybody and not self.free_full
        if waits and not self._group_waits:
            self._paying.drop_credit(self._group)
        self._group_waits = waits
        self._paying.limit_debt(self._group)
