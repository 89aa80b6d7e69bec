#!/bin/sh
# Makes .venv hold exactly the pinned packages of the requirements files named as arguments.
#
# Needs Python 3.11 and nothing else; on Debian it fetches the missing piece of Python itself
# when it may. Does nothing, in a few milliseconds, if the files have not changed since.
set -eu

fail() { printf 'fairline: %s\n' "$1" >&2; exit 1; }
say() { printf '  %s\n' "$1"; }

root=$(pwd -P)

find_python() {
    for candidate in "${PYTHON:-}" python3.11 python3 python3.12 python3.13; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail 'Python 3.11 or newer is needed (Debian 12: apt-get install python3)'
}

create_venv() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        package="python$version-venv"
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "installing $package, which Debian keeps apart from Python"
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
    file=$1
    total=$(grep -c '^[A-Za-z0-9]' "$file" || true)
    say "installing $total packages of $file"
    log=.venv/install.log
    # The pipe would swallow the exit status.
    { .venv/bin/python -m pip install --disable-pip-version-check --no-input \
        --progress-bar off -r "$file" 2>&1 && echo ok >.venv/.installed || rm -f .venv/.installed; } |
        tee "$log" |
        awk -v total="$total" '
            /^(Collecting|Processing) / && !seen[$2]++ { n++; if (n % 10 == 0) { print "    " n " collected"; fflush() } }
            /^Installing collected/ { print "    unpacking"; fflush() }'
    if [ ! -e .venv/.installed ]; then
        tail -n 20 "$log" >&2
        fail "pip could not install $file; all of its output is in $log"
    fi
    rm -f .venv/.installed
}

# Commands in .venv carry its address: one that was moved or half made is useless.
if ! head -n 3 .venv/bin/pip 2>/dev/null | grep -qF "$root/.venv/"; then
    create_venv
fi

for file in "$@"; do
    [ -e "$file" ] || fail "$file is missing"
    stamp=.venv/.$(basename "$file").sha256
    if [ "$(sha256sum <"$file")" != "$(cat "$stamp" 2>/dev/null || true)" ]; then
        install_packages "$file"
        sha256sum <"$file" >"$stamp"
    fi
done
