"""What encryption at rest costs: microseconds per payload, in both directions.

``python -m loadtest.encryption_cost``. In this process alone; each payload belongs to another job,
so its row's key is derived each time, as in the API and the workers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from statistics import median

from rich.console import Console
from rich.table import Table

from models.encryption.key_ring import ContentKind, EncryptionKey, KeyRing, Place
from models.jobs.ids import new_id

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


def main() -> None:
    ring = KeyRing([EncryptionKey("measured", secrets.token_bytes(32))])
    places = [Place(1 + number % 10, new_id(), ContentKind.PAYLOAD) for number in range(CALLS)]
    table = Table("payload", "encrypt, µs", "decrypt, µs", "stored, bytes")
    for name, size in SIZES.items():
        texts = [secrets.token_hex(size // 2)] * CALLS
        stored = list(map(ring.encrypt_text, texts, places))
        written = microseconds(ring.encrypt_text, texts, places)
        read = microseconds(ring.decrypt_text, stored, places)
        table.add_row(name, f"{written:.1f}", f"{read:.1f}", f"{len(stored[0]):,}")
    Console().print(table)


if __name__ == "__main__":
    main()
