# Sourced by the other scripts: makes sure that what they need is there, says what it does on standard error, and stops with a clear sentence
# when it cannot go on. Changes nothing when everything is there already.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$PATH:/usr/sbin # where Debian has servers

step() { printf '>> %s\n' "$*" >&2; }

stop() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 3
}

have() { command -v "$1" >/dev/null 2>&1; }

# try_install PACKAGE...: installs Debian packages when this user may. Quiet, because apt talks a lot; its complaint is shown.
try_install() {
    local as=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
    have apt-get || return 1
    if [ "$(id -u)" != 0 ]; then
        have sudo && sudo -n true 2>/dev/null || return 1
        as=(sudo -n "${as[@]}")
    fi
    step "installing $* (apt-get)"
    "${as[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    "${as[@]}" update >/dev/null || return 1
    "${as[@]}" install -y --no-install-recommends "$@" >/dev/null
}

# need PROGRAM PACKAGE...
need() {
    have "$1" || { try_install "${@:2}" && have "$1"; } ||
        stop "no '$1' found and it could not be installed (Debian: apt-get install ${*:2})"
}

# need_rust COMPONENT...: cargo, new enough for the workspace, with these parts of the toolchain, and what the build scripts of
# dependencies call: a C compiler, git (glommio), and cmake, make and nasm (libjpeg-turbo).
need_rust() {
    local wanted found part
    need cc gcc libc6-dev
    need git git
    need cmake cmake
    need make make # cmake only recommends it
    [ "$(uname -m)" != x86_64 ] || have nasm || try_install nasm || step "there is no nasm: JPEGs will be decoded without SIMD, slowly"
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    have cargo || stop "no 'cargo' found; install Rust $wanted or newer (https://rustup.rs)"
    found=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n1)" != "$wanted" ]; then
        stop "Rust $found is too old, $wanted is needed; run 'rustup update' or install a newer toolchain"
    fi
    for part in "$@"; do
        cargo "$part" --version >/dev/null 2>&1 || { have rustup && rustup component add "${part/#fmt/rustfmt}" >&2; } ||
            stop "'cargo $part' is missing and could not be added; install the $part that belongs to Rust $found"
    done
}
