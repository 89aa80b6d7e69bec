"""``make demo``: submits applications to a running stack and shows them being scored, live."""

from __future__ import annotations

import http.client
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

ROLE = "engineer"
FIRST = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Radia", "Ken", "Frances")
LAST = ("Lovelace", "Hopper", "Turing", "Dijkstra", "Liskov", "Knuth", "Perlman", "Allen")
WORK = ("Go and Python", "running databases", "building compilers", "teaching mathematics")
DONE = {"scored", "failed", "withdrawn", "expired"}
COLOURS = {"pending": "yellow", "scoring": "cyan", "scored": "green", "failed": "red"}
GIVE_UP_SECONDS = 300


@dataclass(slots=True)
class Sent:
    """A submitted application."""

    id: str
    candidate: str
    status: str = "pending"
    score: float | None = None


class NotFairline(Exception):
    """The server at that address is something else."""


class Api:
    """HTTP calls over one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "127.0.0.1", parts.port, timeout=10
        )

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        answer = response.read()
        try:
            return response.status, json.loads(answer or b"null")
        except ValueError:
            raise NotFairline(
                f"status {response.status}, {response.headers.get_content_type()}"
            ) from None


def run_demo(url: str, count: int, picture: str | None = None) -> None:
    """Submit, watch, show the leaderboard; ``picture`` names an SVG file to draw it into."""
    console = Console(record=picture is not None, width=100 if picture else None)
    api = Api(url)
    role = f"{ROLE} {time.strftime('%H:%M:%S')}"  # a separate leaderboard for this run
    try:
        submitted, seconds = submit_all(api, count, role)
    except (OSError, http.client.HTTPException) as error:
        message = f"No response from {url} ({error}). Is `make up` running there? (PORT=…)"
        raise click.ClickException(message) from None
    except NotFairline as error:
        raise click.ClickException(f"The server at {url} is not Fairline ({error}).") from None
    console.print(
        f"[bold]{count} applications accepted[/] in {seconds:.2f} s "
        f"({seconds / max(1, count) * 1000:.1f} ms each); scoring …"
    )
    watch(api, submitted, console)
    console.print()
    if failed := [sent for sent in submitted if sent.status != "scored"]:
        _, answer = api.call("GET", f"/applications/{failed[0].id}")
        reason = (answer.get("error") or {}).get("message", answer["status"])
        raise click.ClickException(f"{len(failed)} of {count} were not scored: {reason}")
    show_leaderboard(api, console, role)
    if picture:
        # Without the fonts, which it would load from another host.
        svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="make demo"), flags=re.S)
        Path(picture).write_text(svg)


def submit_all(api: Api, count: int, role: str) -> tuple[list[Sent], float]:
    started = time.monotonic()
    submitted = []
    for number in range(count):
        candidate = f"{random.choice(FIRST)} {random.choice(LAST)}"
        payload = f"{random.randint(0, 30)} years of {random.choice(WORK)}. Application {number}."
        body = {"candidate": candidate, "role": role, "payload": payload}
        status, answer = api.call("POST", "/applications", body)
        if status != 202:
            raise click.ClickException(f"{status}: {answer.get('detail', answer)}")
        submitted.append(Sent(answer["id"], candidate))
    return submitted, time.monotonic() - started


def watch(api: Api, submitted: list[Sent], console: Console) -> None:
    """Poll and draw the applications until all are done."""
    progress = Progress(
        TextColumn("[bold]done"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    bar = progress.add_task("done", total=len(submitted))
    deadline = time.monotonic() + GIVE_UP_SECONDS
    with Live(console=console, refresh_per_second=8) as live:
        while True:
            for sent in submitted:
                if sent.status not in DONE:
                    _, answer = api.call("GET", f"/applications/{sent.id}")
                    sent.status, sent.score = answer["status"], answer["score"]
            done = sum(sent.status in DONE for sent in submitted)
            progress.update(bar, completed=done)
            live.update(Group(dots(submitted), progress))
            if done == len(submitted):
                return
            if time.monotonic() > deadline:
                raise click.ClickException("Some were not scored in time; see /readyz.")
            time.sleep(0.1)


def dots(submitted: list[Sent]) -> Text:
    """A dot per application, coloured by status, and the counts."""
    text = Text()
    for sent in submitted:
        text.append("● ", style=COLOURS.get(sent.status, "magenta"))
    counts = Counter(sent.status for sent in submitted)
    text.append("\n")
    for status in ("pending", "scoring", "scored", "failed"):
        if counts[status]:
            text.append(f"{counts[status]} {status}  ", style=COLOURS[status])
    return text


def show_leaderboard(api: Api, console: Console, role: str) -> None:
    """The ten best."""
    _, board = api.call("GET", f"/leaderboard?role={quote(role)}&limit=10")
    table = Table(title=f"Leaderboard: {role}", title_style="bold")
    table.add_column("rank", justify="right")
    table.add_column("candidate")
    table.add_column("score", justify="right", style="green")
    table.add_column("rationale", style="dim", overflow="fold")
    for entry in board["entries"]:
        table.add_row(
            str(entry["rank"]), entry["candidate"], f"{entry['score']:.2f}", entry["rationale"]
        )
    console.print(table)
