"""What encryption at rest costs: rates with it and without, and microseconds per payload.

``python -m loadtest.encryption_cost``. Stacks with a key and without take turns, each with a
database of its own. The microseconds are of this process alone; each payload belongs to another
job, so its row's key is derived each time, as in the API and the workers.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from itertools import cycle
from statistics import median

from rich.console import Console

from loadtest.bench import Rounds
from loadtest.figures import Sample, medians
from loadtest.fleet import Fairline, fleet
from loadtest.isolation_cost import compare, measure_both
from loadtest.report import Report, command, table
from models.encryption.key_ring import ContentKind, EncryptionKey, KeyRing, Place
from models.jobs.ids import new_id

#: Of the rates without it.
LEAST_RATIO = 0.8
ENCRYPTED, PLAIN = "encrypted", "plain"
SIZES = {"200 B": 200, "2 KB": 2_000, "64 KB": 64_000}
CALLS = 500
ROUNDS = 7


def microseconds(act: Callable[[str, Place], str], texts: list[str], places: list[Place]) -> float:
    """Of one call, the median of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for text, place in zip(texts, places, strict=True):
            act(text, place)
        rounds.append((time.perf_counter() - began) / CALLS * 1e6)
    return median(rounds)


def payload_costs() -> list[tuple[str, float, float, int]]:
    """Of each size: microseconds to encrypt and to decrypt, and bytes as stored."""
    ring = KeyRing([EncryptionKey("measured", secrets.token_bytes(32))])
    places = [Place(1 + number % 10, new_id(), ContentKind.PAYLOAD) for number in range(CALLS)]
    found = []
    for name, size in SIZES.items():
        texts = [secrets.token_hex(size // 2)] * CALLS
        stored = list(map(ring.encrypt_text, texts, places))
        written = microseconds(ring.encrypt_text, texts, places)
        read = microseconds(ring.decrypt_text, stored, places)
        found.append((name, written, read, len(stored[0])))
    return found


def measure_way(way: str, asked: argparse.Namespace) -> list[Sample]:
    """The rates of a stack of its own."""
    with fleet("encryption") as started:
        fairline = Fairline(started, served_pools="medium")
        if way == ENCRYPTED:
            key = b64encode(secrets.token_bytes(32)).decode()
            fairline.env = fairline.env | {"FAIRLINE_ENCRYPTION_KEYS": f"measured:{key}"}
        return measure_both(way, fairline, asked)


def run(asked: argparse.Namespace, console: Console) -> Report:
    rounds = Rounds(console, asked.rounds)
    ways = (ENCRYPTED, PLAIN)
    orders = cycle((ways, ways[::-1]))
    rounds.run(
        "encrypted and plain",
        lambda: [each for way in next(orders) for each in measure_way(way, asked)],
    )
    report = Report("encryption_cost", "What encryption at rest costs", notes=rounds.notes)
    compare(report, medians(rounds.samples), ways, LEAST_RATIO)
    columns = {
        "payload": "{0[0]}",
        "encrypt, µs": "{0[1]:.1f}",
        "decrypt, µs": "{0[2]:.1f}",
        "stored, bytes": "{0[3]:,}",
    }
    report.tables.append(table("Payloads", columns, payload_costs()))
    return report


FLAGS = (
    ("--rounds", 3, "turns of each"),
    ("--seconds", 6.0, "of each measurement of submissions"),
    ("--jobs", 20_000, "no-op jobs"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.encryption_cost", __doc__, run, *FLAGS))
