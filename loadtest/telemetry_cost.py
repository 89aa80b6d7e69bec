"""What telemetry costs the front door: requests accepted a second without it and with it.

``python -m loadtest.telemetry_cost``. Three front doors on services of their own take turns under
the same load: without telemetry, with every request traced, and with one in ten. The collector
takes everything and keeps nothing; it runs on the same cores, as the generator does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

from rich.console import Console

from loadtest.accept import WARM_SECONDS, measure
from loadtest.closed_loop import Load, applications
from loadtest.fleet import Fairline, fleet
from loadtest.report import options

CONNECTIONS = 64
SAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}


class Discard(BaseHTTPRequestHandler):
    """A collector that keeps nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def collector() -> Iterator[str]:
    """Where it is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Discard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def run(rounds: int, seconds: float, console: Console) -> dict[str, tuple[float, float]]:
    """Median rate of each, and processor time of the front door in milliseconds a request."""
    found: dict[str, list[tuple[float, float]]] = {}
    with collector() as url, fleet("telemetry") as started:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        ways = {"off": {}, "every request": told, "one in ten": {**told, **SAMPLED}}
        doors = {}
        for number, (way, env) in enumerate(ways.items()):
            door = Fairline(started, served_pools="medium", name=f"fairline_{number}")
            door.start_api(f"api-{number}", **env)
            doors[way] = (f"api-{number}", door.port)
        bodies = applications(500)
        for turn in range(rounds + 1):
            for way, (name, port) in doors.items():
                load = Load(port, CONNECTIONS, WARM_SECONDS, seconds, bodies, 202)
                sample = measure(started, way, load)
                cost = 1000 * sample.cores[name] / sample.rate
                if turn:  # first touches are nobody's figures
                    found.setdefault(way, []).append((sample.rate, cost))
                    console.print(
                        f"round {turn}: {told_of(way, sample.rate, cost)}", highlight=False
                    )
    return {
        way: (median(rate for rate, _ in each), median(cost for _, cost in each))
        for way, each in found.items()
    }


def told_of(way: str, rate: float, cost: float) -> str:
    """One line."""
    return f"{way:<14}{rate:>8,.0f}/s   {cost:.3f} ms of the front door a request"


def main() -> int:
    """Measure and print."""
    asked = options(
        *("python -m loadtest.telemetry_cost", __doc__),
        ("--rounds", 5, "turns of each"),
        ("--seconds", 4.0, "of each turn"),
    )
    console = Console()
    medians = run(asked.rounds, asked.seconds, console)
    for way, (rate, cost) in medians.items():
        share = rate / medians["off"][0]
        console.print(f"{told_of(way, rate, cost)}   {share:.0%}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
