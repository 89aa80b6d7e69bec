"""TLS to the broker: by parameters of its URL, and with the certificate of each node."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from celery import Celery

from app.broker.connect import try_each_node
from app.broker.management import ManagementApi
from app.broker_url import node_urls

HEADER = b"AMQP\x00\x00\x09\x01"


class TlsNode:
    """A node that takes one connection, with a certificate for ``names``, and hangs up after the
    first bytes."""

    def __init__(self, folder: Path, names: str) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("openssl is not installed")
        self.certificate, key = folder / f"{names[-1]}.pem", folder / f"{names[-1]}.key"
        subprocess.run(
            (
                *(openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=node"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-addext", f"subjectAltName={names}"),
                *("-keyout", str(key), "-out", str(self.certificate)),
            ),
            check=True,
            capture_output=True,
        )
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener:
            taken, _ = self._listener.accept()
        taken.settimeout(10)
        try:
            with self._context.wrap_socket(taken, server_side=True) as stream:
                self.received = stream.recv(8)
        except OSError:
            pass  # the client did not like the certificate

    def first_bytes(self) -> bytes:
        self._thread.join(10)
        return self.received


def connect(urls: list[str]) -> str:
    """Try each node once; the last error."""
    celery = Celery("test", amqp="app.broker.amqp:JobAmqp")
    connection = celery.connection_for_write(url=urls)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - no node is a whole broker
        try_each_node(connection)
    return str(failed.value)


@pytest.fixture
def node(tmp_path: Path) -> TlsNode:
    return TlsNode(tmp_path, "IP:127.0.0.1")


def test_the_authority_is_a_parameter_of_the_url(node: TlsNode) -> None:
    where = f"amqps://me:secret@127.0.0.1:{node.port}//?ssl_ca_certs={node.certificate}"
    assert "certificate" not in connect(node_urls(where))
    assert node.first_bytes() == HEADER


def test_a_certificate_of_an_unknown_authority_is_refused(node: TlsNode) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in connect([f"amqps://127.0.0.1:{node.port}//"])
    assert node.first_bytes() == b""


@pytest.mark.parametrize(
    ("parameters", "received"),
    [("", b""), ("&ssl_check_hostname=false", HEADER), ("&ssl_cert_reqs=none", HEADER)],
)
def test_the_certificate_must_be_that_of_the_host(
    tmp_path: Path, parameters: str, received: bytes
) -> None:
    node = TlsNode(tmp_path, "DNS:elsewhere.example")
    url = f"amqps://127.0.0.1:{node.port}//?ssl_ca_certs={node.certificate}{parameters}"
    assert ("CERTIFICATE_VERIFY_FAILED" in connect([url])) is (received == b"")
    assert node.first_bytes() == received


def test_each_node_of_several_is_expected_to_have_its_own_certificate(tmp_path: Path) -> None:
    one, two = TlsNode(tmp_path, "IP:127.0.0.1"), TlsNode(tmp_path, "DNS:localhost")
    both = tmp_path / "both.pem"
    both.write_text(one.certificate.read_text() + two.certificate.read_text())
    nodes = f"127.0.0.1:{one.port},localhost:{two.port}"
    connect(node_urls(f"amqps://{nodes}//?ssl_ca_certs={both}"))
    assert (one.first_bytes(), two.first_bytes()) == (HEADER, HEADER)


def test_the_management_api_trusts_the_same_authority(node: TlsNode) -> None:
    url = f"amqps://me:secret@127.0.0.1//?ssl_ca_certs={node.certificate}"
    with pytest.raises(OSError):  # noqa: PT011 - it hangs up
        ManagementApi(url, node.port).version()
    assert node.first_bytes() == b"GET /api"
