"""What clients do: submit, cancel, replay, discard."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import strategies as st

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.scheduler.maintenance.replayer import Replayer
from models.jobs.admit import admit_group
from models.jobs.admit_alone import admit_alone
from models.jobs.cancel import cancel
from models.jobs.claim import JobRef
from models.jobs.discard import discard_dead
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.replay_requests import ReplayRequest, create, read
from models.jobs.states import FailureClass, JobStatus
from models.jobs.submission import Admitted, IdempotencyKey, KeyReused, Submission, SubmissionGroup
from tests.support.state_machine.stage import TENANTS, Stage
from tests.support.state_machine.twin import KINDS, Twin

#: Age at which the scheduler's permission to dispatch in the request is none any more.
PERMISSION = timedelta(seconds=60)

#: Silence after which a worker's offer is none.
SILENCE = timedelta(seconds=6)

#: Type, priority, and the seconds until it may start and until it is too late.
Item = tuple[str, int, int | None, int | None]

#: Live jobs beyond which nobody submits: deep ways, not wide ones.
CROWD = 10

starts = st.sampled_from([None, None, None, -5, 0, 20, 4000])
ends = st.sampled_from([None, None, None, None, None, -5, 0, 20, 4000])
requests = st.tuples(
    st.sampled_from(TENANTS),
    st.sampled_from([None, None, None, "k1", "k2"]),
    st.sampled_from([b"body", b"body", b"other body"]),
    st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.integers(-1, 1), starts, ends),
        min_size=1,
        max_size=2,
    ),
)


class FrontDoor(Stage):
    """The clients."""

    def client_acts(self) -> list[str]:
        """What they may do now, as often as it is likely."""
        live = sum(twin.live for twin in self.twins.values())
        acts = ["submit"] * 3 + ["submit_alone"] * 2 if live < CROWD else []
        acts += ["cancel"] if live else []
        if self.twins_in(JobStatus.DEAD):
            acts += ["replay_by_id", "replay_matching", "discard"]
        return acts

    def submit(self, data: st.DataObject) -> None:
        wanted = data.draw(st.lists(requests, min_size=1, max_size=4), label="wanted")
        express = data.draw(st.booleans(), label="express")
        answer_lost = data.draw(st.sampled_from([False, False, False, True]), label="answer lost")
        group = [self.entry(*request) for request in wanted]
        if answer_lost:
            self.admit(group, express)
        self.admit(group, express)

    def submit_alone(self, data: st.DataObject) -> None:
        """One job, which a worker may be given; it does not hear of it if its message is lost."""
        kind = data.draw(st.sampled_from(sorted(KINDS)), label="type")
        give = data.draw(st.sampled_from([True, True, False]), label="give")
        lost = data.draw(st.sampled_from([None, None, "answer", "message"]), label="lost")
        entry = self.entry(data.draw(st.sampled_from(TENANTS)), None, b"", [(kind, 0, None, None)])
        item = entry.submissions[0]
        if data.draw(st.booleans(), label="offered"):
            self.grant(item.pool, 5)
            name = data.draw(st.sampled_from(sorted(self.workers)))
            self.offer_to_run(name, [item.pool], data.draw(st.integers(1, 12), label="jobs"))
            self.pass_time(timedelta(seconds=data.draw(st.sampled_from([0, 1]), label="later")))
        born = self.bear([item], express=True)
        offers = self.offers[item.pool]
        expected = None
        if born and give and offers:
            first, jobs = offers.pop(0)
            if self.heard[first] > self.now - SILENCE:
                expected = first
                offers += [(first, jobs - 1)] if jobs > 1 else []
        found = admit_alone(self.engine, entry, True, give)
        assert (found.ids, bool(found.express)) == ((item.id,), bool(born))
        assert found.given == (expected is not None)
        told = self.told()
        if expected is None:
            assert told == []
            self.sent += [JobRef(item.id, 1) for item in found.express]
        else:
            self.twins[item.id].claim(expected, self.now)
            self.twins[item.id].given_at = self.now
            [(listener, job)] = told
            assert (listener, job.ref, job.type) == (expected, JobRef(item.id, 1), kind)
            self.be_given(expected, job, heard=lost != "message")
        if lost == "answer":
            again = admit_alone(self.engine, entry, False, give)
            assert (again.ids, again.express, again.given) == ((item.id,), (), False)

    def entry(
        self, tenant_id: int, key: str | None, digest: bytes, items: list[Item]
    ) -> SubmissionGroup:
        return SubmissionGroup(
            tuple(
                Submission(
                    id=new_id(),
                    tenant_id=tenant_id,
                    type=name,
                    pool=KINDS[name].pool,
                    payload="{}",
                    priority=priority,
                    execute_at=None if starts is None else self.now + timedelta(seconds=starts),
                    not_after=None if ends is None else self.now + timedelta(seconds=ends),
                    dependency=KINDS[name].dependency,
                    candidate="Ada" if name == "score_application" else None,
                    role="general" if name == "score_application" else None,
                )
                for name, priority, starts, ends in items
            ),
            None if key is None else IdempotencyKey(key, digest),
        )

    def admit(self, group: list[SubmissionGroup], express: bool) -> None:
        """What the group becomes, by the model and by the product."""
        new = []
        expected: list[tuple[tuple[str, ...], datetime | None] | None] = []
        for entry in group:
            ids = tuple(item.id for item in entry.submissions)
            place = (entry.submissions[0].tenant_id, entry.key.text if entry.key else "")
            first = self.keys.get(place) if entry.key else None
            if first is None:
                new.append(entry)
                expected.append((ids, None))
                if entry.key is not None:
                    self.keys[place] = (entry.key.digest, ids, self.now)
            elif entry.key is not None and entry.key.digest == first[0]:
                expected.append((first[1], None if first[1] == ids else first[2]))
            else:
                expected.append(None)
        born = self.bear([item for entry in new for item in entry.submissions], express)
        found = admit_group(self.engine, group, express)
        for entry, was, should in zip(group, found, expected, strict=True):
            if should is None:
                assert isinstance(was, KeyReused)
                continue
            assert isinstance(was, Admitted) and (was.ids, was.first_at) == should
            assert was.express == tuple(item for item in entry.submissions if item.id in born)
            self.sent += [JobRef(item.id, 1) for item in was.express]

    def bear(self, items: list[Submission], express: bool) -> set[str]:
        """Twins of new rows; which of them are born dispatched."""
        later = {i.id for i in items if i.execute_at is not None and i.execute_at > self.now}
        ready = [item for item in items if item.id not in later and not self.held_back(item)]
        open_lanes = set()
        for pool in {item.pool for item in ready}:
            credit, granted_at = self.lanes.get(pool, (0, self.now))
            asked = sum(item.pool == pool for item in ready)
            if express and credit >= asked and granted_at > self.now - PERMISSION:
                self.lanes[pool] = (credit - asked, granted_at)
                open_lanes.add(pool)
        born = set()
        for item in items:
            if item.id in self.twins:
                continue  # written before, the answer was lost
            status = JobStatus.SCHEDULED if item.id in later else JobStatus.QUEUED
            twin = Twin(item.id, item.tenant_id, item.type, item.priority, status)
            twin.execute_at, twin.not_after = item.execute_at, item.not_after
            self.twins[item.id] = twin
            if item in ready and item.pool in open_lanes:
                twin.status, twin.lease, twin.dispatched_at = JobStatus.DISPATCHED, 1, self.now
                twin.renew(self.now)
                born.add(item.id)
        return born

    def held_back(self, item: Submission) -> bool:
        """Whether only the scheduler may dispatch it now."""
        circuit = self.circuits.get(item.dependency, "closed")
        return circuit != "closed" or (item.tenant_id, item.pool) in self.throttled

    def cancel(self, data: st.DataObject) -> None:
        foreign = data.draw(st.sampled_from([False, False, False, True]), label="foreign")
        twin = data.draw(st.sampled_from(list(self.twins.values())), label="twin")
        if foreign:
            assert cancel(self.engine, 3 - twin.tenant_id, twin.id) is None
            assert cancel(self.engine, twin.tenant_id, new_id()) is None
            return
        if twin.live:
            twin.cancel(self.now)
        found = cancel(self.engine, twin.tenant_id, twin.id)
        assert found is not None
        assert found.status is twin.status
        assert (found.requested_at is not None) == twin.cancel_requested

    def replay_by_id(self, data: st.DataObject) -> None:
        """Any state, any tenant: only the tenant's dead come back, and only once."""
        tenant_id = data.draw(st.sampled_from(TENANTS), label="tenant")
        chosen = data.draw(st.lists(st.sampled_from(list(self.twins)), min_size=1, max_size=5))
        chosen.append(self.twins_in(JobStatus.DEAD)[0].id)
        expected = [
            twin
            for twin in self.twins_in(JobStatus.DEAD)
            if twin.id in chosen and twin.tenant_id == tenant_id
        ]
        for twin in expected:
            twin.replay()
        found = replay_dead(self.engine, tenant_id, [*chosen, new_id()])
        assert sorted(found) == sorted(twin.id for twin in expected)
        assert replay_dead(self.engine, tenant_id, chosen) == []

    def discard(self, data: st.DataObject) -> None:
        """Of the tenant's dead letters, once; what is discarded is not replayed."""
        tenant_id = data.draw(st.sampled_from(TENANTS), label="tenant")
        chosen = data.draw(st.sampled_from(list(self.twins)), label="job")
        dead = [twin.id for twin in self.twins_in(JobStatus.DEAD) if twin.tenant_id == tenant_id]
        expected = [chosen] if chosen in dead else []
        for job_id in expected:
            self.twins[job_id].discard()
        assert discard_dead(self.engine, tenant_id, [chosen, new_id()]) == expected
        assert discard_dead(self.engine, tenant_id, [chosen]) == []
        assert replay_dead(self.engine, tenant_id, expected) == []

    def replay_matching(self, data: st.DataObject) -> None:
        tenant_id = data.draw(st.sampled_from(TENANTS), label="tenant")
        job_type = data.draw(st.sampled_from([None, *sorted(KINDS)]), label="type")
        error_class = data.draw(st.sampled_from([None, None, *FailureClass]), label="class")
        limit = data.draw(st.integers(1, 3), label="limit")
        ago = data.draw(st.sampled_from([0, 0, 30]), label="ago")
        before = self.now - timedelta(seconds=ago)
        background = data.draw(st.booleans(), label="background")
        for _ in range(2):
            expected = sorted(
                twin.id
                for twin in self.twins_in(JobStatus.DEAD)
                if twin.tenant_id == tenant_id
                and job_type in (None, twin.type)
                and error_class in (None, twin.error_class)
                and twin.finished_at is not None
                and twin.finished_at <= before
            )[:limit]
            for job_id in expected:
                self.twins[job_id].replay()
            if background:
                request = ReplayRequest(tenant_id, None, job_type, error_class, before, limit)
                self.replay_in_background(request, len(expected))
                continue
            found = replay_dead(
                self.engine,
                tenant_id,
                before=before,
                limit=limit,
                job_type=job_type,
                error_class=error_class,
            )
            assert sorted(found) == expected

    def replay_in_background(self, request: ReplayRequest, expected: int) -> None:
        """As the API requests it and the scheduler works it off."""
        limits = SubmissionLimits(per_second=0, burst=0, queue_depth=1_000_000)
        role = Replayer(self.engine, self.database.leader, TenantLimits(self.engine, limits))
        made = create(self.engine, request, expected)
        for _ in range(4):
            role.run_once(0.0)
        row = read(self.engine, made.id)
        assert row is not None and (row.state, row.done) == ("finished", expected)
