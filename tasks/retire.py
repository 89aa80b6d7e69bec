"""``python -m tasks.retire NODE``: tell a worker to end what it runs before it stops.

For a preStop hook, which runs in the worker's container before SIGTERM. The worker is found by the
node name of its command line; the children that it forked have the same one and are left alone.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import psutil

from models.pools import RETIRE


def is_worker(process: psutil.Process, node: str) -> bool:
    """Whether it was started as ``celery … worker … -n NODE``."""
    try:
        argv = process.cmdline()
    except psutil.Error:  # it has ended meanwhile, or is somebody else's
        return False
    return "worker" in argv and ("-n", node) in pairwise(argv)


def find_workers(node: str) -> list[psutil.Process]:
    """The workers of that name, without what they forked."""
    named = {one.pid: one for one in psutil.process_iter() if is_worker(one, node)}
    return [one for one in named.values() if one.ppid() not in named]


def main() -> None:
    _, node = sys.argv
    workers = find_workers(node)
    for worker in workers:
        worker.send_signal(RETIRE)
    sys.exit(0 if workers else f"there is no worker {node}")


if __name__ == "__main__":
    main()
