"""A file system of its own for a stack, which can be made full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Enough for the longest run: PostgreSQL's write-ahead log alone may have two gigabytes.
DISK_BYTES = 6 << 30


def may_mount() -> bool:
    """Whether this process may mount file systems."""
    return os.geteuid() == 0


@contextmanager
def own_disk(folder: Path) -> Iterator[None]:
    """A file system in memory, mounted at ``folder``."""
    options = f"size={DISK_BYTES},mode=0755"
    subprocess.run(("mount", "-t", "tmpfs", "-o", options, "fairline", str(folder)), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=False)
        folder.rmdir()


def resize(folder: Path, size: int) -> bool:
    """Give the file system so many bytes; false if more are in use."""
    argv = ("mount", "-o", f"remount,size={size}", str(folder))
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0
