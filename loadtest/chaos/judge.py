"""PURE: the one judge. What clients were promised against what is true when all is over."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loadtest.chaos.client import Heard
from loadtest.chaos.ends import Excuses, killers_in, lost_runs, wrong_end, wrong_result, wrong_tries
from loadtest.chaos.facts import Job, World
from loadtest.chaos.load import Exchange
from loadtest.chaos.plan import UNKEYED, Order
from loadtest.chaos.striker import Strike
from loadtest.chaos.witness import Line
from models.jobs.states import TERMINAL


@dataclass(slots=True)
class Report:
    """What the judge found; every list of faults is empty if all is well."""

    #: Not faults: how much there was of everything.
    figures: dict[str, int] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.faults.values())

    def __str__(self) -> str:
        lines = [", ".join(f"{count} {name}" for name, count in self.figures.items())]
        for name, found in self.faults.items():
            if found:
                lines.append(f"{name}: {len(found)}, such as {'; '.join(found[:5])}")
        return "\n".join(lines)


#: How each kind of request may be answered; silence and 503 are always possible.
EXPECTED = {
    "application": {202},
    "job": {202},
    "batch": {202},
    "reuse": {202},
    "misuse": {422},
    "cancel": {200, 202, 409},
    "look": {200},
    "replay": {200},
}
AWAY = {0, 503}
ENDED = {status.value for status in TERMINAL}
#: Clocks of one machine, read by several processes.
CLOCK_SECONDS = 0.05


class Judge:
    """Looks at one run from all sides."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        world: World,
        strikes: Sequence[Strike],
        lines: Sequence[Line],
        heard: Sequence[Heard],
    ) -> None:
        self.exchanges = exchanges
        self.world = world
        self.lines = lines
        self.heard = heard
        self.excuses = Excuses(strikes, killers_in(world))
        self.promised: dict[str, Order] = {
            job_id: order for exchange in exchanges for job_id, order in exchange.promises()
        }

    def report(self) -> Report:
        """Everything, by name."""
        return Report(
            self.figures(),
            {
                "lost": [one for one in self.promised if one not in self.world.jobs],
                "stuck": list(self.world.live),
                "altered": list(self.altered()),
                "wrong end": list(self.wrong_ends()),
                "wrong result": list(self.wrong_results()),
                "settled twice": list(self.wrong_tries()),
                "end changed": list(self.changed_ends()),
                "admitted twice": list(self.admitted_twice()),
                "key not kept": list(self.broken_keys()),
                "step repeated": list(repeated_steps(self.lines)),
                "ran after its end": list(self.late_runs()),
                "ran too early": list(self.early_runs()),
                "cancel not kept": list(self.broken_cancels()),
                "replay not kept": list(self.broken_replays()),
                "event lost": list(self.lost_events()),
                "event repeated": list(self.repeated_events()),
                "leaderboard": list(self.leaderboard()),
                "miscounted": list(self.world.miscounted),
                "usage": list(self.world.unbilled),
                "forgotten in a queue": list(self.world.forgotten),
                "unexpected answer": list(self.unexpected_answers()),
            },
        )

    def figures(self) -> dict[str, int]:
        """How much there was of everything."""
        jobs = self.world.jobs
        lost = lost_runs(jobs, self.world.attempts)
        ends = Counter(job.status for job in jobs.values())
        return {
            "requests": len(self.exchanges),
            "unanswered or 503": sum(one.status in AWAY for one in self.exchanges),
            "promised": len(self.promised),
            "admitted, answer lost": len(jobs.keys() - self.promised.keys()),
            **{status: ends[status] for status in sorted(ENDED)},
            "runs lost": len(lost),
            "runs lost without a hit": sum(not self.excuses.for_loss(one) for one in lost),
            "dead of five lost workers": sum(
                job.type != "crash" and job.error_class == "WORKER_CRASH" and job.status == "dead"
                for job in jobs.values()
            ),
        }

    def altered(self) -> Iterable[str]:
        """The row is not what was ordered."""
        for job_id, order in self.promised.items():
            job = self.world.jobs.get(job_id)
            if job is None:
                continue
            if job.type != order.type or not (job.large or job.payload == order.payload):
                yield f"{job} payload {str(job.payload)[:200]}"

    def wrong_ends(self) -> Iterable[str]:
        cancelling = {
            job_of(one) for one in self.requests("cancel") if one.status not in (404, 409)
        }
        for job in self.world.jobs.values():
            attempts = self.world.attempts.get(job.id, ())
            asked = job.id in cancelling
            if wrong := wrong_end(job, attempts, self.excuses, asked_to_stop=asked):
                yield f"{job}: {wrong}"

    def wrong_results(self) -> Iterable[str]:
        for job in self.world.jobs.values():
            order = self.promised.get(job.id)
            if job.status != "succeeded" or job.type == "crash":
                continue
            if (order is None and job.large) or (order and order.type != job.type):
                continue  # its input is not at hand, or it is not what was ordered at all
            if wrong := wrong_result(job, order.payload if order else job.payload):
                yield f"{job}: {wrong}"

    def wrong_tries(self) -> Iterable[str]:
        for job in self.world.jobs.values():
            if job.status in ENDED and (
                wrong := wrong_tries(job, self.world.attempts.get(job.id, ()))
            ):
                yield f"{job}: {wrong}"

    def changed_ends(self) -> Iterable[str]:
        """A client saw it end otherwise. Only the dead may come back."""
        for one in self.requests("look", 200):
            job, seen = self.world.jobs.get(one.document["id"]), one.document["status"]
            if (
                job
                and seen in ENDED
                and job.status != seen
                and not (seen == "dead" and job.replays)
            ):
                yield f"{job} was {seen}"

    def admitted_twice(self) -> Iterable[str]:
        """Rows that no key and no request without a key accounts for."""
        keyed = {job_id for ids in self.world.keys.values() for job_id in ids}
        tags: dict[str, list[Job]] = defaultdict(list)
        for job in self.world.jobs.values():
            tag = tag_of(job)
            if tag is not None:
                tags[tag].append(job)
            if job.id not in keyed and not job.large and not (tag or "").startswith(UNKEYED):
                yield f"{job} belongs to no key"
        for tag, jobs in tags.items():
            if len(jobs) > 1:
                yield f"{tag}: {', '.join(map(str, jobs))}"

    def broken_keys(self) -> Iterable[str]:
        """One key, one set of jobs, whichever answer one looks at."""
        for one in self.exchanges:
            if one.request.key is None or one.status != 202:
                continue
            ids = [job_id for job_id, _ in one.promises()]
            kept = list(self.world.keys.get(one.request.key, ()))
            if ids != kept:
                yield f"{one.request.key} was answered {ids}, the table says {kept}"

    def late_runs(self) -> Iterable[str]:
        """Whoever did not sleep through the loss of its lease runs nothing that has ended."""
        for line in self.lines:
            job = self.world.jobs.get(line.job)
            if line.what != "start" or job is None or job.replays or job.finished_at is None:
                continue
            over = job.status in ENDED and line.at > job.finished_at + CLOCK_SECONDS
            if over and not self.excuses.for_zombie(line.pid, line.at):
                yield f"{job} started {line.at - job.finished_at:.2f} s after its end, {line}"

    def early_runs(self) -> Iterable[str]:
        for line in self.lines:
            order = self.promised.get(line.job)
            if order and order.execute_at and line.at < order.execute_at - CLOCK_SECONDS:
                yield f"{line.job} started {order.execute_at - line.at:.2f} s early"

    def broken_cancels(self) -> Iterable[str]:
        for one in self.requests("cancel"):
            job = self.world.jobs.get(job_of(one))
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

    def broken_replays(self) -> Iterable[str]:
        """As often as a client was told, and not more often than it may have been."""
        unanswered = sum(one.status in AWAY for one in self.requests("replay"))
        told = Counter(
            job_id for one in self.requests("replay", 200) for job_id in one.document["ids"]
        )
        for job in self.world.jobs.values():
            if not told[job.id] <= job.replays <= told[job.id] + unanswered:
                yield f"{job} was told to be replayed {told[job.id]} times"

    def lost_events(self) -> Iterable[str]:
        """Whoever listens all the time hears every end; of a replayed job, at least the last."""
        told = {one.id: one.status for one in self.heard}
        for job in self.world.jobs.values():
            if job.status in ENDED and told.get(job.id) != job.status:
                yield f"{job} was told as {told.get(job.id)}"

    def repeated_events(self) -> Iterable[str]:
        """Coming back repeats nothing: a job has as many ends as replays, and one more."""
        times = Counter(one.id for one in self.heard)
        for job in self.world.jobs.values():
            if times[job.id] > job.replays + 1:
                yield f"{job} was told {times[job.id]} times"

    def leaderboard(self) -> Iterable[str]:
        """Every scored application once, the best first, and nothing else."""
        times = Counter(self.world.listed)
        for job in self.world.jobs.values():
            scored = job.type == "score_application" and job.status == "succeeded"
            if times[job.id] != int(scored):
                yield f"{job} is listed {times[job.id]} times"
        for job_id in times.keys() - self.world.jobs.keys():
            yield f"{job_id} is listed, and there is no such job"
        scores = [self.world.jobs[one].score or 0 for one in times if one in self.world.jobs]
        if scores != sorted(scores, reverse=True):
            yield f"not by score: {scores[:20]}"

    def unexpected_answers(self) -> Iterable[str]:
        for one in self.exchanges:
            if one.status not in EXPECTED[one.request.kind] | AWAY:
                yield (
                    f"{one.request.kind} {one.request.method} {one.request.path}"
                    f" got {one.status} {str(one.document)[:300]}"
                )

    def requests(self, kind: str, status: int | None = None) -> Iterable[Exchange]:
        return (
            one
            for one in self.exchanges
            if one.request.kind == kind and status in (None, one.status)
        )


def job_of(exchange: Exchange) -> str:
    """The job that a request names in its path."""
    return exchange.request.path.rpartition("/")[2]


def tag_of(job: Job) -> str | None:
    """The name by which a client can tell its job from all others."""
    if not isinstance(job.payload, dict):
        return None
    name = "candidate" if job.type == "score_application" else "tag"
    tag = job.payload.get(name)
    return tag if isinstance(tag, str) else None


def repeated_steps(lines: Sequence[Line]) -> Iterable[str]:
    """A run that begins after a step was kept must not begin before that step."""
    kept: dict[str, int] = defaultdict(int)
    due: dict[tuple[str, int], int] = {}
    for line in lines:
        match line.what:
            case "start":
                due[line.job, line.pid] = kept[line.job]
            case "loaded" if line.step < due.get((line.job, line.pid), 0):
                yield f"{line.job} begins after step {line.step}, {kept[line.job]} were kept"
            case "kept":
                kept[line.job] = max(kept[line.job], line.step)
