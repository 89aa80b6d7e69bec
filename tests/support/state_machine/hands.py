"""What workers do, dead and undead ones too: claim, renew, report, save, settle, crash."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import orjson
from hypothesis import strategies as st

from models.jobs.checkpoint import Saved, Saving, save_group
from models.jobs.claim import Claim, JobRef, claim_group
from models.jobs.heartbeat import RunReport, beat, note_begun, read_cancelled, report
from models.jobs.ids import new_id
from models.jobs.offer import GivenJob, offer, read_ours, withdraw
from models.jobs.settle import Settlement, settle_group, settle_statement
from models.jobs.states import FailureClass, JobStatus
from tasks.registry import projections_of
from tasks.retry.decision import History, RetryStanding
from tasks.worker.outcome import (
    Deferred,
    Failed,
    HandedBack,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Withdrawn,
    ending_of,
)
from tests.support.state_machine.stage import Stage
from tests.support.state_machine.twin import Twin, fate

names = st.sampled_from(["w1", "w2", "w3"])
#: A worker is never the one that says WORKER_CRASH.
failures = st.builds(
    Failed,
    st.sampled_from([failure for failure in FailureClass if failure != "WORKER_CRASH"]),
    st.just("told to"),
    st.sampled_from([None, None, 0.0, 20.0]),
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Succeeded('{"score": 5}')),
    failures,
    failures,
    st.sampled_from([Snoozed(0.0), Snoozed(20.0), Released(), HandedBack(), Withdrawn()]),
    st.just(Deferred("later")),
)
standings = st.sampled_from(
    [
        RetryStanding(),
        RetryStanding(),
        RetryStanding(quarantined=True),
        RetryStanding(budget_left=False),
    ]
)
#: Exact in binary, so that sums are.
run_seconds = st.sampled_from([0.0, 0.25, 2.0])


class Workers(Stage):
    """The workers."""

    def current(self) -> list[JobRef]:
        """Messages that should find their job."""
        return [JobRef(twin.id, twin.lease) for twin in self.twins_in(JobStatus.DISPATCHED)]

    def worker_acts(self) -> list[str]:
        """What they may do now, as often as it is likely."""
        acts = ["deliver"] * 6 if self.twins_in(JobStatus.DISPATCHED) else []
        acts += ["make_offers"] * 2 if self.lanes else []
        acts += ["take_back_offers", "look_at_rows"] if any(self.offers.values()) else []
        acts += ["ask_again"] * 2 if any(h.unanswered for h in self.workers.values()) else []
        acts += ["redeliver"] if self.sent else []
        acts += (
            ["heartbeat", "begin", "say_how_far", "checkpoint", "checkpoint"] if self.claims else []
        )
        if any(hands.held for hands in self.workers.values()):
            acts += ["hear_of_cancellations", "crash", "crash", "fail_everything"]
            acts += ["settle"] * 5
        return acts

    def make_offers(self, data: st.DataObject) -> None:
        """Of a worker that is alive now, in one pool or in all, in place of what it offered."""
        pools = data.draw(st.sampled_from([["medium"], ["short", "medium", "long"]]))
        jobs = data.draw(st.integers(1, 12), label="jobs")
        self.offer_to_run(data.draw(names, label="worker"), pools, jobs)

    def offer_to_run(self, name: str, pools: list[str], jobs: int) -> None:
        self.announce(name)
        assert offer(self.engine, name, pools, jobs) == (self.lanes.keys() >= set(pools))
        for pool in self.lanes.keys() & set(pools):
            others = [one for one in self.offers[pool] if one[0] != name]
            self.offers[pool] = [*others, (name, jobs)]

    def take_back_offers(self, data: st.DataObject) -> None:
        name = data.draw(names, label="worker")
        withdraw(self.engine, name)
        for pool, offers in self.offers.items():
            self.offers[pool] = [one for one in offers if one[0] != name]

    def look_at_rows(self, data: st.DataObject) -> None:
        """As a worker does that begins to listen: what it has and does not know is asked for."""
        name = data.draw(names, label="worker")
        ours = {job.ref for job in read_ours(self.engine, name)}
        running = self.twins_in(JobStatus.RUNNING)
        assert ours == {JobRef(twin.id, twin.lease) for twin in running if twin.worker == name}
        self.workers[name].unanswered |= ours - self.workers[name].held.keys()

    def be_given(self, name: str, job: GivenJob, *, heard: bool) -> None:
        """A new row is the worker's, which knows it if it heard the message."""
        hands = self.workers[name]
        self.given[heard] += 1
        assert job.claim is not None
        self.check(job.claim)
        if not heard:
            hands.unanswered.add(job.ref)
            return
        hands.held[job.ref] = hands.granted[job.ref] = self.claims[job.ref] = job.claim

    def deliver(self, data: st.DataObject) -> None:
        """Claim what was sent; now and then the question or the answer is lost on its way."""
        name = data.draw(names, label="worker")
        lost = data.draw(st.sampled_from([None] * 4 + ["question", "answer"]), label="lost")
        refs = data.draw(st.just(self.current()) | st.lists(st.sampled_from(self.current())))
        if lost == "question":
            self.workers[name].unanswered |= set(refs)
        else:
            waiting = data.draw(
                st.sampled_from([frozenset(), frozenset(refs[1:])]), label="waiting"
            )
            self.claim(name, refs, answered=lost is None, waiting=waiting)

    def redeliver(self, data: st.DataObject) -> None:
        """Any message that was ever sent, with one that nobody sent; by chance it is right."""
        name, lease = data.draw(names), data.draw(st.integers(0, 5))
        refs = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, max_size=3))
        forged = JobRef(data.draw(st.sampled_from([*self.twins, new_id()])), lease)
        self.claim(name, [*refs, forged])

    def ask_again(self, data: st.DataObject) -> None:
        for name, hands in self.workers.items():
            if hands.unanswered:
                self.claim(name, sorted(hands.unanswered), again=True)

    def claim(
        self,
        name: str,
        refs: list[JobRef],
        *,
        answered: bool = True,
        again: bool = False,
        waiting: frozenset[JobRef] = frozenset(),
    ) -> None:
        hands = self.workers[name]
        expected = []
        for ref in dict.fromkeys(refs):
            twin = self.twins.get(ref.id)
            if twin is None or twin.lease != ref.lease:
                continue
            ours = again and twin.status is JobStatus.RUNNING and twin.worker == name
            claimable = twin.status is JobStatus.DISPATCHED or ours
            if claimable and twin.claim(name, self.now, waits=ref in waiting):
                expected.append(ref)
        unanswered = frozenset(hands.unanswered) if again else frozenset()
        found = claim_group(self.engine, name, [(ref,) for ref in refs], unanswered, waiting)
        claims = [claim for message in found for claim in message]
        assert [claim.ref for claim in claims] == expected
        hands.unanswered -= set(refs)
        if not answered:
            hands.unanswered |= set(refs)
            return
        for claim in claims:
            self.check(claim)
            hands.held[claim.ref] = claim
            hands.granted[claim.ref] = claim
            self.claims[claim.ref] = claim

    def check(self, claim: Claim) -> None:
        twin = self.twins[claim.ref.id]
        history = (claim.attempt, claim.deferrals, claim.crashes, claim.lost_claims, claim.replays)
        assert history == (
            *(twin.attempt, twin.deferrals, twin.crashes, twin.lost_claims, twin.replays),
        )
        assert claim.violations == twin.violations
        assert (claim.tenant_id, claim.type, claim.pool) == (
            twin.tenant_id,
            twin.type,
            twin.kind.pool,
        )

    def heartbeat(self, data: st.DataObject) -> None:
        """Also of workers that slept through the loss of their lease."""
        name, claims = self.some_claims(data)
        refs = [claim.ref for claim in claims]
        expected = {ref for ref in refs if self.holds(ref, JobStatus.RUNNING)}
        for ref in expected:
            self.twins[ref.id].renew_if_due(self.now)
        assert beat(self.engine, name, refs) == dict.fromkeys(expected, True)

    def begin(self, data: st.DataObject) -> None:
        """Runs that had to wait have begun."""
        name, claims = self.some_claims(data)
        ran = data.draw(run_seconds, label="ran")
        expected = {claim.ref for claim in claims if self.holds(claim.ref, JobStatus.RUNNING)}
        for ref in expected:
            twin = self.twins[ref.id]
            twin.waiting, twin.started_at = False, self.now - timedelta(seconds=ran)
        assert note_begun(self.engine, name, [(one.ref, ran) for one in claims]) == expected

    def say_how_far(self, data: st.DataObject) -> None:
        done, tokens = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
        name, claims = self.some_claims(data)
        refs = [claim.ref for claim in claims]
        said = {"done": done, "total": None}
        for ref in refs:
            if self.holds(ref, JobStatus.RUNNING):
                self.twins[ref.id].progress = said
                self.twins[ref.id].reported = (ref.lease, tokens, 2 * tokens)
        text = orjson.dumps(said).decode()
        report(self.engine, name, [RunReport(ref, text, tokens, 2 * tokens) for ref in refs])

    def hear_of_cancellations(self, data: st.DataObject) -> None:
        name = data.draw(names, label="worker")
        expected = {
            JobRef(twin.id, twin.lease)
            for twin in self.twins_in(JobStatus.RUNNING)
            if twin.worker == name and twin.cancel_requested
        }
        assert read_cancelled(self.engine, name) == expected

    def checkpoint(self, data: st.DataObject) -> None:
        """The current lease writes; one that was lost does not, not even in the same group."""
        savings, expected = [], []
        name, claims = self.some_claims(data)
        for claim in claims:
            step = data.draw(st.integers(0, 9), label="step")
            blob = data.draw(st.sampled_from([None, f"blob {step}"]), label="blob")
            savings.append(Saving(claim.ref, str(step) if blob is None else None, blob))
            expected.append(Saved(self.holds(claim.ref, JobStatus.RUNNING)))
            if expected[-1].ours:
                twin = self.twins[claim.ref.id]
                before = twin.checkpoint[2] if twin.checkpoint else None
                expected[-1] = Saved(True, before if before != blob else None)
                twin.checkpoint = (twin.lease, step if blob is None else None, blob)
        assert save_group(self.engine, name, savings) == expected

    def some_claims(self, data: st.DataObject) -> tuple[str, list[Claim]]:
        """Claims of a worker, of any age, as they meet in one group; each at most once."""
        granted = {name: list(hands.granted) for name, hands in self.workers.items()}
        name = data.draw(st.sampled_from([n for n in granted if granted[n]]), label="worker")
        held = list(self.workers[name].held)
        refs = st.sampled_from(held or granted[name]) | st.sampled_from(granted[name])
        chosen = data.draw(st.lists(refs, min_size=1, max_size=5, unique=True), label="claims")
        return name, [self.claims[ref] for ref in chosen]

    def settle(self, data: st.DataObject) -> None:
        name, claims = self.some_claims(data)
        self.write(
            name,
            [
                (claim, data.draw(outcomes), data.draw(standings), data.draw(run_seconds))
                for claim in claims
            ],
        )

    def fail_everything(self, data: st.DataObject) -> None:
        """Everything in hand at once, so that the dead letters fill."""
        failure = data.draw(failures, label="failure")
        for name, hands in self.workers.items():
            held = list(hands.held.values())
            self.write(name, [(claim, failure, RetryStanding(), 0.5) for claim in held])

    def write(self, name: str, group: list[tuple[Claim, Outcome, RetryStanding, float]]) -> None:
        """End runs, also such as lost their lease; with the tokens and progress of each."""
        settlements, expected = [], []
        for number, (claim, outcome, standing, seconds) in enumerate(group):
            limits = self.database.types[claim.type].limits
            history = History(claim.attempt, claim.deferrals, claim.crashes, claim.violations)
            ending = ending_of(outcome, history, limits, standing, Random(len(self.sent)))
            progress = None if number else '{"done": 7}'
            settlements.append(Settlement(claim.ref, ending, seconds, progress, number, 2))
            expected.append(self.holds(claim.ref, JobStatus.RUNNING))
            if expected[-1]:
                twin = self.twins[claim.ref.id]
                twin.progress = orjson.loads(progress) if progress else twin.progress
                self.end_run(twin, outcome, standing, seconds)
                unused = isinstance(outcome, Released | HandedBack | Withdrawn) and not seconds
                ended = twin.status is not JobStatus.QUEUED and not unused
                if ended or seconds > 0:
                    self.charge(twin, seconds, (number, 2), ended=ended)
        statement = settle_statement(projections_of(self.database.types.values()))
        assert settle_group(self.engine, statement, name, settlements) == expected
        for claim, *_ in group:
            for hands in self.workers.values():
                hands.held.pop(claim.ref, None)

    def end_run(
        self, twin: Twin, outcome: Outcome, standing: RetryStanding, seconds: float
    ) -> None:
        if isinstance(outcome, Deferred):
            outcome = Failed(FailureClass.DEPENDENCY, outcome.message)
        match outcome:
            case Succeeded(result):
                twin.succeed(orjson.loads(result), seconds, self.now)
            case Snoozed(wait):
                twin.snooze(wait, seconds, self.now)
            case Withdrawn():
                twin.withdraw(seconds, self.now)
            case Released() | HandedBack():
                twin.hand_back(isinstance(outcome, HandedBack), seconds, self.now)
            case Failed(failure, _, retry_after):
                to = fate(
                    failure,
                    twin.kind,
                    twin.attempt,
                    twin.deferrals,
                    twin.crashes,
                    twin.violations,
                    retry_after=retry_after,
                    quarantined=standing.quarantined,
                    budget_left=standing.budget_left,
                )
                twin.fail(failure, to, seconds, self.now)

    def crash(self, data: st.DataObject) -> None:
        """The process forgets everything; nobody is told."""
        name = data.draw(st.sampled_from([n for n, hands in self.workers.items() if hands.held]))
        self.workers[name].held.clear()
        self.workers[name].unanswered.clear()
