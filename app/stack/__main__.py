"""``python -m app.stack up | down | status | scale <name> <count> | env``."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from app.config import Settings
from app.stack.control import Answer, ControlServer, Request, ask, remove_socket, socket_path
from app.stack.environment import (
    drop_generated,
    environment,
    queue_type,
    shell_settings,
    stack_defaults,
)
from app.stack.follower import Follower
from app.stack.forking import ForkServers
from app.stack.home import Home, drop_socket_folder
from app.stack.identity import ProcessIdentity, identity_of, is_alive, signal_process, wait_for_exit
from app.stack.leftovers import clear_leftovers
from app.stack.options import StackOptions, read_options
from app.stack.postgres import EmbeddedPostgres
from app.stack.programs import ProgramTable, table
from app.stack.rabbitmq import find_server
from app.stack.screen import Screen
from app.stack.sequence import base_url, bring_up, choose_services, clear_ground
from app.stack.spawn import adopt_orphans
from app.stack.spec import PROJECT_ROOT, StackError
from app.stack.supervisor import STEADY_SECONDS, StopRequested, Supervisor
from models.settings import PREFIX, read_settings

#: The longest that an orderly stop may take, besides running jobs, before ``down`` kills the
#: supervisor.
DOWN_SECONDS = 100.0
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def up(
    options: StackOptions,
    screen: Screen,
    make_table: Callable[[StackOptions, Home], ProgramTable] = table,
) -> int:
    """Run the stack in the foreground until asked to stop."""
    home = Home(options.home)
    home.prepare()
    with home.lock():
        clear_ground(options, home, screen)
        services = choose_services(options, home)
        variables = {
            **environment(options, home, services.database_url, services.broker_url),
            **services.for_flower,
        }
        adopt_orphans()
        forks = ForkServers(variables, home.log("fork-servers"), screen.event)
        supervisor = Supervisor(home, variables, screen.event, owns_children=True, fork=forks.fork)
        if myself := identity_of(os.getpid()):
            home.supervisor_file.write_text(json.dumps(asdict(myself)))
        follower = Follower(supervisor, options, home)
        control = ControlServer(
            home, lambda request: answer(supervisor, follower, request, variables)
        )
        supervisor.pause = control.pause

        # While a fork server is waited for, requests are served, and a stop ends the wait.
        def goes_on() -> bool:
            control.pause(0.0)
            return not supervisor.stop_requests

        forks.goes_on = goes_on
        control.handle_signals(supervisor.request_stop)
        try:
            bring_up(supervisor, services, make_table(options, home), options, screen)
            forks.close()
            welcome(options, services.broker_url, home, screen)
            supervisor.wait(lambda: False, every=STEADY_SECONDS)
        except StopRequested:
            return 0
        finally:
            screen.offer("Stopping (press Ctrl-C again to kill)…")
            supervisor.stop_all()
            control.close()
            remove_runtime_files(home)
            screen.offer("Stopped.")
    return 0


def answer(
    supervisor: Supervisor, follower: Follower, request: Request, variables: Mapping[str, str]
) -> Answer:
    """Serve one control request."""
    if request["command"] == "env":
        return {"env": shell_settings(variables, os.environ)}
    if request["command"] == "scale":
        supervisor.scale(request["name"], int(request["count"]))
    elif request["command"] == "follow":
        follower.follow(request["workers"], request["slices"], request["reasons"])
    now = time.monotonic()
    rows = [
        {
            "name": slot.spec.name,
            "program": slot.program.name,
            "state": slot.state,
            "pid": slot.child.pid if slot.child else None,
            "up_seconds": now - slot.child.started_at if slot.child else 0.0,
            "restarts": slot.restarts,
            "stop_seconds": slot.stop_seconds(now),
        }
        for slot in supervisor.slots
    ]
    return {"processes": rows}


def check_settings(options: StackOptions) -> None:
    """Exit here, before anything runs, on settings that the processes would reject."""
    changes: dict[str, Any] = {"queue_type": queue_type(options)}
    if options.autoscale:
        changes["scale_min"] = options.least
    defaults = {
        name.removeprefix(PREFIX).lower(): value for name, value in stack_defaults(options).items()
    }
    given = read_settings(Settings, **changes).model_fields_set
    changes |= {name: value for name, value in defaults.items() if name not in given}
    read_settings(Settings, **changes).check_addresses([options.host])


def welcome(options: StackOptions, broker_url: str, home: Home, screen: Screen) -> None:
    """Where everything is, and something to try."""
    base = base_url(options)
    body = '{"candidate":"alice","payload":"5 years backend, Go and Python"}'
    screen.line()
    screen.line("[bold green]Fairline is ready.[/]")
    screen.line(f"  Console {base}/")
    screen.line(f"  API     {base}/docs")
    screen.line(f"  Ready?  {base}/readyz")
    screen.line(f"  Flower  http://127.0.0.1:{options.flower_port}")
    screen.line(f"  Broker  {broker_url.partition('://')[0]}")
    screen.line(f"  Logs    {home.logs}")
    if not options.database_url:
        screen.line(f"  Key     {home.operator_key} (operator API, as a Bearer token)")
    screen.line()
    screen.line("Try it:")
    url = f"localhost:{options.port}/applications"
    screen.plain(f"  curl -s {url} -d '{body}' -H 'content-type: application/json'")
    if broker_url.startswith("filesystem:") and find_server() is None:
        screen.line("RabbitMQ is not installed, so messages go through a folder. To use RabbitMQ:")
        screen.line(
            "`apt-get install rabbitmq-server`; as root, `make up BROKER=rabbitmq` installs it."
        )
    named = "" if options.home == PROJECT_ROOT / ".run" else f"FAIRLINE_HOME={options.home} "
    screen.line(f"Ctrl-C or `{named}make down` stops everything.")


def down(options: StackOptions, screen: Screen) -> int:
    """Stop the stack of this home and end every process it left behind."""
    from app.stack.stopping import StopWatch  # asks the database, which the supervisor does not

    home = Home(options.home)
    if not home.path.exists():
        screen.line("Nothing is running.")
        return 0
    supervisor = running_supervisor(home)
    if supervisor:
        watch = StopWatch(home, screen)
        drain, most = options.drain_seconds, options.drain_seconds + DOWN_SECONDS
        screen.line(
            f"Stopping, in at most {most:g} s. Running jobs get up to {drain:g} s to finish;"
            " what takes longer runs again at the next start."
        )
        signal_process(supervisor, signal.SIGTERM)
        if not watch.wait(supervisor, most):
            screen.line("Killing the stack: it did not stop in time.")
            signal_process(supervisor, signal.SIGKILL)
            wait_for_exit([supervisor], 5.0)
    count = clear_leftovers(home)
    remove_runtime_files(home)
    if count:
        screen.line(f"Ended {count} leftover processes.")
    screen.line("Stopped." if supervisor or count else "Nothing is running.")
    return 0


def remove_runtime_files(home: Home) -> None:
    """Remove what only a running stack needs."""
    home.supervisor_file.unlink(missing_ok=True)
    remove_socket(socket_path(home))
    drop_socket_folder(EmbeddedPostgres(home.path).sockets)


def running_supervisor(home: Home) -> ProcessIdentity | None:
    home.stack_id()  # in a copy of another home it forgets the supervisor of that one
    try:
        identity = ProcessIdentity(**json.loads(home.supervisor_file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return identity if is_alive(identity) else None


def show(home: Home, request: dict[str, Any], screen: Screen) -> int:
    """Send a request to the supervisor and show its answer."""
    reply = ask(home, request)
    if "error" in reply:
        screen.plain(reply["error"])
        return 1
    if "env" in reply:
        for name, value in reply["env"].items():
            # Names are from `.env`, which may hold more than a shell takes for a name.
            if VARIABLE.fullmatch(name):
                print(f"export {name}={shlex.quote(value)}")  # for a shell, so never wrapped
        return 0
    screen.processes(reply["processes"])
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="run the stack in the foreground")
    commands.add_parser("down", help="stop the stack")
    commands.add_parser("status", help="show the processes")
    commands.add_parser("env", help='its settings for a shell: eval "$(python -m app.stack env)"')
    scale = commands.add_parser("scale", help="change the number of processes of a program")
    scale.add_argument("name")
    scale.add_argument("count", type=int)
    request = vars(parser.parse_args(arguments))
    screen = Screen()
    try:
        if request["command"] == "up":
            drop_generated(os.environ)
            options = read_options()
            check_settings(options)
            return up(options, screen)
        options = read_options()
        if request["command"] == "down":
            return down(options, screen)
        return show(Home(options.home), request, screen)
    except StackError as error:
        screen.plain(f"fairline: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
