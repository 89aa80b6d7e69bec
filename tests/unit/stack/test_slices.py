"""Names of the queues that have workers of their own, and what the stack makes of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.stack.environment import environment
from app.stack.home import Home
from app.stack.options import read_options
from app.stack.programs import table
from app.stack.spec import StackError
from models.pools import is_job_queue, parse_queue, reserved, slice_queue

POOL_NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,30}", fullmatch=True)
TENANTS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)


@given(POOL_NAMES, st.sampled_from(["", "free"]) | TENANTS.map(reserved))
def test_queue_of_a_slice_tells_pool_and_slice(pool: str, slice_: str) -> None:
    assert parse_queue(slice_queue(pool, slice_)) == (pool, slice_)


@pytest.mark.parametrize("name", ["medium", "medium.free", "long.reserved.a-b_c"])
def test_queues_of_pools_and_of_their_slices_carry_jobs(name: str) -> None:
    assert is_job_queue(name)


@pytest.mark.parametrize(
    "name",
    [
        *("giant", "giant.free", "medium.", "medium.cheap", "medium.reserved.", "medium.free.x"),
        *("medium.reserved.A", "medium.reserved.a.b", "celeryev.1", "medium.free\n", ""),
    ],
)
def test_other_queues_do_not(name: str) -> None:
    assert not is_job_queue(name)


def test_celery_declares_a_slice_like_its_pool_and_refuses_other_names() -> None:
    from app.celery import celery

    queues = celery.amqp.Queues(celery.conf.task_queues)
    queues.select("medium.reserved.acme")
    (connection,) = queues.consume_from.values()
    pool = queues["medium"]
    assert connection.name == connection.routing_key == "medium.reserved.acme"
    assert connection.durable
    assert connection.exchange == pool.exchange
    assert connection.queue_arguments == pool.queue_arguments
    with pytest.raises(KeyError):
        queues.select("medium.reserved.Acme")


def test_stack_starts_a_worker_for_each_slice_with_its_slots(tmp_path: Path) -> None:
    given_ = {"SLICES": "long.reserved.acme=3 medium.free=1"}
    options = dataclasses.replace(read_options(given_), home=tmp_path)
    programs = {
        program.name: (program, count) for program, count in table(options, Home(tmp_path)).early
    }
    program, count = programs["worker-long.reserved.acme"]
    argv = " ".join(program.make(1).argv)
    assert count == 1
    assert " -P prefork -c 3 -Q long.reserved.acme " in argv
    assert " -P gevent -c 1 -Q medium.free " in " ".join(
        programs["worker-medium.free"][0].make(1).argv
    )


@pytest.mark.parametrize("text", ["medium=1", "medium.free", "medium.free=0", "x"])
def test_nonsense_in_slices_is_refused(text: str) -> None:
    with pytest.raises(StackError, match="SLICES"):
        read_options({"SLICES": text})


def test_slice_of_no_pool_is_told_so() -> None:
    with pytest.raises(StackError, match="giant is not a pool; known: long, medium, short"):
        read_options({"SLICES": "giant.free=1"})


def test_autoscaling_starts_from_the_counts_of_the_stack(tmp_path: Path) -> None:
    options = read_options(
        {"AUTOSCALE": "1", "WORKERS_MEDIUM": "3", "FAIRLINE_SCALE_MIN": '{"long": 0}'}
    )
    told = environment(options, Home(tmp_path), "db", "broker")
    assert told["FAIRLINE_SCALE_MIN"] == '{"short": 1, "medium": 3, "long": 0}'
    assert "autoscale" in {program.name for program, _ in table(options, Home(tmp_path)).late}
    with pytest.raises(StackError, match="FAIRLINE_SCALE_MIN"):
        read_options({"FAIRLINE_SCALE_MIN": '{"long": -1}'})
