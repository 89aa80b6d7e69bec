"""A Docker engine of Debian packages alone, kept between runs together with its images.

It runs in a Debian tree (see `tests.bare.tree`). To build, it shares this machine's network and
leaves that as it is: no bridge, no firewall rule. Containers run afterwards, in a network
namespace that nothing else is in and that ends with this process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from app.stack.screen import Screen
from loadtest.fleet import until
from tests.bare.steps import Failed, Steps, end_of
from tests.bare.tree import (
    CERTIFICATES,
    PASSED_ON,
    ROOT,
    Tree,
    bootstrap,
    clone,
    entered,
    make_tree,
    remove_tree,
)

#: The first Debian whose Compose knows everything that our file uses.
SUITE = "trixie"
PACKAGES = (
    *("docker.io", "docker-cli", "docker-compose", "docker-buildx", "iptables", "iproute2"),
    "ca-certificates",
)
#: Suite and packages of the images that tests/containers/images begin with.
DEBIAN_IMAGES = {
    "python": ("bookworm", ("python3-venv", "python-is-python3", "ca-certificates")),
    "services": ("forky", ("postgresql-18", "rabbitmq-server")),
}
#: The stand-ins, by stage of tests/containers/images/Dockerfile.
STAND_INS = {
    "python": "python:3.11-slim",
    "postgres": "postgres:18",
    "rabbitmq": "rabbitmq:4-management",
}
NO_NETWORK_OF_ITS_OWN = (
    *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
    "--ip-masq=false",
)
CLONE_NEWNET = 0x40000000
BUILD_SECONDS = 1200.0


def make_engine(cache: Path, logs: Path, screen: Screen) -> Path:
    """The engine's tree, made unless it is there; the Debian images wait in it to be imported."""
    tree, made = cache / "tree", cache / "made"
    wanted = f"{SUITE} {PACKAGES} {DEBIAN_IMAGES}"
    if not made.exists() or made.read_text() != wanted:
        made.unlink(missing_ok=True)
        remove_tree(tree)
        log = logs / "00-mmdebstrap-engine.log"
        title = f"Debian {SUITE} with Docker; PostgreSQL, RabbitMQ and Python for its images"
        with screen.step(title), ThreadPoolExecutor() as pool:
            tars = [pool.submit(make_tar, name, cache, logs) for name in DEBIAN_IMAGES]
            try:
                make_tree(tree, PACKAGES, log, SUITE)
                for tar in tars:
                    shutil.move(tar.result(), tree / "root")
            except subprocess.CalledProcessError as error:
                raise Failed(f"mmdebstrap failed; {end_of(log)}") from error
        made.write_text(wanted)
    return tree


def make_tar(name: str, cache: Path, logs: Path) -> Path:
    """One Debian image as an archive."""
    target, (suite, packages) = cache / f"{name}.tar", DEBIAN_IMAGES[name]
    with (logs / f"00-mmdebstrap-{name}.log").open("wb") as output:
        bootstrap(target, suite, packages, output)
    return target


def build_images(tree: Path, repository: Path, logs: Path, screen: Screen) -> None:
    """The stand-ins, and our image from the repository's Dockerfile."""
    forget_containers(tree)
    remove_tree(tree / ROOT.clone[1:])
    clone(repository, tree, ROOT)
    context = tree / ROOT.clone[1:] / "tests/containers/images"
    shutil.copyfile(CERTIFICATES, context / CERTIFICATES.name)
    (context / "pip.conf").write_text(pip_settings())
    proxies = " ".join(f"--build-arg={name}" for name in PASSED_ON if "proxy" in name.lower())
    build = f"docker build --quiet --network=host {proxies}"
    with entered(tree, as_root=True) as inside:
        steps = Steps(inside, logs, screen)
        with docker(inside, logs / "dockerd-build.log", *NO_NETWORK_OF_ITS_OWN):
            for archive in sorted(tree.glob("root/*.tar")):
                image = f"fairline-debian:{archive.stem}"
                words = f"docker import /root/{archive.name} {image} && rm /root/{archive.name}"
                steps.run(ROOT, f"import {image}", words, BUILD_SECONDS)
            for stage, image in STAND_INS.items():
                words = f"{build} --target={stage} --tag={image} tests/containers/images"
                steps.run(ROOT, f"stand-in for {image}", words, BUILD_SECONDS)
            steps.run(ROOT, "docker build .", f"{build} --tag=fairline:local .", BUILD_SECONDS)
            steps.run(ROOT, "remove old images", "docker image prune --force", BUILD_SECONDS)


def pip_settings() -> str:
    """How pip reaches the package index here; in a file, as it may hold a password."""
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    options = {"PIP_CERT": str(CERTIFICATES), **given}
    lines = [
        f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {value}"
        for name, value in options.items()
        if name.startswith("PIP_")
    ]
    return "\n".join(("[global]", *lines, ""))


def forget_containers(tree: Path) -> None:
    """Remove what a run that was interrupted left: the engine would start it again."""
    for name in ("containers", "volumes", "network"):
        remove_tree(tree / "var/lib/docker" / name)


def leave_network() -> None:
    """From here on this process and those that it starts are in a network of their own."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "this machine does not let us make a network namespace")


@contextmanager
def docker(tree: Tree, log: Path, *options: str) -> Iterator[None]:
    """A running engine in the tree; leaves no container, and their output if something failed."""
    seen = tree.environment(ROOT, {})
    start = " ".join(("ip link set lo up; exec dockerd", *options))
    with log.open("wb") as output:
        daemon = subprocess.Popen(tree.command(ROOT, start), env=seen, stdout=output, stderr=output)

    def run(script: str) -> bool:
        words = tree.command(ROOT, script)
        return not subprocess.run(words, env=seen, check=False, capture_output=True).returncode

    try:
        until(lambda: daemon.poll() is not None or run("docker version"), 60.0)
        if daemon.poll() is not None or not run("docker version"):
            raise Failed(f"Docker does not start here; {end_of(log)}")
        yield
    except BaseException:
        run("docker compose logs --no-color --timestamps >/root/containers.log 2>&1")
        raise
    finally:
        run("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes")
        run("kill $(cat /run/docker.pid)")
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(30)
        daemon.kill()  # what runs inside ends with the tree
        daemon.wait()
