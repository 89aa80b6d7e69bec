"""Running PostgreSQL, which refuses to be root, when the stack is started by root.

The server gets a user number without a name; ``initdb`` insists on a named user and runs as
``nobody`` in the same private group. Where that group cannot enter a folder above the files
(``/root`` has mode 700), an access control entry lets only this group traverse it, not list it.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from app.stack.spec import StackError, SystemUser

#: In the range that Debian reserves and never hands out.
PRIVATE_ID = 65432
SERVER_ACCOUNT = SystemUser(PRIVATE_ID, PRIVATE_ID)

ACL_XATTR = "system.posix_acl_access"
ACL_VERSION = struct.Struct("<I")
ACL_ENTRY = struct.Struct("<HHI")
USER_OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID = 0xFFFFFFFF
PASS = 0o1

AclEntry = tuple[int, int, int]


def server_account() -> SystemUser | None:
    """The user PostgreSQL runs as; ``None`` means the caller, who is not root."""
    return SERVER_ACCOUNT if os.geteuid() == 0 else None


def initdb_account() -> SystemUser | None:
    """The user ``initdb`` runs as."""
    return SystemUser(pwd.getpwnam("nobody").pw_uid, PRIVATE_ID) if os.geteuid() == 0 else None


def give(path: Path, account: SystemUser | None) -> None:
    """Make the account the owner of everything below `path`, without following links."""
    if account is None:
        return
    os.chown(path, account.uid, account.gid)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(Path(folder, name), account.uid, account.gid, follow_symlinks=False)


def let_pass(path: Path, account: SystemUser | None) -> list[Path]:
    """Let the account reach `path`; returns the folders above it that had to be opened."""
    if account is None:
        return []
    opened = []
    for folder in path.resolve().parents:
        if not _may_pass(folder, account):
            _allow_group(folder, account.gid)
            opened.append(folder)
    return opened


def let_read(folder: Path, account: SystemUser | None) -> None:
    """Let everybody read what is installed there, which a strict umask may have prevented."""
    if account is None:
        return
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        # Whatever the owner may do with a program or a folder, except writing.
        wanted = mode | stat.S_IRGRP | stat.S_IROTH
        if mode & stat.S_IXUSR:
            wanted |= stat.S_IXGRP | stat.S_IXOTH
        if wanted != mode:
            path.chmod(stat.S_IMODE(wanted))


def _may_pass(folder: Path, account: SystemUser) -> bool:
    info = folder.stat()
    entries = {(tag, who): permission for tag, permission, who in _acl(folder)}
    granted = entries.get((GROUP, account.gid), 0) & entries.get((MASK, NO_ID), 0o7)
    if info.st_uid == account.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == account.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool((granted | info.st_mode) & PASS)


def _acl(folder: Path) -> Iterator[AclEntry]:
    try:
        blob = os.getxattr(folder, ACL_XATTR)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return
        raise
    yield from ACL_ENTRY.iter_unpack(blob[ACL_VERSION.size :])


def with_group(mode: int, entries: list[AclEntry], gid: int) -> list[AclEntry]:
    """The access list that additionally lets the group pass; `mode` counts if there is none."""
    basis = entries or [
        (USER_OWNER, mode >> 6 & 0o7, NO_ID),
        (GROUP_OWNER, mode >> 3 & 0o7, NO_ID),
        (OTHERS, mode & 0o7, NO_ID),
    ]
    masks = [permission for tag, permission, _ in basis if tag == MASK]
    # Without a mask the owning group's rights were its own; as the mask they stay what they were.
    mask = masks[0] if masks else next(p for tag, p, _ in basis if tag == GROUP_OWNER)
    kept = [entry for entry in basis if entry[0] != MASK and (entry[0], entry[2]) != (GROUP, gid)]
    complete = [*kept, (GROUP, PASS, gid), (MASK, mask | PASS, NO_ID)]
    return sorted(complete, key=lambda entry: (entry[0], entry[2]))


def _allow_group(folder: Path, gid: int) -> None:
    entries = with_group(folder.stat().st_mode, list(_acl(folder)), gid)
    blob = ACL_VERSION.pack(2) + b"".join(ACL_ENTRY.pack(*entry) for entry in entries)
    try:
        os.setxattr(folder, ACL_XATTR, blob)
    except OSError as error:
        raise StackError(
            f"PostgreSQL cannot run as root, and its unprivileged user cannot enter {folder} "
            f"({error.strerror}). Run the stack as an ordinary user, or move the checkout and "
            "FAIRLINE_HOME to a folder that others may enter, such as /opt or /srv."
        ) from error
