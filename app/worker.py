"""``python -m app.worker …``: ``celery -A app worker …`` without what Celery's other commands need.

``celery`` itself imports the commands of every installed package, Flower's with its web server, to
find the one that was asked for: 13 MB in each worker.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import celery

from app.entry_points import read_once

COMMAND = ("celery", "-A", "app", "worker")


def main() -> Any:
    """Run the worker that the command line asks for."""
    gc.disable()  # while modules are imported there is nothing to collect
    arguments = sys.argv[1:]
    # Celery, which shows it in its reports too, reads ``-P gevent`` from here.
    sys.argv[:] = [*COMMAND, *arguments]
    read_once()
    celery.maybe_patch_concurrency(patches={"gevent": patch_gevent})

    from celery.bin.base import CLIContext
    from celery.bin.worker import worker

    from app.celery import celery as application

    gc.freeze()
    gc.enable()
    context = CLIContext(app=application, no_color=False, workdir=None)
    return worker.main(args=arguments, prog_name=" ".join(COMMAND), obj=context)


def patch_gevent() -> None:
    """Make the process cooperative; one that was forked from a fork server is so in part.

    What is patched twice complains at each later fork.
    """
    from gevent import monkey

    if monkey.is_module_patched("threading"):
        monkey.patch_os()
        monkey.patch_queue()
        monkey.patch_signal()
    else:
        monkey.patch_all()


if __name__ == "__main__":
    sys.exit(main())
