"""What telemetry costs the API: requests accepted per second without it and with it.

``python -m loadtest.telemetry_cost``. Four APIs on private services take turns under the same
load: without telemetry, with metrics alone, with one request in ten traced, and with every one. The
collector discards everything; it runs on the same cores, as the generator does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rich.console import Console

from loadtest.accept import WARM_SECONDS, measure
from loadtest.closed_loop import Load, applications
from loadtest.figures import Sample, medians
from loadtest.fleet import Fairline, Fleet, fleet
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
        ways = {
            "off": {},
            "metrics alone": {**exported, "OTEL_TRACES_EXPORTER": "none"},
            "one in ten": {**exported, **SAMPLED},
            "every request": exported,
        }
        servers = {}
        for number, (way, env) in enumerate(ways.items()):
            servers[way] = Fairline(started, served_pools="medium", name=f"fairline_{number}")
            servers[way].start_api(f"api-{number}", **env)
        bodies = applications(500)
        for turn in range(rounds + 1):
            for number, (way, server) in enumerate(servers.items()):
                load = Load(server.port, CONNECTIONS, WARM_SECONDS, seconds, bodies, 202)
                sample = measured(started, way, f"api-{number}", load)
                if turn:  # the first requests do not count
                    found.append(sample)
                    console.print(f"round {turn}: {line(sample)}", highlight=False)
    return medians(found)


def measured(started: Fleet, way: str, api: str, load: Load) -> Sample:
    """Rate, and cores of everything that took part: API, store, generator and collector."""
    before, began = time.process_time(), time.monotonic()
    sample = measure(started, way, load)
    collector_cores = (time.process_time() - before) / (time.monotonic() - began)
    parts = {"api": sample.cores[api], "collector": collector_cores}
    parts |= {name: sample.cores[name] for name in ("postgres", "generator")}
    return Sample(way, sample.rate, cores=parts)


def line(sample: Sample) -> str:
    costs = (1000 * cores / sample.rate for cores in (sample.cores["api"], sample.own_cores))
    api, whole = costs
    return (
        f"{sample.name:<14}{sample.rate:>7,.0f}/s   ms per request: API {api:.3f}, all {whole:.3f}"
    )


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
        # On a busy machine rates vary with what is left of it, processor time per request less.
        by_time = sample.per_core_second / samples["off"].per_core_second
        console.print(f"{line(sample)}   {share:.0%}, by time {by_time:.0%}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
