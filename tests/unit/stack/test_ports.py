"""Which ports count as taken, also of hosts with IPv6 addresses."""

from __future__ import annotations

import dataclasses
import errno
import socket
from pathlib import Path

import pytest

from app.stack.home import Home
from app.stack.options import read_options
from app.stack.ports import free_port, free_ports, is_taken
from app.stack.screen import Screen
from app.stack.sequence import clear_ground
from app.stack.spec import StackError


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_a_port_of_an_ipv6_host_is_taken_only_while_somebody_listens(host: str) -> None:
    port = free_port()
    assert not is_taken(port, host)
    with socket.create_server((host, port), family=socket.AF_INET6):
        assert is_taken(port, host)
    assert not is_taken(port, host)


def test_an_address_that_nobody_can_listen_on_is_not_a_taken_port(tmp_path: Path) -> None:
    # 192.0.2.1 is for documentation: no machine has it.
    port, flower = free_ports(2)
    with pytest.raises(OSError, match="assign requested address") as raised:
        is_taken(port, "192.0.2.1")
    assert raised.value.errno == errno.EADDRNOTAVAIL
    options = dataclasses.replace(
        read_options({}), home=tmp_path, host="192.0.2.1", port=port, flower_port=flower
    )
    with pytest.raises(StackError, match=f"cannot listen on port {port} of 192.0.2.1: Cannot"):
        clear_ground(options, Home(tmp_path), Screen())
