"""The folder that holds everything a stack leaves on disk (``FAIRLINE_HOME``)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import shutil
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

from app.stack.spawn import private_file
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
        """Create what is missing; refused where another user's stack is, whom it would lock out."""
        if self.logs.exists() and (owner := self.logs.stat().st_uid) != os.geteuid():
            name = user_name(owner)
            raise StackError(f"the stack in {self.path} belongs to {name}: run this as {name}")
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
        """Unique short name of this stack; never changes while its home stays where it is.

        A copy of a home gets a name of its own, and forgets the processes of the original.
        """
        file = self.path / "stack-id"
        # An earlier version wrote no path; on a full disk the file may be empty.
        name, path = "", ""
        with suppress(FileNotFoundError):
            name, _, path = file.read_text().partition("\n")
        if name and path == self._place():
            return name
        copied = bool(path) and self._is_copy_of(path)
        # A home that is there already may be somebody else's, and keeps its mode.
        self.path.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        if copied:
            name = ""
            self.supervisor_file.unlink(missing_ok=True)
            self.processes_file.unlink(missing_ok=True)
        name = name or uuid.uuid4().hex[:8]
        # In one step, and a new file: that of a copy may be a hard link to the original's.
        draft = file.with_suffix(".new")
        draft.unlink(missing_ok=True)
        draft.write_text(f"{name}\n{self._place()}")
        draft.chmod(0o644)  # whoever wrote it, the owner of the home reads it
        draft.replace(file)
        return name

    def _place(self) -> str:
        """The real path, in one line of text whatever bytes it has."""
        return json.dumps(str(self.path.resolve()))

    def _is_copy_of(self, place: str) -> bool:
        """Whether this folder was copied from that place, which is still there; not if it was
        moved, or is seen by another path, as in a container."""
        try:
            return not os.path.samefile(json.loads(place), self.path)
        except (OSError, ValueError, TypeError):
            return False

    def lock(self) -> IO[str]:
        """Claim the home for this process until the file is closed, or the process ends."""
        # Whoever can open the file, if only to read it, can hold its lock.
        file = os.fdopen(private_file(str(self.path / "lock"), os.O_WRONLY | os.O_CREAT), "w")
        try:
            os.fchmod(file.fileno(), 0o600)  # an earlier version let others read it
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


def user_name(uid: int) -> str:
    """The name of a user, or the number of one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def socket_folder(preferred: Path, longest_name: str, account: int | None = None) -> Path:
    """`preferred` if a socket in it is short enough to be bound, else a private one in /tmp.

    ``account``: the user that the folder may have been given to.
    """
    if len(os.fsencode(preferred / longest_name)) <= SOCKET_PATH_BYTES:
        preferred.mkdir(parents=True, exist_ok=True)
        return preferred
    digest = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:12]
    folder = SPARE_SOCKETS / f"fairline-{digest}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    info = folder.lstat()
    # Anybody can create a folder of that name first, and would get hold of the sockets in it.
    if not stat.S_ISDIR(info.st_mode):
        problem = "is no folder"
    elif info.st_uid not in (os.geteuid(), account):
        problem = f"belongs to {user_name(info.st_uid)}"
    elif info.st_mode & 0o077:
        problem = "can be entered by others"
    else:
        return folder
    raise StackError(
        f"{folder} {problem}, so no sockets are put there; remove it, or set FAIRLINE_HOME to a "
        "shorter path"
    )


def drop_socket_folder(folder: Path) -> None:
    """Remove the folder if it is a private one in /tmp and empty."""
    if folder.parent == SPARE_SOCKETS:
        with suppress(OSError):
            folder.rmdir()
