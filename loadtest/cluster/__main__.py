"""``python -m loadtest.cluster up | down | status | wait | run | stop | start | cut | …``."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from pathlib import Path

from rich.table import Table

from app.stack.environment import drop_generated
from app.stack.options import read_options
from app.stack.rabbitmq import find_server
from app.stack.screen import Screen
from app.stack.spec import PROJECT_ROOT, StackError
from loadtest.cluster.cluster import Cluster, new_cluster
from loadtest.cluster.layout import NUMBERS, Layout
from loadtest.cluster.network import FRONT
from loadtest.cluster.requirements import missing, patroni
from loadtest.cluster.tools import variables
from loadtest.fleet import NotReady, until

#: A worker of ``medium`` may run a job for five minutes.
STOP_SECONDS = 400.0
WAIT_SECONDS = 300.0


def folder() -> Path:
    return (PROJECT_ROOT / (os.environ.get("CLUSTER_HOME") or ".cluster")).absolute()


def up(screen: Screen) -> None:
    """Start the cluster; it goes on when this command has ended."""
    rabbitmq = find_server()
    if rabbitmq is None:
        raise StackError("RABBITMQ must name the folder of a RabbitMQ 4")
    drop_generated(os.environ)
    settings = {k: v for k, v in os.environ.items() if k.startswith("FAIRLINE_")}
    port = read_options().port
    cluster = new_cluster(folder(), port, patroni(screen), rabbitmq.parent, settings)
    with (folder() / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(f"a cluster is being started in {folder()}") from None
        cluster.start(screen)
    screen.line()
    screen.line("[bold green]The cluster is ready.[/]")
    screen.line(f"  Console http://localhost:{port}/ (sign in with the key)")
    screen.line(f"  Key     {cluster.layout.operator_key}")
    screen.line(f"  Logs    {folder()}/machine-*/logs")
    screen.line("Try it:")
    body = '{"candidate":"alice","payload":"5 years backend, Go and Python"}'
    url = f"localhost:{port}/applications"
    screen.plain(f"  curl -s {url} -d '{body}' -H 'content-type: application/json'")
    screen.line("`make cluster-status` shows it, `make cluster-down` stops it.")


def down(screen: Screen) -> None:
    try:
        cluster = Cluster(Layout.load(folder()))
    except StackError:
        screen.line("No cluster is running.")
        return
    ran = cluster.is_running()
    if ran:
        screen.line("Stopping; what does not stop within a minute is killed…")
    left = cluster.stop()
    screen.line("Stopped." if ran or left else "No cluster is running.")


def status(cluster: Cluster, screen: Screen) -> None:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("machine", "process", "state", "role or health", "up", "restarts"):
        grid.add_column(column, justify="right" if column in ("up", "restarts") else "left")
    before = ""
    for name, *row in cluster.health.rows(cluster.front):
        grid.add_row(name if name != before else "", *row)
        before = name
    screen.console.print(grid)
    for source, target in sorted(cluster.network.cuts()):
        screen.line(f"[yellow]cut[/] {name_of(source)} → {name_of(target)}")


def name_of(number: int) -> str:
    return "front" if number == FRONT else f"machine {number}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start three machines")
    commands.add_parser("down", help="stop them")
    commands.add_parser("status", help="show what runs, and who leads")
    commands.add_parser("wait", help="wait until nothing is missing")
    commands.add_parser("check", help="say what this machine lacks")
    run = commands.add_parser("run", help="run a command on a machine")
    run.add_argument("machine", type=int, choices=NUMBERS)
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="command")
    for name, help_ in (("stop", "switch a machine off, or stop one of its processes"),
                        ("start", "start it again")):  # fmt: skip
        switch = commands.add_parser(name, help=help_)
        switch.add_argument("machine", type=int, choices=NUMBERS)
        switch.add_argument("process", nargs="?", help="patroni, rabbitmq, api, worker-medium, …")
    cut = commands.add_parser("cut", help="cut a machine off the network, or off another machine")
    cut.add_argument("machine", type=int, choices=NUMBERS)
    cut.add_argument("other", type=int, choices=NUMBERS, nargs="?")
    cut.add_argument("--one-way", action="store_true", help="only what the first one sends")
    commands.add_parser("heal", help="undo every cut")
    given = parser.parse_args(arguments)
    screen = Screen()
    try:
        if lacking := missing():
            raise StackError(lacking)
        if given.command == "up":
            up(screen)
        elif given.command == "down":
            down(screen)
        elif given.command != "check":
            return act(given, Cluster(Layout.load(folder())), screen)
    except (StackError, NotReady) as error:
        screen.plain(f"fairline: {error}")
        return 1
    except KeyboardInterrupt:
        screen.plain("fairline: interrupted")
        return 1
    return 0


def act(given: argparse.Namespace, cluster: Cluster, screen: Screen) -> int:
    """The commands that need a running cluster; the exit status."""
    if not cluster.is_running():
        raise StackError("no cluster is running; `make cluster` starts one")
    match given.command:
        case "status":
            status(cluster, screen)
        case "wait":
            took = cluster.wait(cluster.has_everything, WAIT_SECONDS, "everything")
            screen.line(f"Everything is there, after {took:.0f} s.")
        case "run":
            tools = variables(cluster.layout, given.machine)
            words = given.words or [os.environ.get("SHELL", "/bin/sh")]
            return cluster.machines[given.machine].run(*words, variables=tools)
        case "stop":
            stop(cluster, given.machine, given.process)
        case "start" if given.process is None:
            cluster.start_machine(given.machine)
        case "start":
            cluster.machines[given.machine].ask(command="scale", name=given.process, count=1)
        case "heal":
            cluster.heal()
        case _ if given.other is None:
            cluster.isolate(given.machine)
        case _:
            cluster.cut(given.machine, given.other, given.one_way)
    return 0


def stop(cluster: Cluster, number: int, process: str | None) -> None:
    """Switch a machine off at once, or let one of its processes end what it does."""
    if process is None:
        cluster.stop_machine(number)
        return
    machine = cluster.machines[number]
    machine.ask(command="scale", name=process, count=0)
    names = {process, f"{process}-1"}

    def has_ended() -> bool:
        return not names & {row["name"] for row in machine.ask(command="status")["processes"]}

    until(has_ended, STOP_SECONDS, f"{process} to stop")


if __name__ == "__main__":
    sys.exit(main())
