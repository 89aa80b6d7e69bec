"""``celery -A app flower`` as it is started without a login."""

from __future__ import annotations

import http.client
import os
import subprocess
from pathlib import Path

import psutil

from app.stack.ports import free_port
from tests import ROOT
from tests.support.commands import BIN, command, wait_for_answer

FLOWER = (str(BIN / "celery"), "-A", "app", "flower")


def page(port: int, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/tasks", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_without_a_login_flower_is_for_this_machine(tmp_path: Path) -> None:
    port = free_port()
    env = {"FLOWER_PORT": str(port), "FAIRLINE_BROKER_URL": f"filesystem://{tmp_path}"}
    with command(FLOWER, env, tmp_path / "flower.log") as process:
        wait_for_answer(f"http://127.0.0.1:{port}/healthcheck", seconds=60)
        connections = psutil.Process(process.pid).net_connections("tcp")
        listening = {c.laddr for c in connections if c.status == psutil.CONN_LISTEN}
        assert listening == {("127.0.0.1", port)}
        assert page(port)[0] == 200
        for headers in ({"Host": "evil.example"}, {"X-Forwarded-For": "127.0.0.1"}):
            status, text = page(port, **headers)
            assert status == 403
            assert "FLOWER_BASIC_AUTH" in text


def test_without_a_login_flower_does_not_listen_for_others(tmp_path: Path) -> None:
    env = {**os.environ, "FAIRLINE_BROKER_URL": f"filesystem://{tmp_path}"}
    ended = subprocess.run(
        (*FLOWER, "--address=0.0.0.0", f"--port={free_port()}"),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "FLOWER_BASIC_AUTH=user:password" in ended.stderr
    assert "Traceback" not in ended.stderr
