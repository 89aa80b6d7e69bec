"""Connections are counted by address, and as many are let in as may be."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

from hypothesis import given
from hypothesis import strategies as st

from app.server.connections import Connections, address_of

HOSTS = st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"])


@given(
    st.lists(st.tuples(st.booleans(), HOSTS, st.booleans())),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_no_more_are_let_in_than_may_be(
    steps: list[tuple[bool, str, bool]], most: int, most_of_address: int
) -> None:
    connections = Connections(most, most_of_address)
    inside: list[str] = []
    for enters, host, is_proxy in steps:
        if enters:
            own = Counter(map(address_of, inside))[address_of(host)]
            refused = connections.enter(host, is_proxy=is_proxy)
            if len(inside) >= most:
                assert refused is HTTPStatus.SERVICE_UNAVAILABLE
            elif own >= most_of_address > 0 and not is_proxy:
                assert refused is HTTPStatus.TOO_MANY_REQUESTS
            else:
                assert refused is None
                inside.append(host)
        elif inside:
            connections.leave(inside.pop(0))
        assert connections.count == len(inside)
    for host in inside:
        connections.leave(host)
    assert not connections._of_address


def test_addresses_of_one_ipv6_network_are_one() -> None:
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:1")
    assert address_of("2001:db8::1") != address_of("2001:db8:0:1::1")
    assert address_of("::ffff:192.0.2.1") == address_of("192.0.2.1") == "192.0.2.1"
    assert address_of("fe80::1%eth0") == address_of("fe80::2")
