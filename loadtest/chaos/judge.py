"""Compares what clients were promised with what is true at the end of a chaos run. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from loadtest.chaos.ends import Excuses, FaultRecord, wrong_attempts, wrong_end, wrong_result
from loadtest.chaos.facts import Attempt, Job, World
from loadtest.chaos.load import Exchange
from loadtest.chaos.plan import UNKEYED, Order
from loadtest.chaos.witness import Line
from models.jobs.states import TERMINAL


@dataclass(slots=True)
class Findings:
    """Figures and faults; every list of faults is empty if all promises were kept."""

    figures: dict[str, int] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(self.faults.values())

    def __str__(self) -> str:
        lines = [", ".join(f"{count} {name}" for name, count in self.figures.items())]
        for name, found in self.faults.items():
            if found:
                lines.append(f"{name}: {len(found)}, such as {'; '.join(found[:5])}")
        return "\n".join(lines)


#: How requests may be answered if not by 202; no answer and 503 are always possible.
EXPECTED = {"misuse": {422}, "cancel": {200, 202, 409}, "look": {200}, "replay": {200}}
AWAY = {0, 503}
ENDED = {status.value for status in TERMINAL}
#: Clocks of one machine, read by several processes.
CLOCK_SECONDS = 0.05
#: A promotion may be noticed late; then come the two minutes before it.
REPEATED_SECONDS = 150.0


class Judge:
    def __init__(
        self,
        exchanges: Sequence[Exchange],
        world: World,
        hits: Sequence[FaultRecord],
        lines: Sequence[Line],
        ends: Sequence[tuple[str, str]],
        promotions: Sequence[tuple[float, float]] = (),
    ) -> None:
        """``lines`` is what the jobs logged, ``ends`` what the event stream sent.

        After each of the ``promotions`` of a standby, of which is known between which moments
        they were, the stream may send the ends of the two minutes before it again.
        """
        self.promotions = promotions
        self.exchanges = exchanges
        self.world = world
        self.jobs = world.jobs
        self.lines = lines
        killers: list[Attempt] = []
        others: list[Attempt] = []
        for job in self.jobs.values():
            (killers if job.type == "crash" else others).extend(world.attempts.get(job.id, ()))
        self.excuses = Excuses(hits, killers)
        self.lost_runs = [one for one in others if one.error_class == "WORKER_CRASH"]
        self.promised: dict[str, Order] = {
            job_id: order for exchange in exchanges for job_id, order in exchange.promises()
        }
        self.cancelling = {
            job_of(one) for one in self.requests("cancel") if one.status not in (404, 409)
        }
        replays = self.requests("replay", 200)
        self.replayed = Counter(job_id for one in replays for job_id in one.document["ids"])
        self.unknown_replays = sum(one.status in AWAY for one in self.requests("replay"))
        self.last_event = dict(ends)
        self.events = Counter(job_id for job_id, _ in ends)
        self.listed = Counter(world.listed)

    def report(self) -> Findings:
        return Findings(
            self.figures(),
            {
                "lost": [one for one in self.promised if one not in self.jobs],
                "stuck": list(self.world.live),
                "altered": self.each(self.altered),
                "wrong end": self.each(self.wrong_end),
                "wrong result": self.each(self.wrong_result),
                "settled twice": self.each(self.wrong_attempts),
                "end changed": list(self.changed_ends()),
                "admitted twice": list(self.admitted_twice()),
                "key not kept": list(self.broken_keys()),
                "step repeated": list(repeated_steps(self.lines)),
                "ran after its end": list(self.late_runs()),
                "ran too early": list(self.early_runs()),
                "cancel not kept": list(self.broken_cancels()),
                "replay not kept": self.each(self.wrong_replays),
                "event lost": self.each(self.lost_event),
                "event repeated": self.each(self.repeated_event),
                "leaderboard": [*self.each(self.wrong_listing), *self.leaderboard()],
                "miscounted": list(self.world.miscounted),
                "usage": list(self.world.unbilled),
                "forgotten in a queue": list(self.world.forgotten),
                "unexpected answer": [
                    f"{one.request.kind} {one.request.method} {one.request.path}"
                    f" got {one.status} {str(one.document)[:300]}"
                    for one in self.exchanges
                    if one.status not in EXPECTED.get(one.request.kind, {202}) | AWAY
                ],
            },
        )

    def figures(self) -> dict[str, int]:
        ends = Counter(job.status for job in self.jobs.values())
        return {
            "requests": len(self.exchanges),
            "unanswered or 503": sum(one.status in AWAY for one in self.exchanges),
            "promised": len(self.promised),
            "admitted, answer lost": len(self.jobs.keys() - self.promised.keys()),
            **{status: ends[status] for status in sorted(ENDED)},
            "runs lost": len(self.lost_runs),
            "runs lost without a hit": sum(not self.excuses.for_loss(o) for o in self.lost_runs),
            "dead of five lost workers": sum(
                job.type != "crash" and job.error_class == "WORKER_CRASH" and job.status == "dead"
                for job in self.jobs.values()
            ),
        }

    def each(self, check: Callable[[Job], str | None]) -> list[str]:
        """What a check finds wrong with each job."""
        found = ((job, check(job)) for job in self.jobs.values())
        return [f"{job}: {wrong}" for job, wrong in found if wrong]

    def altered(self, job: Job) -> str | None:
        """The row must be what was ordered."""
        order = self.promised.get(job.id)
        if not order or (job.type == order.type and (job.large or job.payload == order.payload)):
            return None
        return f"payload {str(job.payload)[:200]}"

    def wrong_end(self, job: Job) -> str | None:
        attempts = self.world.attempts.get(job.id, ())
        return wrong_end(job, attempts, self.excuses, asked_to_stop=job.id in self.cancelling)

    def wrong_result(self, job: Job) -> str | None:
        order = self.promised.get(job.id)
        if job.status != "succeeded" or job.type == "crash":
            return None
        if (order is None and job.large) or (order and order.type != job.type):
            return None  # its input is not at hand, or it is not what was ordered at all
        return wrong_result(job, order.payload if order else job.payload)

    def wrong_attempts(self, job: Job) -> str | None:
        attempts = self.world.attempts.get(job.id, ())
        return wrong_attempts(job, attempts) if job.status in ENDED else None

    def wrong_replays(self, job: Job) -> str | None:
        """As often as a client was answered, and not more often than it may have been."""
        answered = self.replayed[job.id]
        if answered <= job.replays <= answered + self.unknown_replays:
            return None
        return f"{answered} replays were answered"

    def lost_event(self, job: Job) -> str | None:
        """A client that is always connected gets every end; of a replayed job, the last one."""
        sent = self.last_event.get(job.id)
        return f"was sent as {sent}" if job.status in ENDED and sent != job.status else None

    def repeated_event(self, job: Job) -> str | None:
        """Reconnecting repeats nothing: a job has as many ends as replays, and one more."""
        times, ends = self.events[job.id], job.replays + 1
        ended = [one.ended_at for one in self.world.attempts.get(job.id, ())]
        ended.append(job.finished_at or 0.0)
        again = sum(
            any(since - REPEATED_SECONDS <= at <= until for at in ended)
            for since, until in self.promotions
        )
        return f"was sent {times} times" if times > ends * (1 + again) else None

    def wrong_listing(self, job: Job) -> str | None:
        """Every scored application is listed once, and nothing else."""
        scored = job.type == "score_application" and job.status == "succeeded"
        times = self.listed[job.id]
        return None if times == int(scored) else f"is listed {times} times"

    def leaderboard(self) -> Iterable[str]:
        """The best first, and only jobs that exist."""
        for job_id in self.listed.keys() - self.jobs.keys():
            yield f"{job_id} is listed, and there is no such job"
        scores = [self.jobs[one].score or 0 for one in self.listed if one in self.jobs]
        if scores != sorted(scores, reverse=True):
            yield f"not by score: {scores[:20]}"

    def changed_ends(self) -> Iterable[str]:
        """A client saw it end otherwise. Only dead jobs may be replayed."""
        for one in self.requests("look", 200):
            job, seen = self.jobs.get(one.document["id"]), one.document["status"]
            if job is None or seen not in ENDED or job.status == seen:
                continue
            if not (seen == "dead" and job.replays):
                yield f"{job} was {seen}"

    def admitted_twice(self) -> Iterable[str]:
        """Rows that no key and no request without a key accounts for."""
        keyed = {job_id for ids in self.world.keys.values() for job_id in ids}
        tags: dict[str, list[Job]] = defaultdict(list)
        for job in self.jobs.values():
            tag = tag_of(job)
            if tag is not None:
                tags[tag].append(job)
            if job.id not in keyed and not job.large and not (tag or "").startswith(UNKEYED):
                yield f"{job} belongs to no key"
        for tag, jobs in tags.items():
            if len(jobs) > 1:
                yield f"{tag}: {', '.join(map(str, jobs))}"

    def broken_keys(self) -> Iterable[str]:
        """One key, one set of jobs, in every answer."""
        for one in self.exchanges:
            if one.request.key is None or one.status != 202:
                continue
            ids = [job_id for job_id, _ in one.promises()]
            kept = list(self.world.keys.get(one.request.key, ()))
            if ids != kept:
                yield f"{one.request.key} was answered {ids}, the table says {kept}"

    def late_runs(self) -> Iterable[str]:
        """A job that has ended is started only by a worker that was frozen meanwhile."""
        for line in self.lines:
            job = self.jobs.get(line.job)
            if line.what != "start" or job is None or job.replays or job.finished_at is None:
                continue
            over = job.status in ENDED and line.at > job.finished_at + CLOCK_SECONDS
            if over and not self.excuses.for_zombie(line.process, line.at):
                yield f"{job} started {line.at - job.finished_at:.2f} s after its end, {line}"

    def early_runs(self) -> Iterable[str]:
        for line in self.lines:
            order = self.promised.get(line.job)
            if order and order.execute_at and line.at < order.execute_at - CLOCK_SECONDS:
                yield f"{line.job} started {order.execute_at - line.at:.2f} s early"

    def broken_cancels(self) -> Iterable[str]:
        for one in self.requests("cancel"):
            job = self.jobs.get(job_of(one))
            if job is None:
                continue
            if one.status == 200 and job.status != "cancelled":
                yield f"{job} was answered cancelled"
            elif one.status == 200 and (job.finished_at or 0) > one.answered_at + CLOCK_SECONDS:
                yield f"{job} was answered cancelled before it was"
            elif one.status == 200 and (job.started_at or 0) > (job.finished_at or 0):
                yield f"{job} was started after it was cancelled"
            elif one.status == 202 and job.status not in ("cancelled", "succeeded"):
                yield f"{job} was to be cancelled"

    def requests(self, kind: str, status: int | None = None) -> Iterable[Exchange]:
        for one in self.exchanges:
            if one.request.kind == kind and status in (None, one.status):
                yield one


def job_of(exchange: Exchange) -> str:
    """The job that a request names in its path."""
    return exchange.request.path.rpartition("/")[2]


def tag_of(job: Job) -> str | None:
    """The name by which a client can tell its job from all others."""
    if not isinstance(job.payload, dict):
        return None
    tag = job.payload.get("candidate" if job.type == "score_application" else "tag")
    return tag if isinstance(tag, str) else None


def repeated_steps(lines: Sequence[Line]) -> Iterable[str]:
    """A run that begins after a step was kept must not begin before that step."""
    kept: dict[str, int] = defaultdict(int)
    due: dict[tuple[str, str], int] = {}
    for line in lines:
        match line.what:
            case "start":
                due[line.job, line.process] = kept[line.job]
            case "loaded" if line.step < due.get((line.job, line.process), 0):
                yield f"{line.job} begins after step {line.step}, {kept[line.job]} were kept"
            case "kept":
                kept[line.job] = max(kept[line.job], line.step)
