"""Job ids: UUID version 7, so that ids sort by the time they were made.

The time is the database's, as this process knows it: jobs of one queue run in the order of their
ids, whichever machines accepted them.
"""

from __future__ import annotations

import os
import struct
import uuid

from models.store.clock import DATABASE_CLOCK, DatabaseClock

ID_CHARACTERS = 36
#: No id is as low, and none as high.
BELOW_ALL = "00000000-0000-0000-0000-000000000000"
ABOVE_ALL = "ffffffff-ffff-ffff-ffff-ffffffffffff"
#: Where the number of the cell is among the 62 random bits.
CELL_SHIFT = 50
BELOW_CELL = (1 << CELL_SHIFT) - 1
#: Random numbers that are asked of the operating system at once.
NUMBERS_AT_ONCE = 256

#: Random numbers of 64 bits that no id has used.
_unused: list[int] = []
# A forked process would use the same ones again.
os.register_at_fork(after_in_child=_unused.clear)


def new_id(clock: DatabaseClock = DATABASE_CLOCK, cell: int = 0) -> str:
    """A fresh id; ids of one process sort in the order of their making.

    Layout (RFC 9562, method 3): 48 bits of milliseconds, 12 bits of the fraction of the
    millisecond, 62 bits from the operating system: nobody can guess an id from others. Still ids
    are no secrets: access to a row depends on its tenant.

    ``cell``: the number of the cell that the job is born in takes the first 12 of the random bits;
    0: there are no cells.
    """
    milliseconds, rest = divmod(clock.next_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    tail = random_number() >> 2
    if cell:
        tail = cell << CELL_SHIFT | tail & BELOW_CELL
    value = (milliseconds << 80) | (0x7000 | fraction) << 64 | (0b10 << 62) | tail
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def cell_number(job_id: str) -> int:
    """The number of the cell that a job was born in: a hint, as it may be any where there were no
    cells, and jobs move with their tenants."""
    return int(job_id[19:23], 16) >> 2 & 0xFFF


def random_number() -> int:
    """64 bits from the operating system; each number is used once, whichever thread asks."""
    while True:
        try:
            return _unused.pop()
        except IndexError:
            fresh = os.urandom(8 * NUMBERS_AT_ONCE)
            _unused.extend(struct.unpack(f"{NUMBERS_AT_ONCE}Q", fresh))


def parse_id(text: str) -> str | None:
    """The canonical form of an id a caller sent, or None if it is not one."""
    if len(text) != ID_CHARACTERS:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None
