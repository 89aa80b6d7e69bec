"""``python -m tests.bare [--full | --cluster] [--keep]``: the README on a bare Debian tree.

An ordinary user, then root: `make up`, the README's commands as they stand there, `make down`.
Then `make up BROKER=rabbitmq` as root, and the unit tests; with ``--full`` all tests. With
``--cluster`` none of that, but `make cluster` and the first request, before and after a machine
was cut off.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.stack.ports import PRIVATE_PORTS, is_taken
from app.stack.screen import Screen
from tests.bare.steps import Failed, Steps, check_machine, end_of
from tests.bare.tree import (
    ORDINARY,
    ROOT,
    SUITE,
    CannotEnter,
    Tree,
    User,
    clone,
    entered,
    make_tree,
    remove_tree,
)
from tests.support.documents import Example, blocks, differences, examples, script, section
from tests.support.run_elsewhere import is_run_elsewhere

REPOSITORY = Path(__file__).parents[2]
REQUIREMENTS = re.compile(r"^# apt-get install (.+)$", re.M)
#: The sections of the README whose commands need nothing but `make up`.
SECTIONS = ("First request", "Waiting, watching, cancelling", "Tenants and keys")
#: A cluster without one of its machines still accepts and scores; the first answers may be 503
#: until there is another leader.
CUT_OFF = """
.venv/bin/python -m loadtest.cluster cut 1
for turn in $(seq 90); do
    said=$(curl -s -m 40 localhost:$PORT/applications -H 'content-type: application/json' \\
        -H 'Prefer: wait=30' -d '{"candidate": "carol", "payload": "machine 1 is gone"}')
    echo "$said"
    if echo "$said" | grep -q '"status":"scored"'; then exit 0; fi
    sleep 1
