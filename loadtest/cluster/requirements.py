"""What a cluster needs on this machine: root, Debian packages, and Patroni from PyPI."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from app.stack.screen import Screen
from app.stack.spec import PROJECT_ROOT, StackError

#: Commands, and the Debian packages that they are in.
NEEDED = {
    "ip": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "haproxy": "haproxy",
}
REQUIREMENTS = PROJECT_ROOT / "requirements-cluster.txt"
PINNED = re.compile(r"^[A-Za-z]\S+==\S+", re.M)


def missing() -> str:
    """What this machine lacks, if something."""
    if os.geteuid():
        return "a cluster makes network namespaces: run it as root"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    absent = {package for name, package in NEEDED.items() if not shutil.which(name, path=path)}
    if absent:
        return f"missing: apt-get install {' '.join(sorted(absent))}"
    if subprocess.run(
        ("unshare", "--mount", "--net", "--pid", "--fork", "true"), check=False
    ).returncode:
        return "this machine does not let root make namespaces"
    return ""


def patroni(screen: Screen) -> Path:
    """Where Patroni is installed: an environment of its own, kept between runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairline-cluster")
    cache.mkdir(parents=True, exist_ok=True, mode=0o755)
    environment, made = cache / "venv", cache / "made"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != wanted:
            with screen.step("Patroni, from PyPI"):
                made.unlink(missing_ok=True)
                shutil.rmtree(environment, ignore_errors=True)
                install(environment)
                made.write_text(wanted)
    return environment


def install(environment: Path) -> None:
    """Make the environment; HASHES=0: for an index that has built the packages anew."""
    pip = (str(environment / "bin/pip"), "install", "--quiet")
    checked = ("--require-hashes", "--requirement", str(REQUIREMENTS))
    if os.environ.get("HASHES") == "0":
        checked = tuple(PINNED.findall(REQUIREMENTS.read_text()))
    for words in ((sys.executable, "-m", "venv", str(environment)), (*pip, *checked)):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"Patroni cannot be installed:\n{done.stdout}{done.stderr}")
