"""Commands of README and docs that no test types as they stand: what runs them, and why there.

A command that is not listed is typed by ``tests/acceptance/test_readme.py``, or, in the guide, by
``test_writing_jobs.py``.
"""

from __future__ import annotations

from tests.support.documents import Example

_BARE = ("make bare-test", "starts the stack that the other commands need")
_OWN_STACK = (
    "tests/acceptance/conftest.py",
    "another stack: the shared one has these settings",
)
_PROCESS = ("docker-compose.yml", "a process that stays; `make compose-test` runs it")
_AUTOSCALE = ("tests/acceptance/test_autoscale.py", "a stack with other settings")
_SLICES = ("tests/unit/stack/test_slices.py", "a stack with other settings, whose workers are read")
_CLUSTER = ("make cluster-test", "needs root and a cluster")
_UPGRADE = ("make upgrade-test", "needs an older version")
_CELLS = ("tests/integration/cells/test_cell_commands.py", "several databases")
_REMOVAL = ("tests/integration/cells/test_cell_removal.py", "several databases")
_MOVES = ("tests/integration/cells/test_move_commands.py", "several databases")

#: By page and command, without its comment: a file or a target of the Makefile, and why.
ELSEWHERE: dict[str, dict[str, tuple[str, str]]] = {
    "README.md": {
        "make up": _BARE,
        "make test": (".ci/run", "this is part of it"),
        "apt-get install python3 python3-venv git make curl ca-certificates": _BARE,
        "FAIRLINE_JOB_MODULES=myjobs make up": _OWN_STACK,
        "flask --app app migrate --tenant demo": _PROCESS,
        "flask --app app keys issue --tenant demo": ("make compose-test", "needs its database"),
        "gunicorn -c gunicorn.conf.py 'app:create_app()'": _PROCESS,
        "flask --app app scheduler": _PROCESS,
        "celery -A app worker -P gevent -c 10 -Q medium": _PROCESS,
        "celery -A app flower": _PROCESS,
        "flask --app app migrate --expand": _UPGRADE,
        "flask --app app migrate": _UPGRADE,
        "QUICK=1 make lab": ("tests/lab/test_experiments.py", "takes a quarter of an hour"),
    },
    "docs/cells.md": {
        (
            'flask --app app cells add cell-1 --database-url "$FAIRLINE_DATABASE_URL"'
            ' --broker-url "$FAIRLINE_BROKER_URL" --region eu'
        ): _CELLS,
        (
            'flask --app app cells add cell-2 --database-url "$SECOND_DATABASE_URL"'
            ' --broker-url "$SECOND_BROKER_URL" --region eu'
        ): _CELLS,
        "flask --app app cells list": _CELLS,
        "flask --app app tenants create acme --cell cell-2": _CELLS,
        "flask --app app tenants where": _CELLS,
        "flask --app app tenants where acme": _CELLS,
        "flask --app app cells drain cell-1": _CELLS,
        "flask --app app cells drain cell-1 --move": _CELLS,
        "flask --app app cells drain cell-1 --undo": _CELLS,
        "flask --app app cells remove cell-1": _REMOVAL,
        "flask --app app tenants move acme --to cell-2 --wait": _MOVES,
        "flask --app app tenants spread acme --over cell-1=1,cell-2=3": _MOVES,
        "flask --app app tenants moves": _MOVES,
        "flask --app app tenants move acme --cancel": _MOVES,
    },
    "docs/cluster.md": {
        "make cluster": _CLUSTER,
        "make cluster-status": _CLUSTER,
        "python -m loadtest.cluster run 2 patronictl list": _CLUSTER,
        "python -m loadtest.cluster stop 2 rabbitmq": _CLUSTER,
        "python -m loadtest.cluster start 2 rabbitmq": _CLUSTER,
        "python -m loadtest.cluster wait": _CLUSTER,
        "python -m loadtest.cluster cut 2": _CLUSTER,
        "python -m loadtest.cluster cut 1 3": _CLUSTER,
        "python -m loadtest.cluster heal": _CLUSTER,
        "make cluster-down": _CLUSTER,
    },
    "docs/scaling.md": {
        r"""rabbitmqctl set_policy fairline '^(long|medium|short)(\..+)?$' '{"delivery-limit":20,"""
        r""""max-length":100000,"overflow":"reject-publish","queue-leader-locator":"balanced"}'"""
        " --apply-to queues": (
            "tests/unit/broker/test_queue_limits.py",
            "an operator's; it is compared with what the stack sets",
        ),
        "make up AUTOSCALE=1": _AUTOSCALE,
        "flask --app app tenants create acme --tier enterprise --reserve medium=2": _AUTOSCALE,
        "celery -A app worker -P gevent -c 2 -Q medium.reserved.acme": _AUTOSCALE,
        "celery -A app worker -P gevent -c 1 -Q medium.free": _SLICES,
        'make up SLICES="medium.reserved.acme=2 medium.free=1"': _SLICES,
        "flask --app app tenants create acme --tier enterprise": _SLICES,
    },
    "docs/telemetry.md": {
        "COMPOSE_PROFILES=observability docker compose up": (
            "tests/unit/stack/test_compose.py",
            "these images need a registry: the file is checked, the containers are not started",
        ),
    },
    "docs/writing-jobs.md": {
        "FAIRLINE_JOB_MODULES=myjobs make up": _OWN_STACK,
        (
            'FAIRLINE_POOLS=\'{"gpu": {"lease_seconds": 90, "slots": 1, "tries": 2,'
            ' "concurrency": "prefork"}}\' make up'
        ): _OWN_STACK,
    },
}


def is_run_elsewhere(page: str, example: Example) -> bool:
    """Whether the command is listed here."""
    return example.bare in ELSEWHERE.get(page, {})
