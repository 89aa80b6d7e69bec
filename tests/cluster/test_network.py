"""Cuts of the network between machines, with nothing on them but sockets."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from loadtest.cluster.network import FRONT, Network, address, entered
from loadtest.fleet import until

PORT = 9000


class Sockets:
    """A network, and a socket for datagrams on each machine and on the front."""

    def __init__(self, pids: dict[int, int], stack: ExitStack) -> None:
        self.pids = pids
        self.network = Network(pids[FRONT])
        self.network.create()
        for number, pid in pids.items():
            if number != FRONT:
                self.network.attach(number, pid)
        self._sockets = {}
        for number, pid in pids.items():
            with entered(pid):
                made = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            made.bind((address(number), PORT))
            made.settimeout(0.3)
            self._sockets[number] = made
        for number in pids:  # addresses are learned: the first datagram may wait for that
            until(lambda number=number: self.reaches(number, FRONT), 5.0, "the network")

    def reaches(self, source: int, target: int) -> bool:
        """Whether a datagram arrives."""
        if source == target:
            return True
        sent = uuid4().bytes  # one that was late before is not taken for this one
        self._sockets[source].sendto(sent, (address(target), PORT))
        try:
            while self._sockets[target].recv(100) != sent:
                pass
        except TimeoutError:
            return False
        return True


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    holders = {
        number: subprocess.Popen(("unshare", "--net", "sleep", "infinity"))
        for number in (FRONT, 1, 2, 3)
    }
    own = Path("/proc/self/ns/net").readlink()
    try:
        pids = {number: holder.pid for number, holder in holders.items()}
        until(
            lambda: all(Path(f"/proc/{pid}/ns/net").readlink() != own for pid in pids.values()),
            5.0,
            "namespaces",
        )
        with ExitStack() as stack:
            yield Sockets(pids, stack)
    finally:
        for holder in holders.values():
            holder.kill()
            holder.wait()


def test_a_cut_holds_in_the_directions_asked_for_until_it_is_healed(sockets: Sockets) -> None:
    reaches, network = sockets.reaches, sockets.network
    assert reaches(1, 2)
    network.cut(1, 2, one_way=True)
    assert not reaches(1, 2)
    assert reaches(2, 1) and reaches(1, 3)
    network.cut(2, 1)
    network.cut(2, 1)
    assert not reaches(2, 1)
    assert network.cuts() == {(1, 2), (2, 1)}
    network.heal()
    assert reaches(1, 2) and reaches(2, 1)
    assert network.cuts() == set()


def test_the_front_can_be_cut_off_a_machine(sockets: Sockets) -> None:
    reaches, network = sockets.reaches, sockets.network
    network.cut(3, FRONT)
    assert not reaches(3, FRONT) and not reaches(FRONT, 3)
    assert reaches(1, FRONT) and reaches(3, 1)
    network.heal()
    network.cut(FRONT, 3, one_way=True)
    assert not reaches(FRONT, 3)
    assert reaches(3, FRONT)


def test_the_network_of_this_machine_is_not_touched(sockets: Sockets) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as outside, pytest.raises(OSError, match="assign"):
        outside.bind((address(FRONT), 0))


def test_a_machine_is_connected_anew_while_somebody_has_a_socket_in_its_old_network(
    sockets: Sockets,
) -> None:
    started = subprocess.Popen(("unshare", "--net", "sleep", "infinity"))
    own = Path("/proc/self/ns/net").readlink()
    try:
        until(lambda: Path(f"/proc/{started.pid}/ns/net").readlink() != own, 5.0, "a namespace")
        sockets.network.attach(1, started.pid)
        assert sockets.network.has_port(1) and not sockets.network.has_port(4)
        with entered(started.pid), socket.socket(type=socket.SOCK_DGRAM) as again:
            again.bind((address(1), PORT))
    finally:
        started.kill()
        started.wait()


def test_one_port_of_a_machine_can_be_out_of_reach(sockets: Sockets) -> None:
    sockets.network.cut(1, 2, one_way=True, port=PORT)
    assert sockets.reaches(1, 2), "datagrams are not TCP"
    assert sockets.network.cuts() == {(1, 2)}
    with entered(sockets.pids[2]), socket.create_server((address(2), PORT)):
        with entered(sockets.pids[1]), pytest.raises(TimeoutError):
            socket.create_connection((address(2), PORT), timeout=0.5)
        with entered(sockets.pids[3]):
            socket.create_connection((address(2), PORT), timeout=5).close()
