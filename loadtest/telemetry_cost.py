"""What telemetry costs the API: requests accepted per second without it and with it.

``python -m loadtest.telemetry_cost``. Three APIs on private services take turns under the same
load: without telemetry, with every request traced, and with one in ten. The collector discards
everything; it runs on the same cores, as the generator does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rich.console import Console

from loadtest.accept import WARM_SECONDS, measure
from loadtest.closed_loop import Load, applications
from loadtest.figures import Sample, medians
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), Discard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def run(rounds: int, seconds: float, console: Console) -> dict[str, Sample]:
    """Medians of each; the only cores are those of its API."""
    found: list[Sample] = []
    with collector() as url, fleet("telemetry") as started:
        exported = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        ways = {"off": {}, "every request": exported, "one in ten": {**exported, **SAMPLED}}
        servers = {}
        for number, (way, env) in enumerate(ways.items()):
            servers[way] = Fairline(started, served_pools="medium", name=f"fairline_{number}")
            servers[way].start_api(f"api-{number}", **env)
        bodies = applications(500)
        for turn in range(rounds + 1):
            for number, (way, server) in enumerate(servers.items()):
                load = Load(server.port, CONNECTIONS, WARM_SECONDS, seconds, bodies, 202)
                sample = measure(started, way, load)
                sample = Sample(way, sample.rate, cores={"api": sample.cores[f"api-{number}"]})
                if turn:  # the first requests do not count
                    found.append(sample)
                    console.print(f"round {turn}: {line(sample)}", highlight=False)
    return medians(found)


def line(sample: Sample) -> str:
    cost = 1000 * sample.own_cores / sample.rate
    return f"{sample.name:<14}{sample.rate:>8,.0f}/s   {cost:.3f} ms of the API per request"


def main() -> int:
    asked = options(
        *("python -m loadtest.telemetry_cost", __doc__),
        ("--rounds", 5, "turns of each"),
        ("--seconds", 4.0, "of each turn"),
    )
    console = Console()
    samples = run(asked.rounds, asked.seconds, console)
    for sample in samples.values():
        share = sample.rate / samples["off"].rate
        console.print(f"{line(sample)}   {share:.0%}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
