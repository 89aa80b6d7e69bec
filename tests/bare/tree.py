"""A bare Debian tree, and commands inside it.

Processes inside share the host's network and devices, and have mount, process and IPC namespaces
of their own. These belong to one process, the holder. When it ends, however it ends, the kernel
kills what still runs inside and undoes the mounts.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SUITE = "bookworm"
#: The machine's certificates: behind a proxy that signs its own, pip needs them.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: How to reach the package index, if this machine reaches it in a special way.
PASSED_ON = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_PROXY"),
    *("PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
)

#: How apt downloads here: proxies, and whether old lists are good enough.
APT_OPTIONS = re.compile(r"^Acquire::(?:https?::|Retries|Check-Valid-Until).*", re.M)

#: The holder's work: mount, say so, sleep. Ignoring CHLD makes the kernel reap orphans, which
#: come to the first process of a namespace.
HOLD = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
"""
#: … and makes the tree the root: a container engine cannot work in a mere chroot.
PIVOT = """
mount --rbind /sys "$1/sys"
mount -t tmpfs tmpfs "$1/run"
mount --rbind "$1" "$1"
cd "$1"
pivot_root . mnt
umount --lazy /mnt
"""
STAY = """
trap '' CHLD
echo held
exec sleep infinity
"""


class CannotEnter(Exception):
    """This machine does not let us mount in a tree."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who uses the machine in the tree."""

    name: str
    home: str

    @property
    def clone(self) -> str:
        """Where this user keeps Fairline."""
        return f"{self.home}/fairline"


ROOT = User("root", "/root")
ORDINARY = User("ada", "/home/ada")


def bootstrap(target: Path, suite: str, packages: Sequence[str], output: IO[bytes]) -> None:
    """A Debian of these packages and what they cannot do without: a folder, or a .tar file."""
    settings = subprocess.check_output(("apt-config", "dump", "Acquire"), text=True)
    subprocess.run(
        (
            # In namespaces of its own: what it mounts and starts ends with it.
            *("setpriv", "--pdeathsig=KILL"),
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
            *("mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"),
            *(f"--aptopt={option}" for option in APT_OPTIONS.findall(settings)),
            *(suite, str(target)),
        ),
        check=True,
        stdout=output,
        stderr=output,
    )


def make_tree(folder: Path, packages: Sequence[str], log: Path, suite: str = SUITE) -> None:
    """A tree to run commands in, with this machine's way into the network."""
    with log.open("wb") as output:
        bootstrap(folder, suite, packages, output)
        for name in ("etc/resolv.conf", "etc/hosts", str(CERTIFICATES)[1:]):
            if (given := Path("/", name)).exists():
                shutil.copyfile(given, folder / name)
        subprocess.run(
            ("chroot", str(folder), "useradd", "--create-home", ORDINARY.name),
            check=True,
            stdout=output,
            stderr=output,
        )


class Tree:
    """A tree that commands can be run in."""

    def __init__(self, folder: Path, holder: int) -> None:
        self.folder = folder
        self._holder = holder

    def command(self, user: User, script: str) -> Sequence[str]:
        """The words that run a bash script as ``user``, in the user's clone."""
        return (
            *("nsenter", f"--target={self._holder}", "--mount", "--pid", "--ipc"),
            *("chroot", f"--userspec={user.name}", "--groups=", str(self.folder)),
            *("bash", "-c", f"cd {user.clone}\n{script}"),
        )

    def environment(self, user: User, variables: Mapping[str, str]) -> dict[str, str]:
        """All that a command inside sees. Not on its command line: it may hold a password."""
        return {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "HOME": user.home,
            "USER": user.name,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PIP_CERT": str(CERTIFICATES),
            **variables,
        }

    def read(self, user: User, script: str) -> str:
        """What a script prints that must succeed."""
        words, seen = self.command(user, script), self.environment(user, {})
        return subprocess.run(words, env=seen, check=True, capture_output=True, text=True).stdout


def clone(repository: Path, tree: Path, user: User) -> None:
    """The committed state of ``repository``, as the user would have cloned it."""
    place = tree / user.clone[1:]
    subprocess.run(("git", "clone", "-q", "--no-hardlinks", repository, place), check=True)
    owner = f"{user.name}:{user.name}"
    subprocess.run(("chroot", str(tree), "chown", "-R", owner, user.clone), check=True)


@contextmanager
def entered(folder: Path, as_root: bool = False) -> Iterator[Tree]:
    """The tree with its mounts, until the block ends or this process dies."""
    script = f"{HOLD}{PIVOT if as_root else ''}{STAY}"
    holder = subprocess.Popen(
        (
            *("setpriv", "--pdeathsig=KILL"),
            *("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"),
            *("sh", "-c", script, "hold", str(folder)),
        ),
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, and the holder ends after us
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"held\n":
            raise CannotEnter("the tree could not be mounted: the right to mount is missing")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        first = int(children.read_text())
        with open_process(first) as end:
            try:
                yield Tree(Path("/") if as_root else folder, first)
            finally:
                holder.kill()  # --kill-child: the first process inside ends, and all others with it
                select.select([end], [], [], 30)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


@contextmanager
def open_process(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """The tree's files, and nothing that may still be mounted there."""
    subprocess.run(("rm", "-rf", "--one-file-system", str(folder)), check=True)
