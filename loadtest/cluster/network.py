"""The network of a cluster: a bridge in the namespace of the front, a port for each machine.

Nothing of it is in the network of this machine, and all of it ends with the processes that live in
these namespaces. A fault is a rule of the bridge: frames from one port to another are dropped.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.stack.spec import StackError

SUBNET = "10.87.0"
BRIDGE = "br0"
#: The name of the front where machines have numbers, and the last part of its address.
FRONT = 254
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

#: Traffic of the front itself is not forwarded: it comes into the bridge, or out of it.
RULES = """
table bridge faults {
    chain forward { type filter hook forward priority 0; }
    chain input { type filter hook input priority 0; }
    chain output { type filter hook output priority 0; }
}
"""
DROPPED = re.compile(r'(?:iifname "m(\d)")? ?(?:oifname "m(\d)")? ?(?:tcp dport \d+ )?drop')


def address(number: int) -> str:
    """The address of a machine, or of the front."""
    return f"{SUBNET}.{number}"


@contextmanager
def entered(pid: int) -> Iterator[None]:
    """Sockets that this thread makes inside the block belong to the network of that process."""
    with open("/proc/thread-self/ns/net") as own:
        enter(pid)
        try:
            yield
        finally:
            _set_namespace(own.fileno())


def enter(pid: int) -> None:
    """Move this thread, and those that it will start, into the network of that process."""
    try:
        with open(f"/proc/{pid}/ns/net") as other:
            _set_namespace(other.fileno())
    except OSError as error:
        raise StackError(f"the network of process {pid} is gone: {error.strerror}") from error


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    """The bridge and its ports; ``front`` is a process of its namespace."""

    def __init__(self, front: int) -> None:
        self._front = front

    def create(self) -> None:
        """Make the bridge, with no port yet."""
        self._run(f"ip link add {BRIDGE} type bridge stp_state 0 forward_delay 0", self._front)
        self._run(f"ip addr add {address(FRONT)}/24 dev {BRIDGE}", self._front)
        for name in ("lo", BRIDGE):
            self._run(f"ip link set {name} up", self._front)
        self._run("nft -f -", self._front, RULES)

    def attach(self, number: int, pid: int) -> None:
        """Connect the namespace of that process as a machine; its end goes when that ends."""
        if self.has_port(number):  # somebody still has a socket in the network that was there
            self._run(f"ip link delete m{number}", self._front)
        # By the number of the process: a name would have to be left in /run/netns.
        peer = f"peer name m{number} netns {self._front}"
        self._run(f"ip link add eth0 type veth {peer}", pid)
        self._run(f"ip link set m{number} master {BRIDGE} up", self._front)
        self._run(f"ip addr add {address(number)}/24 dev eth0", pid)
        for name in ("lo", "eth0"):
            self._run(f"ip link set {name} up", pid)

    def has_port(self, number: int) -> bool:
        """Whether a machine is, or was, connected."""
        return f" m{number}@" in self._run("ip -oneline link show", self._front)

    def cut(self, source: int, target: int, one_way: bool = False, port: int | None = None) -> None:
        """Drop what one sends to the other, or to a port of it; unless ``one_way``, both ways."""
        only = f"tcp dport {port}" if port else ""
        for a, b in ((source, target), (target, source))[: 1 if one_way else 2]:
            into = f'iifname "m{a}"' if a != FRONT else ""
            out = f'oifname "m{b}"' if b != FRONT else ""
            chain = "forward" if into and out else "input" if into else "output"
            self._run(f"nft add rule bridge faults {chain} {into} {out} {only} drop", self._front)

    def heal(self) -> None:
        """Undo every cut."""
        self._run("nft flush table bridge faults", self._front)

    def cuts(self) -> set[tuple[int, int]]:
        """Who does not reach whom."""
        listed = self._run("nft list table bridge faults", self._front)
        found = (match.groups() for match in DROPPED.finditer(listed))
        return {(int(a or FRONT), int(b or FRONT)) for a, b in found}

    def _run(self, command: str, pid: int, given: str = "") -> str:
        words: Sequence[str] = command.split()
        with entered(pid):
            done = subprocess.run(
                words,
                input=given,
                capture_output=True,
                text=True,
                check=False,
                env={"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"},
            )
        if done.returncode:
            raise StackError(f"{command}: {done.stderr.strip()}")
        return done.stdout
