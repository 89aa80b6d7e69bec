"""Broker URLs that name several nodes: each form is read, and passwords are never repeated."""

from __future__ import annotations

import os
import subprocess
import sys

import kombu
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.broker.node_order import try_last
from app.broker_url import address, node_urls
from app.config import Settings
from tests import ROOT

START = "amqp://me:p%40ss@"
SEVERAL = {
    START + "a:5672,b:5673//": [START + "a:5672//", START + "b:5673//"],
    START + "a,b,c/jobs": [START + f"{host}:5672/jobs" for host in "abc"],
    "amqps://a,b:1//": ["amqps://a:5671//", "amqps://b:1//"],
    "amqp://me:p,w@a,b//": ["amqp://me:p,w@a:5672//", "amqp://me:p,w@b:5672//"],
    START + "[::1]:1,[fe80::2]//": [START + "[::1]:1//", START + "[fe80::2]:5672//"],
    "amqp://u:1@a//;amqp://v:2@b:1//": ["amqp://u:1@a:5672//", "amqp://v:2@b:1//"],
    "amqps://a,b//?ssl_ca_certs=/ca": [f"amqps://{host}:5671//?ssl_ca_certs=/ca" for host in "ab"],
}
ONE = ["amqp://guest:guest@127.0.0.1:5672//", "amqp://", "amqp://elsewhere", "filesystem:///a,b;c"]


@pytest.mark.parametrize("text", SEVERAL)
def test_every_form_names_each_node(text: str) -> None:
    assert node_urls(text) == SEVERAL[text]
    for url in SEVERAL[text]:
        opened = kombu.Connection(url)
        found = address(url)
        assert found is not None
        assert found[0] == opened.hostname
        assert opened.port == found[1]


@pytest.mark.parametrize("text", ["amqp://a:1,b//", "amqps://a:1,b//", "amqp://a:1//;amqp://b//"])
def test_a_node_without_a_port_does_not_get_that_of_another(text: str) -> None:
    opened = kombu.Connection(node_urls(text))
    opened.maybe_switch_next()
    assert (opened.hostname, opened.port) == ("b", 5671 if text.startswith("amqps") else 5672)


@pytest.mark.parametrize("text", ONE)
def test_one_node_stays_as_it_is(text: str) -> None:
    assert node_urls(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        *(START + "a,,b//", START + "a,b:x//", START + "a,b:99999//", START + "a, b//"),
        *(START + "a//;", "amqp://x:p%40ss@a//;http://b", START + "a:5672:5673//"),
        *("amqp:p%40ss", START + "a//,amqp://b;x//"),
        *("", "me:p%40ss@a", "AMQP://me:p%40ss@a//", "pyamqp://a//", "redis://:p%40ss@a/0"),
        *("http://me:p%40ss@a", "filesystem://folder"),
        # A password that begins like a port, and contains what ends the part with the hosts.
        *("amqp://me:5/p%40ss@a,b//", "amqp://me:5?p%40ss@a//", "amqp://me:5#p%40ss@a//"),
        *(START + "a//?heartbeat=1", START + "a//?ssl_ca_certs=/ca", START + "a,b//?ssl=1"),
        *("amqps://me:p%40ss@a//?ca_certs=/ca", "amqps://me:p%40ss@a//?ssl_cert_reqs=maybe"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(text: str) -> None:
    with pytest.raises(ValueError, match="broker") as refused:
        node_urls(text)
    assert "p%40ss" not in str(refused.value)
    with pytest.raises(ValidationError):
        Settings(broker_url=text)


def test_a_command_names_the_setting_and_not_the_password() -> None:
    done = subprocess.run(
        (sys.executable, "-c", "from app.config import settings; settings()"),
        cwd=ROOT,
        env={**os.environ, "FAIRLINE_BROKER_URL": "amqp://me:secret@a,,b//"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fairline: FAIRLINE_BROKER_URL: names several brokers")
    assert "secret" not in done.stderr


def test_processes_begin_with_different_nodes() -> None:
    settings = Settings(broker_url=START + "a,b,c//")
    orders = [settings.broker[0] for _ in range(100)]
    assert {order[0] for order in orders} == set(node_urls(settings.broker_url))
    assert {frozenset(order) for order in orders} == {frozenset(node_urls(settings.broker_url))}


HOSTS = st.lists(st.integers(1, 9).map("node{}".format), min_size=1, max_size=5, unique=True)


@given(HOSTS, st.data())
def test_a_node_that_failed_is_the_last_one_and_the_others_keep_their_order(
    hosts: list[str], data: st.DataObject
) -> None:
    urls = node_urls(f"{START}{','.join(hosts)}//")
    failed = data.draw(st.sampled_from(hosts))
    try_last(urls, kombu.Connection(f"{START}{failed}//"))
    others = [host for host in hosts if host != failed]
    assert urls == node_urls(f"{START}{','.join([*others, failed])}//")


def test_what_is_shown_of_a_connection_has_no_password() -> None:
    urls = node_urls("amqp://me:secret@a,b//;amqp://me:other@c//")
    from app.celery import celery

    with celery.connection_for_write(url=urls) as connection:
        assert "secret" not in connection.as_uri()
        table = celery.conf.humanize(with_defaults=False, censored=True)
    assert "guest:guest" not in table
