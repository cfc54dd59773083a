# Sourced by scripts/test and scripts/demo: makes sure that what they need is there, says what it does, and stops with a
# clear sentence when it cannot go on. Needs bash; changes nothing when everything is there already.

step() { printf '>> %s\n' "$*"; }

stop() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 3
}

have() { command -v "$1" >/dev/null 2>&1; }

# try_install PACKAGE...: installs Debian packages when this user may. Quiet, because apt talks a lot; its complaint is shown.
try_install() {
    local as=()
    have apt-get || return 1
    if [ "$(id -u)" != 0 ]; then
        have sudo && sudo -n true 2>/dev/null || return 1
        as=(sudo -n)
    fi
    step "installing $* (apt-get)"
    local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
    "${as[@]}" "${quiet[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    "${as[@]}" "${quiet[@]}" update >/dev/null || return 1
    "${as[@]}" "${quiet[@]}" install -y --no-install-recommends "$@" >/dev/null
}

need_compiler() {
    if ! have cc; then
        try_install gcc libc6-dev && have cc ||
            stop "no C compiler 'cc' found and it could not be installed; install gcc (Debian: apt-get install gcc libc6-dev)"
    fi
}

# The build script of one dependency (glommio) calls git, and fails without it.
need_git() {
    if ! have git; then
        try_install git && have git || stop "no 'git' found and it could not be installed; install git (Debian: apt-get install git)"
    fi
}

# need_rust ROOT COMPONENT...: cargo, new enough for the workspace, with these parts of the toolchain.
need_rust() {
    local root=$1 wanted found part
    shift
    if ! have cargo && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    have cargo || stop "no 'cargo' found; install Rust $wanted or newer (https://rustup.rs)"
    found=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n1)" != "$wanted" ]; then
        stop "Rust $found is too old, $wanted is needed; run 'rustup update' or install a newer toolchain"
    fi
    for part in "$@"; do
        if ! "cargo-$part" --version >/dev/null 2>&1 && ! cargo "$part" --version >/dev/null 2>&1; then
            step "adding $part to the toolchain (rustup)"
            { have rustup && rustup component add "$part"; } ||
                stop "'cargo $part' is missing and could not be added; install the $part that belongs to Rust $found"
        fi
    done
}
