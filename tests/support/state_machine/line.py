"""What the scheduler does, and time: promote, dispatch, release, expire, reap."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.maintenance.retirer import Kept, Retirer
from app.scheduler.service import Expirer
from models.jobs.claim import JobRef
from models.jobs.dispatch import Dispatch
from models.jobs.release import release
from models.jobs.states import JobStatus
from models.pools import POOLS
from models.presence import Presence, announce
from tests.support.state_machine.stage import TENANTS, Stage
from tests.support.state_machine.twin import IN_FLIGHT, WAITING, Twin

#: Jobs in flight that a half-open circuit and a throttled tenant may have.
PROBES = 3
THROTTLED = 1
#: Shorter than the longest step of the clock.
KEPT = Kept(finished=1000, dead=2000, events=1000, keys=3000)

pools = st.sampled_from(["short", "medium", "long"])


class Line(Stage):
    """The scheduler."""

    @initialize()
    def start_scheduler(self) -> None:
        self.promoter = Promoter(self.engine, self.database.leader, self.database.pools(), 1000.0)
        self.promoter.run_once(0.0)
        self.turns = 0
        self.reaper = Reaper(self.engine, self.database.leader, self.database.types)
        self.expirer = Expirer(self.engine, self.database.leader)
        self.retirer = Retirer(self.engine, self.database.leader, self.blobs, KEPT)
        #: Up to when each worker has renewed what it holds.
        self.renewed: dict[str, datetime] = {}

    def scheduler_acts(self) -> list[str]:
        """What it may do now, as often as it is likely."""
        twins = self.twins.values()
        acts = ["turn", "hear"]
        acts += ["retire"] if any(self.is_old(twin) for twin in twins) else []
        acts += ["release"] if self.sent else []
        acts += ["expire"] if any(twin.late(self.now) for twin in self.twins_in(*WAITING)) else []
        acts += ["promote"] * 3 if any(twin.is_due(self.now) for twin in twins) else []
        acts += ["reap"] * 3 if any(twin.lost(self.now) for twin in twins) else []
        acts += ["let_time_pass"] * 3
        acts += ["dispatch"] * 5 if self.twins_in(JobStatus.QUEUED) else []
        return acts

    def let_time_pass(self, data: st.DataObject) -> None:
        """A while, or exactly to the next moment that matters, or just beyond it."""
        moments = {
            moment
            for twin in self.twins.values()
            if twin.live
            for moment in (twin.execute_at, twin.not_after, twin.lease_expires_at)
            if moment is not None and moment > self.now
        }
        ways = [timedelta(seconds=seconds) for seconds in (1, 15, 100, 4000)]
        if moments:
            exactly = min(moments) - self.now
            ways += [exactly, exactly + timedelta(microseconds=1)] * 3
        self.pass_time(data.draw(st.sampled_from(ways), label="by"))

    def promote(self, data: st.DataObject) -> None:
        due = [twin for twin in self.twins.values() if twin.is_due(self.now)]
        self.announce("w1")
        self.turns += 1
        promoted = self.promoter.run_once(float(self.turns))
        rows = self.database.query("SELECT id::text FROM jobs WHERE status = 'queued'")
        queued = {row[0] for row in rows}
        for pool in POOLS:
            of_pool = [twin for twin in due if twin.kind.pool == pool]
            joined = [twin for twin in of_pool if twin.id in queued]
            left = [twin for twin in of_pool if twin.id not in queued]
            assert joined or not of_pool, "with free slots something must join"
            assert max_due(joined) <= min_due(left), "the oldest due joins first"
            promoted -= len(joined)
            for twin in joined:
                twin.promote()
        assert promoted == 0

    def dispatch(self, data: st.DataObject) -> None:
        """Lanes of open circuits give nothing, half-open ones their probes; throttled tenants
        have one job in flight."""
        room = data.draw(st.sampled_from([100, 100, 1]), label="room")
        pool = data.draw(st.sampled_from([None, None, "short", "medium"]), label="pool")
        for name in [pool] if pool else POOLS:
            lanes = {
                dependency: 0 if state == "open" else max(0, PROBES - self.in_flight(dependency))
                for dependency, state in self.circuits.items()
                if state != "closed"
            }
            rooms = {
                tenant: THROTTLED - min(THROTTLED, self.in_flight_of(tenant, name))
                for tenant, place in self.throttled
                if place == name
            }
            self.mark(name, room, lanes, rooms)

    def mark(self, pool: str, room: int, lanes: dict[str, int], rooms: dict[int, int]) -> None:
        """Each tenant by priority, then by age, across its lanes."""
        line = sorted(
            (twin for twin in self.twins_in(JobStatus.QUEUED) if twin.kind.pool == pool),
            key=lambda twin: (-twin.priority, twin.id),
        )
        given: Counter[tuple[int, str]] = Counter()
        picked: list[Twin] = []
        for twin in line:
            lane, most = twin.kind.dependency, rooms.get(twin.tenant_id, room)
            given[twin.tenant_id, lane] += 1
            before = sum(other.tenant_id == twin.tenant_id for other in picked)
            if given[twin.tenant_id, lane] <= min(most, lanes.get(lane, most)) and before < most:
                picked.append(twin)
        expected = {(t.id, t.lease, t.type, pool) for t in picked if t.dispatch(self.now)}
        marked = self.database.dispatch(pool, room, lanes=lanes, rooms=rooms)
        assert {tuple(dispatch[:4]) for dispatch in marked} == expected
        for tenant_id in TENANTS:
            own = [self.twins[each.id] for each in marked if each.tenant_id == tenant_id]
            assert own == sorted(own, key=lambda twin: (-twin.priority, twin.id))
        self.sent += [JobRef(dispatch.id, dispatch.lease) for dispatch in marked]

    def in_flight(self, dependency: str) -> int:
        return sum(twin.kind.dependency == dependency for twin in self.twins_in(*IN_FLIGHT))

    def in_flight_of(self, tenant_id: int, pool: str) -> int:
        return sum(
            (twin.tenant_id, twin.kind.pool) == (tenant_id, pool)
            for twin in self.twins_in(*IN_FLIGHT)
        )

    def release(self, data: st.DataObject) -> None:
        """The broker did not confirm these; some of them may have been delivered long ago."""
        refs = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, max_size=3, unique=True))
        for ref in refs:
            if self.holds(ref, JobStatus.DISPATCHED):
                self.twins[ref.id].release()
        release(self.engine, [Dispatch(ref.id, ref.lease, "?", "?") for ref in refs])

    def expire(self, data: st.DataObject) -> None:
        late = [twin for twin in self.twins_in(*WAITING) if twin.late(self.now)]
        for twin in late:
            twin.end(JobStatus.EXPIRED, self.now)
        assert self.expirer.run_once(0.0) == len(late)

    def reap(self, data: st.DataObject) -> None:
        """Without time between two looks, so that nobody is silent, stuck or forgotten."""
        expired = [twin for twin in self.twins_in(*IN_FLIGHT) if twin.lost(self.now)]
        lost = [twin for twin in expired if not self.is_kept(twin)]
        for twin in lost:
            if (seconds := twin.reap(self.now, self.heard.get(twin.worker or ""))) is not None:
                self.charge(twin, seconds, twin.reported_tokens())
        assert self.reaper.run_once(0.0) == len(lost)

    def hear(self, data: st.DataObject) -> None:
        """A worker reports, and says up to when it has renewed all that it holds."""
        name = data.draw(st.sampled_from(sorted(self.workers)), label="worker")
        ago = data.draw(st.sampled_from([0, 5, 60, 1000]), label="ago")
        self.announce(name, self.now - timedelta(seconds=ago))

    def announce(self, name: str, renewed_at: datetime | None = None) -> None:
        self.renewed[name] = renewed_at or self.renewed.get(name, self.now)
        self.heard[name] = self.now
        presence = Presence(name, "worker", list(POOLS), slots=1000, renewed_at=renewed_at)
        announce(self.engine, presence)

    def is_kept(self, twin: Twin) -> bool:
        """Whether its worker lives and could not renew its lease yet."""
        renewed = self.renewed.get(twin.worker or "")
        if twin.status is not JobStatus.RUNNING or renewed is None:
            return False
        assert twin.lease_expires_at is not None
        return renewed <= twin.lease_expires_at

    def retire(self, data: st.DataObject) -> None:
        """What ended long ago goes with all that belongs to it; so do old keys."""
        self.turns += 1
        self.retirer.run_once(100.0 * self.turns)
        old = [twin for twin in self.twins.values() if self.is_old(twin)]
        for twin in old:
            del self.twins[twin.id]
        self.retired += old
        for place, (_, _, first_at) in list(self.keys.items()):
            if first_at < self.now - timedelta(seconds=KEPT.keys):
                del self.keys[place]
        for table in ("attempts", "checkpoints"):
            left = self.database.query(f"SELECT DISTINCT job_id::text FROM {table}")
            assert {row[0] for row in left} <= self.twins.keys(), "a retired job left something"

    def is_old(self, twin: Twin) -> bool:
        if twin.live or twin.finished_at is None:
            return False
        dead = twin.status is JobStatus.DEAD or twin.discarded
        kept = KEPT.dead if dead else KEPT.finished
        return twin.finished_at < self.now - timedelta(seconds=kept)

    def turn(self, data: st.DataObject) -> None:
        """What other parts of the platform decide by their own lights."""
        knob = data.draw(st.sampled_from(["grant", "circuit", "throttle"]), label="knob")
        tenant_id, pool = data.draw(st.sampled_from(TENANTS)), data.draw(pools)
        match knob:
            case "grant":
                self.grant(pool, data.draw(st.integers(0, 5), label="credit"))
            case "circuit":
                self.turn_circuit(data.draw(st.sampled_from(["open", "half_open", "closed"])))
            case _:
                self.turn_throttle(tenant_id, pool)

    def grant(self, pool: str, credit: int) -> None:
        """Let the front door dispatch in the request."""
        self.lanes[pool] = (credit, self.now)
        self.database.execute(
            "INSERT INTO express_lanes (pool, credit) VALUES (%s, %s) ON CONFLICT (pool)"
            " DO UPDATE SET credit = excluded.credit, granted_at = now()",
            pool,
            credit,
        )

    def turn_circuit(self, state: str) -> None:
        self.circuits["claude"] = state
        self.database.execute(
            "INSERT INTO circuits (dependency, state) VALUES ('claude', %s)"
            " ON CONFLICT (dependency) DO UPDATE SET state = excluded.state",
            state,
        )

    def turn_throttle(self, tenant_id: int, pool: str) -> None:
        self.throttled ^= {(tenant_id, pool)}
        throttle = (tenant_id, pool)
        self.database.execute("DELETE FROM verdicts WHERE (tenant_id, pool) = (%s, %s)", *throttle)
        if throttle in self.throttled:
            self.database.execute(
                "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', %s, %s)",
                *throttle,
            )


def max_due(twins: list[Twin]) -> float:
    return max((t.execute_at.timestamp() for t in twins if t.execute_at), default=float("-inf"))


def min_due(twins: list[Twin]) -> float:
    return min((t.execute_at.timestamp() for t in twins if t.execute_at), default=float("inf"))
