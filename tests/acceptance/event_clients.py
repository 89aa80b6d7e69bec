"""A crowd of listeners in one process: a stream for each job, and the tenant's feed.

``python -m tests.acceptance.event_clients PORT`` reads ids of jobs from standard input, one a
line. It writes a line when every stream is open, and one, JSON, when every listener has heard
the end of what it listens to. Listeners do what a browser does: whenever a stream breaks off
they wait as long as the server asked for and resume where they were.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections import Counter
from dataclasses import dataclass, field

ENDS = {"succeeded", "dead", "cancelled", "expired"}


@dataclass(slots=True)
class Heard:
    """What all listeners together were told."""

    #: Streams opened, by how the server answered; 0: not at all.
    answers: Counter[int] = field(default_factory=Counter)
    #: Last event of each job's stream.
    ends: dict[str, str] = field(default_factory=dict)
    #: Ends of jobs in the feed, as often as they were told.
    fed: Counter[str] = field(default_factory=Counter)


class Listener:
    """One stream, resumed as often as it takes."""

    def __init__(self, port: int, path: str, heard: Heard) -> None:
        self.port = port
        self.path = path
        self.heard = heard
        self.opened = asyncio.Event()
        self.last_event_id = ""
        self.retry_seconds = 1.0

    async def listen(self) -> None:
        while not await self.once():
            await asyncio.sleep(self.retry_seconds)

    async def once(self) -> bool:
        """One connection; whether there is nothing left to hear."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**14)
        except OSError:
            self.heard.answers[0] += 1
            return False
        try:
            ask = f"GET {self.path} HTTP/1.1\r\nHost: localhost:{self.port}\r\n"
            writer.write(f"{ask}Last-Event-ID: {self.last_event_id}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            self.heard.answers[int(head.split()[1])] += 1
            fields: dict[str, str] = {}
            # Each event is a chunk: its length and its end look like fields, which nobody reads.
            while line := (await reader.readline()).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif self.take(fields):
                    return True
                else:
                    fields = {}
        except (OSError, asyncio.IncompleteReadError):
            pass  # killed in the middle
        finally:
            writer.close()
        return False

    def take(self, fields: dict[str, str]) -> bool:
        """What stands between two empty lines; whether it was the last of it."""
        self.last_event_id = fields.get("id", self.last_event_id)
        self.retry_seconds = float(fields.get("retry", self.retry_seconds * 1000)) / 1000
        if "id" in fields:
            self.opened.set()
        return "event" in fields and self.hear(fields["event"], json.loads(fields["data"]))

    def hear(self, event: str, data: dict[str, str]) -> bool:
        """An event of a job's stream."""
        if event in ENDS:
            self.heard.ends[data["id"]] = event
        return event in ENDS


class FeedListener(Listener):
    """The tenant's feed, until it has told of every job."""

    def __init__(self, port: int, heard: Heard, ids: set[str]) -> None:
        super().__init__(port, "/events", heard)
        self.ids = ids

    def hear(self, event: str, data: dict[str, str]) -> bool:
        if data.get("id") in self.ids:
            self.heard.fed[data["id"]] += 1
        return self.heard.fed.keys() == self.ids


async def listen_to_all(port: int, ids: list[str]) -> Heard:
    heard = Heard()
    listeners = [Listener(port, f"/jobs/{job_id}/events", heard) for job_id in ids]
    listeners.append(FeedListener(port, heard, set(ids)))
    listening = [asyncio.create_task(listener.listen()) for listener in listeners]
    await asyncio.gather(*[listener.opened.wait() for listener in listeners])
    print("open", flush=True)
    await asyncio.gather(*listening)
    return heard


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ids = sys.stdin.read().split()
    heard = asyncio.run(listen_to_all(int(sys.argv[1]), ids))
    print(json.dumps({"answers": heard.answers, "ends": heard.ends, "fed": heard.fed}), flush=True)


if __name__ == "__main__":
    main()
