"""The folder that holds everything a stack leaves on disk (``FAIRLINE_HOME``)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

from app.stack.spec import StackError

#: Longest path of a unix socket that Linux accepts, without the closing NUL.
SOCKET_PATH_BYTES = 107
#: Where sockets go whose own folder is too deep.
SPARE_SOCKETS = Path("/tmp")
MAX_LOG_BYTES = 20 * 1024 * 1024
#: Others may not look into the home. Under root, PostgreSQL's own user has to pass it.
PRIVATE_MODE = 0o711 if os.geteuid() == 0 else 0o700


class Home:
    """Paths below the home, and its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        #: Large payloads and checkpoints.
        self.blobs = self.path / "blobs"
        #: A key for the operator API; only its owner may read it.
        self.operator_key = self.path / "operator.key"
        #: Which processes were started, for cleaning up after a crash.
        self.processes_file = self.path / "processes.json"
        #: Identity of the supervisor.
        self.supervisor_file = self.path / "supervisor.json"

    def prepare(self) -> None:
        self.stack_id()
        for folder in (self.logs, self.blobs):
            make_private(folder)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def rotate_logs(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Empty logs that have become too large, keeping one older file beside each.

        A log is copied and emptied in place, because its writer holds it open (for appending).
        Lines written between the copy and the emptying are lost.
        """
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > max_bytes:
                older = log.with_suffix(".log.1")
                older.touch(mode=0o600)
                try:
                    shutil.copyfile(log, older)
                except OSError:
                    older.unlink(missing_ok=True)  # the part of it takes room that others need
                    raise
                os.truncate(log, 0)

    def stack_id(self) -> str:
        """Unique short name of this stack; never changes."""
        file = self.path / "stack-id"
        if not file.exists() or not file.stat().st_size:  # written while the disk was full
            # One that is there already may be somebody else's, and stays as it is.
            self.path.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
            file.write_text(uuid.uuid4().hex[:8])
        return file.read_text()

    def lock(self) -> IO[str]:
        """Claim the home for this process until the file is closed, or the process ends."""
        file = (self.path / "lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StackError(
                f"a stack is already running in {self.path}; stop it with `make down`, or run "
                "another beside it with its own FAIRLINE_HOME and ports"
            ) from None
        return file


def make_private(folder: Path) -> None:
    """A folder that only its owner may enter, also if an earlier version made it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


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
    # could become anyway, is safe to use.
    if folder.is_symlink() or (info.st_uid != os.geteuid() and os.geteuid() != 0):
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def drop_socket_folder(folder: Path) -> None:
    """Remove the folder if it is a private one in /tmp and empty."""
    if folder.parent == SPARE_SOCKETS:
        with suppress(OSError):
            folder.rmdir()
