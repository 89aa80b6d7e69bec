"""Where a tenant lives: its cells with their weights, and the cell that a new job goes to. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite, log

#: Also a key of the hash, which takes 64 bytes.
CELL_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
#: Cells of one tenant: clients send a position in the events of each of them in one header.
CELLS_OF_A_TENANT = 64
#: A hash is one of so many numbers.
HASHES = 2**64


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tenant lives: its cells with their weights."""

    #: Raised by every change.
    version: int
    #: By name of the cell; 0: it admits nothing more and is being emptied.
    weights: Mapping[str, float]

    @property
    def cells(self) -> tuple[str, ...]:
        """All of them, sorted: its rows may be in each."""
        return tuple(sorted(self.weights))

    @property
    def admitting(self) -> tuple[str, ...]:
        """The cells that new jobs go to, sorted."""
        return tuple(sorted(cell for cell, weight in self.weights.items() if weight > 0))

    @property
    def leaving(self) -> tuple[str, ...]:
        """The cells that are being emptied, sorted."""
        return tuple(sorted(cell for cell, weight in self.weights.items() if weight <= 0))

    def choose(self, token: bytes) -> str:
        """The cell of the job with this token: always the same, in proportion to the weights.

        Rendezvous hashing: each cell has a number drawn for it by the token, and the highest wins.
        A higher weight raises the numbers of its own cell alone, so it only attracts tokens; a cell
        that goes leaves its tokens to the others, which keep theirs.
        """
        admitting = self.admitting
        if len(admitting) == 1:
            return admitting[0]
        return max(admitting, key=lambda cell: (score(cell, self.weights[cell], token), cell))


def score(cell: str, weight: float, token: bytes) -> float:
    """What is drawn for a cell: of several, each is the highest in proportion to its weight."""
    drawn = int.from_bytes(blake2b(token, digest_size=8, key=cell.encode()).digest())
    return -weight / log((drawn + 0.5) / HASHES)


def checked_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights by cell that a tenant may be given; ``ValueError`` says what is wrong."""
    checked = {}
    for cell, weight in weights.items():
        if not CELL_NAME.fullmatch(cell):
            raise ValueError(f"{cell!r} is no name of a cell")
        if not (isfinite(weight) and 0 < weight <= 1_000_000):
            raise ValueError(f"the weight of {cell} must be above 0 and at most 1000000")
        checked[cell] = float(weight)
    if not checked:
        raise ValueError("name at least one cell")
    if len(checked) > CELLS_OF_A_TENANT:
        raise ValueError(f"a tenant lives in at most {CELLS_OF_A_TENANT} cells")
    return checked


def parse_weights(text: str) -> dict[str, float]:
    """``cell-1,cell-2=2``: the weights by cell; 1 where none is given."""
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        cell, _, weight = part.partition("=")
        if cell in weights:
            raise ValueError(f"{cell} is named twice")
        try:
            weights[cell] = float(weight or 1)
        except ValueError:
            raise ValueError(f"{weight!r} is no weight") from None
    return checked_weights(weights)