done
exit 1
"""
#: The last line that `make up` prints when the stack is ready.
READY = "Ctrl-C or `make down` stops everything."
FOLDER_HINT = "apt-get install rabbitmq-server"

INSTALL_SECONDS = 900.0
README_SECONDS = 300.0
STOP_SECONDS = 150.0
UNIT_SECONDS = 1200.0
FULL_SECONDS = 3600.0


def committed_readme() -> str:
    """The README of the commit that is tried."""
    words = ("git", "-C", str(REPOSITORY), "show", "HEAD:README.md")
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def requirements(readme: str) -> list[str]:
    """The Debian packages that the README asks for."""
    (line,) = REQUIREMENTS.findall(readme)
    return str(line).split()


def commands(readme: str) -> list[Example]:
    """What a new user types while `make up` runs."""
    found = blocks("README.md", section(readme, *SECTIONS))
    typed = [example for block in found for example in examples(block)]
    return [example for example in typed if not is_run_elsewhere("README.md", example)]


class BareTest(Steps):
    """What is done in the tree."""

    def __init__(self, tree: Tree, readme: str, logs: Path, screen: Screen) -> None:
        free = (port for port in PRIVATE_PORTS if not is_taken(port))
        self._readme, self._port = readme, next(free)
        variables = {"PORT": str(self._port), "FLOWER_PORT": str(next(free))}
        super().__init__(tree, logs, screen, variables)

    @contextmanager
    def stack(self, user: User, command: str = "make up") -> Iterator[str]:
        """A stack from `make up` to `make down`; what `make up` printed."""
        log = self._log(user, command)
        words = self._tree.command(user, f"exec {command}")
        seen = self._tree.environment(user, self._variables)
        with log.open("wb") as output:
            running = subprocess.Popen(words, env=seen, stdout=output, stderr=output)
        try:
            with self._screen.step(f"{user.name}: {command}"):
                self._wait_until_ready(running, log, f"{user.name}: {command}")
            yield log.read_text(errors="replace")
            self.run(user, "make down", "make down", STOP_SECONDS)
            if running.wait(STOP_SECONDS):
                raise Failed(
                    f"{user.name}: {command} ended with {running.returncode}; {end_of(log)}"
                )
        finally:
            running.kill()  # what runs inside ends with the tree
            running.wait()

    def _wait_until_ready(self, running: subprocess.Popen[bytes], log: Path, title: str) -> None:
        deadline = time.monotonic() + INSTALL_SECONDS
        while READY not in log.read_text(errors="replace"):
            if running.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{title} did not become ready; {end_of(log)}")
            time.sleep(0.2)

    def follow_readme(self, user: User) -> None:
        """Everything that the README tells a new user to do."""
        for target in ("down", "status", "demo"):
            printed = self.run(user, f"make {target} before", f"make {target} || true", 30)
            if ".venv is missing or incomplete" not in printed or "Traceback" in printed:
                raise Failed(f"{user.name}: make {target} without .venv said: {printed}")
        with self.stack(user) as printed:
            if FOLDER_HINT not in printed:
                raise Failed(f"{user.name}: make up does not say how to get RabbitMQ")
            shown, here = commands(self._readme), {"localhost:8000": f"localhost:{self._port}"}
            output = self.run(user, "the README's commands", script(shown, here), README_SECONDS)
            if found := differences(shown, output):
                raise Failed(
                    "the README shows something else than what is printed:\n" + "\n".join(found)
                )

    def use_cluster(self) -> None:
        """`make cluster`, the first request, and one while a machine is cut off."""
        self.run(ROOT, "make cluster", "make cluster", INSTALL_SECONDS)
        try:
            block = blocks("README.md", section(self._readme, SECTIONS[0]))[0]
            here = {"localhost:8000": f"localhost:{self._port}"}
            self.run(ROOT, "the first request", script(examples(block), here), README_SECONDS)
            self.run(ROOT, "a machine cut off", CUT_OFF, README_SECONDS)
            self.run(ROOT, "make cluster-status", "make cluster-status", README_SECONDS)
        finally:
            self.run(ROOT, "make cluster-down", "make cluster-down", STOP_SECONDS)

    def use_rabbitmq(self) -> None:
        """`make up BROKER=rabbitmq` installs the broker when root asks for it."""
        with self.stack(ROOT, "make up BROKER=rabbitmq") as printed:
            if "Broker  amqp" not in printed:
                raise Failed(f"BROKER=rabbitmq runs another broker:\n{printed}")
            self.run(ROOT, "make demo", "make demo", README_SECONDS)


def try_everything(folder: Path, full: bool, cluster: bool, screen: Screen) -> None:
    """All steps; raises at the first that fails."""
    tree, logs = folder / "tree", folder / "logs"
    logs.mkdir()
    try:
        readme = committed_readme()
    except subprocess.CalledProcessError as error:
        raise Failed(f"the committed README cannot be read: {error.stderr}") from error
    packages, log = requirements(readme), logs / "00-mmdebstrap.log"
    try:
        with screen.step(f"Debian {SUITE} with {', '.join(packages)}"):
            make_tree(tree, packages, log)
            for user in (ORDINARY, ROOT):
                clone(REPOSITORY, tree, user)
    except subprocess.CalledProcessError as error:
        raise Failed(f"the tree could not be made: {error}; {end_of(log)}") from error
    with entered(tree, as_root=cluster) as inside:
        test = BareTest(inside, readme, logs, screen)
        if cluster:
            test.use_cluster()
            return
        test.follow_readme(ORDINARY)
        test.follow_readme(ROOT)
        test.run(ORDINARY, "make test-unit", "make test-unit", UNIT_SECONDS)
        test.use_rabbitmq()
        if full:
            printed = test.run(ROOT, "make test", "make test", FULL_SECONDS, CI="true")
            screen.plain("\n".join(line for line in printed.splitlines() if " passed" in line))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bare", description=__doc__)
    parser.add_argument("--full", action="store_true", help="run all tests in the tree, as root")
    parser.add_argument("--cluster", action="store_true", help="try make cluster instead")
    parser.add_argument("--keep", action="store_true", help="do not remove the tree and the logs")
    options = parser.parse_args()
    screen = Screen()
    if missing := check_machine("bare-test"):
        screen.plain(f"fairline: {missing}")
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that the `finally` blocks run
    folder = Path(tempfile.mkdtemp(prefix="fairline-bare-", dir="/var/tmp"))
    folder.chmod(0o755)
    began, done = time.monotonic(), False
    try:
        try_everything(folder, options.full, options.cluster, screen)
        done = True
    except (Failed, CannotEnter) as error:
        screen.plain(f"fairline: {error}")
        return 1
    except KeyboardInterrupt:
        screen.plain("fairline: interrupted")
        return 1
    finally:
        if options.keep:
            screen.plain(f"The tree and the logs are in {folder}")
        else:
            remove_tree(folder / "tree")
            if done:
                remove_tree(folder)
            else:
                screen.plain(f"The logs of all steps are in {folder}/logs")
    screen.line(
        f"[bold green]The README holds on a bare Debian.[/] {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
