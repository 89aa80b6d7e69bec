"""Processes that are forked from servers which have imported their modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.stack.fork_server import MODULES
from app.stack.forking import ANSWER_SECONDS
from app.stack.identity import identity_of, wait_for_exit
from app.stack.spec import PROJECT_ROOT

#: Adopts orphans, starts the servers, and does what it reads from its standard input, line by line.
DRIVER = textwrap.dedent(
    """
    import json, os, signal, sys
    from pathlib import Path
    from app.stack.forking import ForkServers
    from app.stack.spawn import adopt_orphans, spawn
    from app.stack.spec import ProcessSpec

    folder = Path(sys.argv[1])
    adopt_orphans()
    said = []
    forks = ForkServers(os.environ, folder / "servers.log", said.append)

    def start(argv, kind, **env):
        spec = ProcessSpec("job", argv, env=env, cwd=folder, forked_from=kind)
        return spawn(spec, dict(os.environ), folder / "out.log", forks.fork)

    for line in sys.stdin:
        print(json.dumps(eval(line)), flush=True)
    """
)
REPORT = """
import json, os, sys
from pathlib import Path
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "cwd": os.getcwd(),
    "argv": sys.argv, "secret": os.environ.get("SECRET"), "path": os.environ.get("PATH"),
    "shown": Path("/proc/self/cmdline").read_text(),
    "read": sys.stdin.read(), "celery": "celery.bin.worker" in sys.modules,
    "patched": getattr(sys.modules.get("gevent.monkey"), "saved", {}).keys() >= {"socket"},
    "loop": bool((m := sys.modules.get("gevent._hub_local")) and m.get_hub_if_exists()),
}))
sys.exit(3)
"""


class Driver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "out.log"
        self.script = folder / "report"
        self.script.write_text(f"#!{sys.executable}\n{REPORT}")
        self.script.chmod(0o700)
        self.process = subprocess.Popen(
            (sys.executable, "-c", DRIVER, str(folder)),
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, expression: str) -> Any:
        """The value of a Python expression in the driver."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def report(self, kind: str) -> tuple[dict[str, Any], int]:
        """What a process of this kind says of itself, and how it ended."""
        self.log.unlink(missing_ok=True)
        argv = (str(self.script), "--flag")
        status = self.do(f"start({argv!r}, {kind!r}, SECRET='mine').popen.wait()")
        return json.loads(self.log.read_text()), status


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    started = Driver(tmp_path_factory.mktemp("forked"))
    with started.process:
        yield started
        started.process.kill()


@pytest.mark.parametrize("kind", MODULES)
def test_forked_process_is_like_an_executed_one_but_has_its_modules(
    driver: Driver, kind: str
) -> None:
    seen, status = driver.report(kind)
    assert status == 3
    assert seen["celery"], "imported before the fork"
    assert seen["argv"] == [str(driver.script), "--flag"]
    assert seen["shown"] == f"{driver.script} --flag\0"
    assert seen["parent"] == driver.process.pid
    assert seen["session"] == seen["pid"], "it leads its own session"
    assert seen["cwd"] == str(driver.folder)
    assert seen["secret"] == "mine" and seen["path"] == os.environ["PATH"]
    assert seen["read"] == "", "nothing to read"
    assert seen["patched"] == (kind == "gevent")
    assert not seen["loop"], "an event loop would be shared with other processes"


@pytest.mark.parametrize("kind", MODULES)
def test_nothing_that_depends_on_settings_is_imported_before_the_fork(kind: str) -> None:
    code = (
        f"from app.stack.fork_server import import_modules; import_modules({kind!r}); import sys\n"
        "from app.config import settings; from tasks.registry import load_types\n"
        "assert settings.cache_info().currsize == 0, 'the settings are those of a process'\n"
        "assert 'echo' not in load_types(demo=False), 'types to try things out, unasked'\n"
        "assert not {'celeryconfig', 'app.celery'} & set(sys.modules), 'they read sys.argv'"
    )
    subprocess.run((sys.executable, "-c", code), cwd=PROJECT_ROOT, check=True)


def test_killed_process_is_noticed_and_its_signal_known(driver: Driver) -> None:
    code = (
        "[c := start((sys.executable, '-m', 'http.server', '0'), 'plain'),"
        " os.kill(c.pid, 9), c.popen.wait()][2]"
    )
    assert driver.do(code) == -9


def test_process_that_is_not_confirmed_ends(driver: Driver) -> None:
    """As if the supervisor had died, or given up, before it knew of the process."""
    driver.log.unlink(missing_ok=True)
    code = (
        "(lambda pair, server: [__import__('socket').send_fds(server, [b'f'], [pair[1].fileno()]),"
        " pair[1].close(), pair[0].sendall(json.dumps({'argv': ['x', 'report.py'], 'env': {},"
        " 'cwd': str(folder), 'log': str(folder / 'out.log'), 'death_signal': 9,"
        " 'parent': os.getpid()}).encode() + b'\\n'), int(pair[0].recv(100)), pair[0].close()][3])"
        "(__import__('socket').socketpair(), forks._servers['plain'][0])"
    )
    unknown = identity_of(driver.do(code))
    assert unknown is None or wait_for_exit([unknown], seconds=5.0) == []
    assert driver.log.read_text() == "", "it ran nothing"


def test_forked_process_ends_with_its_parent(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    with driver.process as process:
        child = identity_of(
            driver.do("start((sys.executable, '-m', 'http.server', '0'), 'gevent').pid")
        )
        servers = driver.do("[process.pid for _, process in forks._servers.values()]")
        alive = [one for one in map(identity_of, servers) if one]
        assert child and len(alive) == 2
        process.kill()
    assert wait_for_exit([child, *alive], seconds=10.0) == []


def test_process_is_executed_if_its_server_is_gone(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    with driver.process as process:
        driver.do("[server.kill() for _, server in forks._servers.values()]")
        seen, status = driver.report("plain")
        assert status == 3 and not seen["celery"], "executed: it imported nothing"
        [said] = driver.do("said")
        assert said.startswith("job: its fork server does not") and said.endswith("servers.log")
        driver.do("forks.close()")
        seen, status = driver.report("gevent")
        assert status == 3 and not seen["celery"]
        process.kill()


def test_a_server_that_stands_still_is_not_waited_for_once_a_stop_is_asked(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    with driver.process as process:
        driver.do("[os.kill(server.pid, 19) for _, server in forks._servers.values()]")
        driver.do(
            "setattr(forks, 'goes_on', lambda: said.append('asked') or said.count('asked') < 3)"
        )
        began = time.monotonic()
        _, status = driver.report("plain")
        assert status == 3 and time.monotonic() - began < ANSWER_SECONDS / 2
        assert set(driver.do("said")) == {"asked"}, "a stop is no failure to report"
        process.kill()


def test_a_forked_worker_that_forks_writes_nothing_to_its_log(driver: Driver) -> None:
    """gevent that patches a process twice complains at each fork."""
    script = driver.folder / "forks"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, subprocess\n"
        "from app.worker import patch_gevent\n"
        "patch_gevent()\n"
        "if not os.fork():\n    os._exit(0)\n"
        "os.wait()\n"
        "subprocess.run(['true'], check=True)\n"
        "from gevent import monkey\n"
        "names = ('os', 'queue', 'signal', 'socket', 'threading', 'time')\n"
        "print([name for name in names if not monkey.is_module_patched(name)])\n"
    )
    script.chmod(0o700)
    driver.log.unlink(missing_ok=True)
    assert driver.do(f"start(({str(script)!r},), 'gevent').popen.wait()") == 0
    assert driver.log.read_text() == "[]\n"
