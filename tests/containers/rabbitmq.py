"""``python -m tests.containers.rabbitmq``: a RabbitMQ 4 of Debian packages, for ``RABBITMQ=…``.

Prints the folder of its commands. They run in a Debian tree, as the libraries of this machine are
older, but are processes of this machine otherwise: same network, same process ids. Kept in
``~/.cache/fairline-rabbitmq`` (``XDG_CACHE_HOME``); removing that folder starts from nothing.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.bare.steps import check_machine, end_of
from tests.bare.tree import make_tree, remove_tree
from tests.containers.engine import DEBIAN_IMAGES

PACKAGES = ("rabbitmq-server",)
#: As the stack calls them, and where they are in the tree.
COMMANDS = {
    "rabbitmq-server": "/usr/lib/rabbitmq/bin/rabbitmq-server",
    **{
        name: f"/usr/lib/rabbitmq/bin/{name}"
        for name in ("rabbitmqctl", "rabbitmq-queues", "rabbitmq-upgrade", "rabbitmq-diagnostics")
    },
    "epmd": "/usr/bin/epmd",
}
#: Becomes the command, in a mount namespace of its own that has the caller's home folder.
ENTER = """#!/bin/sh
exec unshare --mount sh -c '
set -e
for name in proc dev; do mount --rbind "/$name" "$1/$name"; done
mount -t tmpfs tmpfs "$1/tmp"
mkdir -p "$1$HOME"
mount --rbind "$HOME" "$1$HOME"
exec chroot "$@"
' enter {tree} {command} "$@"
"""


def make_rabbitmq(cache: Path) -> Path:
    """The folder of the commands; the tree is made unless it is there."""
    tree, made, commands = cache / "tree", cache / "made", cache / "bin"
    suite, _ = DEBIAN_IMAGES["services"]
    wanted = f"{suite} {PACKAGES}"
    if not made.exists() or made.read_text() != wanted:
        made.unlink(missing_ok=True)
        remove_tree(tree)
        print(f"making a Debian {suite} with RabbitMQ in {tree} …", file=sys.stderr)
        make_tree(tree, PACKAGES, cache / "mmdebstrap.log", suite)
        made.write_text(wanted)
    commands.mkdir(exist_ok=True)
    for name, command in COMMANDS.items():
        (commands / name).write_text(ENTER.format(tree=tree, command=command))
        (commands / name).chmod(0o755)
    return commands


def main() -> int:
    """The command line."""
    if missing := check_machine("RabbitMQ 4"):
        print(f"fairline: {missing}", file=sys.stderr)
        return 1
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairline-rabbitmq")
    cache.mkdir(parents=True, exist_ok=True, mode=0o755)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            print(make_rabbitmq(cache))
        except subprocess.CalledProcessError:
            print(f"fairline: {end_of(cache / 'mmdebstrap.log')}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
