"""What telemetry costs the API: requests accepted per second without it and with it.

``python -m loadtest.telemetry_cost``. APIs on private services take turns under the same load, each
round in another order: without telemetry, with metrics alone, with one request in ten traced, with
every one, and without once more, which tells how much equal ones differ. The collector discards
everything; it runs on the same cores, as the generator does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from statistics import median, quantiles

from rich.console import Console
from rich.progress import track

from loadtest.accept import measure
from loadtest.closed_loop import Load, applications
from loadtest.figures import Sample, medians
from loadtest.fleet import Fairline, Fleet, fleet
from loadtest.report import options

CONNECTIONS = 64
WARM_SECONDS = 0.4
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


#: What was measured in a round, by way.
Round = dict[str, Sample]


def run(rounds: int, seconds: float, console: Console) -> list[Round]:
    """What each round found; the only cores of an API are its own."""
    found: list[Round] = []
    with collector() as url, fleet("telemetry") as started:
        # Exported soon, so that it is not the next one's turn that pays for it.
        exported = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "300"}
        ways = {
            "off": {},
            "metrics alone": {**exported, "OTEL_TRACES_EXPORTER": "none"},
            "one in ten": {**exported, **SAMPLED},
            "every request": exported,
            "off again": {},
        }
        servers = {}
        for number, (way, env) in enumerate(ways.items()):
            servers[way] = Fairline(started, served_pools="medium", name=f"fairline_{number}")
            servers[way].start_api(f"api-{number}", **env)
        bodies, chance = applications(500), Random(1)
        for turn in track(range(rounds + 1), "rounds", console=console):
            samples = {}
            for number, (way, server) in chance.sample(list(enumerate(servers.items())), len(ways)):
                load = Load(server.port, CONNECTIONS, WARM_SECONDS, seconds, bodies, 202)
                samples[way] = measured(started, way, f"api-{number}", load)
            if turn:  # the first requests do not count
                found.append(samples)
    return found


def shares(rounds: Sequence[Round], way: str) -> tuple[list[float], float]:
    """Of the rate without telemetry, as quartiles of what single rounds say; and the median by
    processor time.

    A machine may be twice as fast in one round as in the next; within a round it differs less.
    """
    rates = [found[way].rate / found["off"].rate for found in rounds]
    times = [found[way].per_core_second / found["off"].per_core_second for found in rounds]
    return quantiles(rates, n=4), median(times)


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
        ("--rounds", 20, "turns of each"),
        ("--seconds", 1.5, "of each turn"),
    )
    console = Console()
    rounds = run(asked.rounds, asked.seconds, console)
    for sample in medians([sample for found in rounds for sample in found.values()]).values():
        if sample.name == "off":
            console.print(line(sample), highlight=False)
            continue
        (low, middle, high), by_time = shares(rounds, sample.name)
        text = (
            f"{line(sample)}   {middle:.0%} of the rate ({low:.0%} to {high:.0%}),"
            f" {by_time:.0%} by processor time"
        )
        console.print(text, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
