#!/bin/sh
# Makes .venv hold exactly the pinned packages of the requirements files named as arguments.
# With --check it installs nothing and says in one line if .venv cannot be used.
#
# Every file must have one of the hashes that stand behind its pin. HASHES=0 does not check them,
# for a package index that has built the wheels anew.
#
# Needs Python 3.11 to 3.13 and no compiler: every package comes as a wheel. On Debian, as root,
# it installs python3-venv itself. Does nothing, in a few milliseconds, if the files have not
# changed since the last installation.
set -eu

fail() { printf 'fairline: %s\n' "$1" >&2; exit 1; }
say() { printf '  %s\n' "$1"; }

root=$(pwd -P)

# Also not true for a command that ignores its arguments, such as true.
is_python() { [ "$("$1" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)" = True ]; }

find_python() {
    if [ -n "${PYTHON:-}" ] && ! is_python "$PYTHON"; then
        fail "PYTHON=$PYTHON is not Python 3.11 or newer"
    fi
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        [ -n "$candidate" ] || continue
        if is_python "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail 'Python 3.11 or newer is needed (Debian 12: apt-get install python3 python3-venv)'
}

check_owner() {
    if [ -e .venv ] && [ ! -w .venv ]; then
        fail ".venv belongs to $(stat -c %U .venv); run this as that user, or use your own clone"
    fi
}

# Two first starts at once: one installs, the other waits and then finds it done. The lock is in a
# file that only its owner can open: whoever can read a file can hold its lock. Where that cannot be
# written, there is none.
lock() {
    command -v flock >/dev/null || return 0
    if [ ! -e .venv.lock ]; then
        (umask 077 && : >.venv.lock) 2>/dev/null || return 0
        # Else the owner of the folder could install nothing any more.
        if [ "$(id -u)" = 0 ]; then chown -h "$(stat -c %u .)" .venv.lock || :; fi
    fi
    [ -w .venv.lock ] || return 0  # of another member of a group, or of a folder that is only read
    exec 9>>.venv.lock
    flock -n 9 || { say 'waiting for another installation in this folder'; flock 9; }
}

create_venv() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        package="python$version-venv"
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "installing $package, a separate package on Debian"
            install_by_apt "$package"
        else
            fail "this Python cannot create virtual environments; run: sudo apt-get install $package"
        fi
    fi
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
}

install_by_apt() {
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$1"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install $1"
    fi
    rm -f "$log"
}

install_packages() {
    file=$1 list=$1 hashes=--require-hashes
    if [ "${HASHES:-1}" = 0 ]; then
        list=.venv/unhashed/$file hashes=
        say "HASHES=0: the packages are not compared with their hashes"
    fi
    total=$(grep -c '^[A-Za-z0-9]' "$file" || true)
    say "installing $total packages of $file"
    log=.venv/install.log
    : >"$log" || fail "cannot write $log"
    # Wheels only: building one would need a compiler, and fail late with pages of its output.
    # The pipe would swallow the exit status.
    { .venv/bin/python -m pip install --disable-pip-version-check --no-input \
        --only-binary=:all: --progress-bar off $hashes -r "$list" 2>&1 &&
        echo ok >.venv/.installed || rm -f .venv/.installed; } |
        tee "$log" |
        awk '
            /^(Collecting|Processing) / && !seen[$2]++ { n++; if (n % 10 == 0) { print "    " n " collected"; fflush() } }
            /^Installing collected/ { print "    unpacking"; fflush() }'
    [ -e .venv/.installed ] || explain_failure "$log" "$file"
    rm -f .venv/.installed
}

# Why pip failed and what to do about it; never returns.
explain_failure() {
    log=$1 file=$2
    if grep -q 'No space left on device' "$log" || ! echo >>"$log"; then
        fail "pip could not install $file: the disk is full. Free some space (the packages take 1 GB) and run the same command again"
    fi
    package=$(sed -n '/DO NOT MATCH THE HASHES/ { n; s/^ *\([^ ]*\) from .*/\1/p; }' "$log" | tail -n 1)
    if [ -n "$package" ]; then
        fail "pip refused $package: what it downloaded is not a file that $file has the hash of. Either it was damaged on the way (run the same command again), or somebody has changed it, or your package index has built it anew: if you trust that index, HASHES=0 installs without the check (make up HASHES=0); pip's output is in $log"
    fi
    if grep -qF 'Hashes are required in --require-hashes mode' "$log"; then
        fail "$file has a pin without hashes: run 'make hashes'; pip's output is in $log"
    fi
    # The package that pip found no wheel of, and what it says it found instead.
    package=$(sed -n 's/^ERROR: No matching distribution found for \([^ ]*\).*/\1/p' "$log" | tail -n 1)
    if [ -z "$package" ]; then
        tail -n 20 "$log" >&2
        fail "pip could not install $file; all of its output is in $log"
    fi
    # pip does not tell an index that does not answer from one that does not have the package,
    # but it notes every connection that it tried again.
    if grep -q 'connection broken by' "$log" && grep -qF '(from versions: none)' "$log"; then
        fail "pip could not download $package: the package index does not respond. Check the network, or set a mirror or proxy (PIP_INDEX_URL, PIP_PROXY, PIP_CERT), and run the same command again; pip's output is in $log"
    fi
    if grep -qF "(from versions: none)" "$log"; then
        fail "pip could not install $package: the package index does not have it, or has no wheel of it for $(.venv/bin/python --version) on $(uname -m). Check its name in $file and the index (PIP_INDEX_URL); pip's output is in $log"
    fi
    fail "pip could not install $package: the package index has no wheel of this version for $(.venv/bin/python --version) on $(uname -m). Use Python 3.11, 3.12 or 3.13 (rm -r .venv; PYTHON=python3.11 make up), or an index that has it (PIP_INDEX_URL); pip's output is in $log"
}

venv_runs() { .venv/bin/python -c '' 2>/dev/null; }

if [ "${1:-}" = --check ]; then
    # Without its stamp an installation was cut short; it may have got far enough all the same.
    if ! venv_runs || { [ ! -e .venv/.requirements.txt.sha256 ] &&
        ! .venv/bin/python -c 'import app.stack.__main__' 2>/dev/null; }; then
        fail '.venv is missing or incomplete; `make up` installs it and starts the stack'
    fi
    exit 0
fi

[ -e "${1:-}" ] || fail "${1:-no requirements file} is missing"
check_owner
lock

# Commands in .venv carry its address: one that was moved or half made is useless, and so is one
# whose Python was removed.
if ! venv_runs || ! head -n 3 .venv/bin/pip 2>/dev/null | grep -qF "$root/.venv/"; then
    create_venv
fi

if [ "${HASHES:-1}" = 0 ]; then
    mkdir -p .venv/unhashed
    for file in "$@"; do sed 's/ --hash=[^ ]*//g' "$file" >".venv/unhashed/$file"; done
fi

for file in "$@"; do
    [ -e "$file" ] || fail "$file is missing"
    stamp=.venv/.$(basename "$file").sha256
    if [ "$(sha256sum <"$file")" != "$(cat "$stamp" 2>/dev/null || true)" ]; then
        rm -f "$stamp"  # if this is cut short, nothing must pass for installed
        install_packages "$file"
        sha256sum <"$file" >"$stamp.new"
        mv "$stamp.new" "$stamp"
    fi
done
