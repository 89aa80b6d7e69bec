"""A machine from outside: its namespaces, and the processes in them by name.

The namespaces belong to one process, the holder. When that is killed the kernel kills everything in
the machine at once, as a loss of power would, and removes its mounts and its network.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from app.stack.control import Answer, ask
from app.stack.home import Home
from app.stack.identity import (
    ProcessIdentity,
    all_pids,
    has_environment,
    identity_of,
    is_alive,
    signal_process,
    wait_for_exit,
)
from app.stack.leftovers import noted
from app.stack.privileges import PRIVATE_ID
from app.stack.spec import PROJECT_ROOT, StackError
from loadtest.cluster.front import OUTSIDE
from loadtest.cluster.layout import NUMBERS, Layout
from loadtest.cluster.network import FRONT, address, entered
from loadtest.fleet import clean_environment, until

#: In the environment of every process of a cluster: its folder.
CLUSTER_VARIABLE = "FAIRLINE_CLUSTER"
NAMESPACES = (
    *("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-ec"),
)
#: Waits for the network, then becomes the supervisor of the machine. PostgreSQL's programs want
#: their user to have a name.
BOOT = """
hostname "$1"
mount --bind "$2/passwd" /etc/passwd
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
shift 2
exec unshare --net sh -ec 'read -r attached; exec "$@"' boot "$@"
"""
#: HAProxy finds networks by name.
SHOW_OUTSIDE = f"""
mount -t tmpfs tmpfs /run
mkdir /run/netns
touch /run/netns/{OUTSIDE}
mount --bind /proc/self/ns/net /run/netns/{OUTSIDE}
"""

#: Holders that this process has started: its children, which may outlive it.
STARTED: list[subprocess.Popen[bytes]] = []


class Machine:
    """One of the machines, or the front; started here or by an earlier command."""

    def __init__(self, layout: Layout, number: int) -> None:
        self.number = number
        self.name = "front" if number == FRONT else f"machine-{number}"
        self.address = address(number)
        self.home = Home(layout.machine(number))
        self._layout = layout
        self._file = self.home.path / "holder.json"

    @property
    def holder(self) -> ProcessIdentity | None:
        """The process that everything here ends with, if it lives."""
        try:
            identity = ProcessIdentity(**json.loads(self._file.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        for started in STARTED:
            started.poll()
        return identity if is_alive(identity) else None

    @property
    def supervisor_pid(self) -> int:
        """The supervisor, whose number inside is 1."""
        holder = self.holder
        with suppress(OSError, IndexError):
            if holder:
                children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
                return int(children.split()[0])
        raise StackError(f"{self.name} is not running")

    def start(self, attach: Callable[[int], None]) -> None:
        """Make the namespaces and let ``attach`` connect them, then start what runs in them."""
        if self.holder:
            raise StackError(f"{self.name} is running already")
        self.home.prepare()
        folder = self.home.path
        users = Path("/etc/passwd").read_text()
        named = f"{users.rstrip()}\npostgres-of-cluster:x:{PRIVATE_ID}:{PRIVATE_ID}::/:/bin/sh\n"
        (folder / "passwd").write_text(named)
        names = "".join(f"{address(n)} machine-{n}\n" for n in NUMBERS)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}{self.address} {self.name}\n")
        script = SHOW_OUTSIDE + BOOT if self.number == FRONT else BOOT
        module = (sys.executable, "-m", "loadtest.cluster.supervisor")
        words = (self.name, str(folder), *module, str(self._layout.folder), str(self.number))
        with self.home.log("supervisor").open("ab") as output:
            started = subprocess.Popen(
                (*NAMESPACES, script, "boot", *words),
                cwd=PROJECT_ROOT,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        STARTED.append(started)
        identity = identity_of(started.pid)
        self._file.write_text(json.dumps(asdict(identity) if identity else None))
        until(self._has_network, 60.0, f"the network of {self.name}")
        attach(self.supervisor_pid)
        assert started.stdin is not None
        with started.stdin as boot:
            boot.write(b"\n")

    def _environment(self) -> Mapping[str, str]:
        return {
            **clean_environment(),
            CLUSTER_VARIABLE: str(self._layout.folder),
            "RABBITMQ": str(self._layout.rabbitmq),
            **self._layout.variables(self.number),
        }

    def _has_network(self) -> bool:
        with suppress(OSError, StackError):
            return os.readlink(f"/proc/{self.supervisor_pid}/ns/net") != os.readlink(
                "/proc/self/ns/net"
            )
        return False

    def stop(self) -> None:
        """Ask everything to stop, in order; does not wait."""
        with suppress(StackError):
            if identity := identity_of(self.supervisor_pid):
                signal_process(identity, signal.SIGTERM)

    def power_off(self) -> None:
        """End everything at once."""
        if holder := self.holder:
            first = [identity for pid in self._pids() if (identity := identity_of(pid))]
            signal_process(holder, signal.SIGKILL)
            wait_for_exit([holder, *first], 10.0)
            self.holder  # noqa: B018 - reaps it, if it is our child

    def processes(self) -> dict[str, int]:
        """The process of each name, by its number outside; ``postgres`` is Patroni's."""
        outside = {inner: pid for pid in self._pids() if (inner := number_inside(pid))}
        named = {one.name: one.pid for one in noted(self.home)}
        with suppress(OSError, ValueError):
            file = self.home.path / "postgres/data/postmaster.pid"
            named["postgres"] = int(file.read_text().split()[0])
        return {name: outside[pid] for name, pid in named.items() if pid in outside}

    def _pids(self) -> list[int]:
        with suppress(psutil.Error, StackError):
            first = psutil.Process(self.supervisor_pid)
            return [first.pid, *(child.pid for child in first.children(recursive=True))]
        return []

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process; the supervisor, or Patroni, replaces one that dies."""
        processes = self.processes()
        if name not in processes:
            known = ", ".join(sorted(processes))
            raise StackError(f"{self.name} has no process {name} now; there are: {known}")
        if identity := identity_of(processes[name]):
            signal_process(identity, number)

    def freeze(self, name: str | None = None) -> None:
        """Stop a process and its children where they are, or everything on the machine."""
        self._signal_all(name, signal.SIGSTOP)

    def thaw(self, name: str | None = None) -> None:
        """Let them go on."""
        self._signal_all(name, signal.SIGCONT)

    def _signal_all(self, name: str | None, number: signal.Signals) -> None:
        pids = self._pids()
        if name is not None:
            if name not in (processes := self.processes()):
                raise StackError(f"{self.name} has no process {name} now")
            one = psutil.Process(processes[name])
            pids = [one.pid, *(child.pid for child in one.children(recursive=True))]
        for pid in pids:
            if identity := identity_of(pid):
                signal_process(identity, number)

    def ask(self, **request: object) -> Answer:
        """A control request to the supervisor: see `loadtest.cluster.supervisor`."""
        reply = ask(self.home, request)
        if "error" in reply:
            raise StackError(f"{self.name}: {reply['error']}")
        return reply

    def inside(
        self, *words: str, seconds: float = 60.0, variables: Mapping[str, str] | None = None
    ) -> str:
        """What a command prints that runs in the namespaces of the machine."""
        try:
            with entered(self.supervisor_pid):
                done = subprocess.run(
                    (*self._enter(), *words),
                    cwd=PROJECT_ROOT,
                    env={**self._environment(), **(variables or {})},
                    capture_output=True,
                    text=True,
                    timeout=seconds,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            late = f"did not end within {seconds:g} s"
            raise StackError(f"{self.name}: {' '.join(words)} {late}") from None
        if done.returncode:
            raise StackError(f"{self.name}: {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def run(self, *words: str, variables: Mapping[str, str]) -> int:
        """Run a command there on the terminal of this process; its exit status."""
        environment = {**self._environment(), **variables}
        with entered(self.supervisor_pid):
            return subprocess.run((*self._enter(), *words), env=environment, check=False).returncode

    def _enter(self) -> tuple[str, ...]:
        namespaces = ("--mount", "--pid", "--uts")
        return ("nsenter", f"--target={self.supervisor_pid}", *namespaces, f"--wd={PROJECT_ROOT}")


def number_inside(pid: int) -> int | None:
    """The number that a process has in the innermost namespace that it is in."""
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("NSpid:")[2].split("\n")[0].split()[-1])
    return None


def processes_of(folder: Path) -> list[ProcessIdentity]:
    """Every process that was started for the cluster in that folder."""
    assignment = f"{CLUSTER_VARIABLE}={folder}"
    found = (identity_of(pid) for pid in all_pids() if has_environment(pid, assignment))
    return [identity for identity in found if identity]
