"""The front: HAProxy, which sends requests to the machines that can accept and run a job.

It is in the network of the machines and listens on this machine's loopback as well. Engines are not
behind it: clients know all nodes of PostgreSQL and RabbitMQ by their URLs.
"""

from __future__ import annotations

import os
import shutil

from app.stack.spec import ProcessSpec
from loadtest.cluster.layout import API_PORT, NUMBERS, Layout
from loadtest.cluster.network import FRONT, address

#: The network of this machine, by the name that HAProxy knows it by: a mount of the front.
OUTSIDE = "outside"

#: A request that no machine is ready for goes to one that responds, and gets its 503 with a reason.
#: Only what was never sent is sent to another machine: anything else could be done twice. A machine
#: that has vanished ends its requests within four seconds.
CONFIGURATION = """\
global
    maxconn 4000
    nbthread 1
    user nobody
    group nogroup
    log stdout format raw local0 notice
defaults
    mode http
    log global
    maxconn 4000
    timeout connect 400ms
    timeout client 90s
    timeout server 90s
    timeout check 1s
    timeout http-request 20s
    timeout queue 2s
    retries 3
    retry-on conn-failure
    option redispatch 1
    option srvtcpka
    srvtcpka-idle 2s
    srvtcpka-intvl 1s
    srvtcpka-cnt 2
    default-server inter 1s fastinter 400ms downinter 1s fall 2 rise 1 tcp-ut 4s
frontend all
    bind 127.0.0.1:{port} namespace {outside}
    bind {here}:{api}
    bind 127.0.0.1:{port}
    use_backend alive if {{ nbsrv(ready) eq 0 }}
    default_backend ready
backend ready
    option httpchk GET /readyz
{servers}
backend alive
    option httpchk GET /healthz
{servers}
"""


def haproxy(layout: Layout) -> ProcessSpec:
    """HAProxy with the configuration of this cluster."""
    servers = (f"    server m{n} {address(n)}:{API_PORT} check" for n in NUMBERS)
    text = CONFIGURATION.format(
        port=layout.port,
        outside=OUTSIDE,
        here=address(FRONT),
        api=API_PORT,
        servers="\n".join(servers),
    )
    file = layout.machine(FRONT) / "haproxy.cfg"
    file.write_text(text)
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    return ProcessSpec("haproxy", (found or "haproxy", "-db", "-f", str(file)))
