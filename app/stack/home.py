"""The folder that holds everything a stack leaves on disk (``FAIRLINE_HOME``)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

#: Longest path of a unix socket that Linux takes, without the closing NUL.
SOCKET_PATH_BYTES = 107


#: Where sockets go whose own folder is too deep.
SPARE_SOCKETS = Path("/tmp")


class AlreadyRunning(RuntimeError):
    """Another supervisor holds this home."""


class Home:
    """Where things are."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def prepare(self) -> None:
        """Create the folder."""
        for folder in (self.path / "logs", self.blobs):
            folder.mkdir(parents=True, exist_ok=True)
        self.stack_id()

    @property
    def blobs(self) -> Path:
        """Large payloads and checkpoints."""
        return self.path / "blobs"

    @property
    def operator_key(self) -> Path:
        """A key that opens the operator's routes; its owner alone may read it."""
        return self.path / "operator.key"

    @property
    def processes_file(self) -> Path:
        """Which processes were started, for whoever cleans up after a crash."""
        return self.path / "processes.json"

    @property
    def supervisor_file(self) -> Path:
        """Who supervises."""
        return self.path / "supervisor.json"

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.path / "logs" / f"{name}.log"

    def stack_id(self) -> str:
        """Short name of this stack, different from every other's, the same for good."""
        file = self.path / "stack-id"
        if not file.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            file.write_text(uuid.uuid4().hex[:8])
        return file.read_text()

    def lock(self) -> IO[str]:
        """Claim the home for this process until the file is closed, or the process ends."""
        file = (self.path / "lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise AlreadyRunning(
                f"a stack is already running in {self.path}; `make down` stops it, and another "
                "FAIRLINE_HOME with other ports runs beside it"
            ) from None
        return file


def socket_folder(preferred: Path, longest_name: str) -> Path:
    """`preferred` if a socket in it is short enough to be bound, else a private one in /tmp."""
    if len(os.fsencode(preferred / longest_name)) <= SOCKET_PATH_BYTES:
        preferred.mkdir(parents=True, exist_ok=True)
        return preferred
    digest = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:12]
    folder = SPARE_SOCKETS / f"fairline-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    # Anybody can create a folder of that name first; only one of ours, or of a user that we
    # could become anyway, is safe to speak through.
    if folder.is_symlink() or (info.st_uid != os.geteuid() and os.geteuid() != 0):
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def drop_socket_folder(folder: Path) -> None:
    """Remove the folder if it is a private one in /tmp and nothing is in it."""
    if folder.parent == SPARE_SOCKETS:
        with suppress(OSError):
            folder.rmdir()
