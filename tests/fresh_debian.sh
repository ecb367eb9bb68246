#!/usr/bin/env bash
# Proves that a clean clone works on a bare Debian 12: makes one with debootstrap and runs the project in it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm

usage() {
  cat <<'TEXT'
usage: tests/fresh_debian.sh [--worktree] [setup|check|run] [DIR]

As root: makes a bare Debian 12 in DIR, puts a clone of this repository's HEAD into it, and there, with
nothing else of this machine,

  setup   installs the packages and configures the build (minutes)
  check   runs ./check (the default)
  run     starts ./run, waits for it to serve, asks one completion, stops it (tests/smoke_run.sh)

  --worktree   copy the working tree as it is, uncommitted changes included, instead of a clone
  --help       this text

Without DIR a temporary directory is used and removed. A DIR that is given is kept; when it holds a Debian
already, that is used again. The package mirror and its settings (proxy, certificates, name servers) are
those of this machine. Mounts live in a namespace of their own and vanish with the process.
TEXT
}

say() { printf 'fresh-debian: %s\n' "$*"; }
die() { printf 'fresh-debian: error: %s\n' "$*" >&2; exit 1; }

# The first mirror that this machine's package manager uses for the suite.
mirror() {
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -f $file ]] || continue
    awk -v suite=$suite '
      $1 == "deb" {
        i = 2
        if ($2 ~ /^\[/) { while ($i !~ /\]$/) i++; i++ }
        if ($(i + 1) == suite) { print $i; exit }
      }' "$file"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f $file ]] || continue
    awk -v suite=$suite '
      function flush() { if (found && uri != "") { print uri; done = 1 } found = 0; uri = "" }
      done { next }
      /^[[:space:]]*$/ { flush() }
      $1 == "URIs:" { uri = $2 }
      $1 == "Suites:" { for (i = 2; i <= NF; i++) if ($i == suite) found = 1 }
      END { if (!done) flush() }' "$file"
  done
}

make_debian() {
  if [[ -f $target/etc/debian_version ]]; then
    say "using the Debian $(< "$target/etc/debian_version") that is in $target"
    return
  fi
  local from
  from=$(mirror | head -n 1)
  [[ -n $from ]] || die "no mirror of $suite in /etc/apt/sources.list*; this test needs a machine that has one"
  local PROXY=''
  eval "$(apt-config shell PROXY Acquire::http::Proxy)"
  if [[ -n $PROXY ]]; then export http_proxy=$PROXY; fi
  say "making a bare Debian in $target"
  debootstrap --variant=minbase "$suite" "$target" "$from" > "$target.log" 2>&1 || {
    tail -n 20 "$target.log" >&2
    die "debootstrap failed, see above"
  }
  rm -f "$target.log"
}

# How to reach mirrors from here: sources of the suite, transport settings, names, extra certificates.
copy_network_settings() {
  local file
  cp /etc/resolv.conf "$target/etc/resolv.conf"
  rm -f "$target/etc/apt/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if [[ -f $file ]] && grep -qE "^[^#]*[[:space:]]$suite(-updates|-security)?([[:space:]]|$)" "$file"; then
      cp "$file" "$target${file}"
    fi
  done
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    if [[ -f $file ]] && grep -q '^[^#/]*Acquire::' "$file"; then cp "$file" "$target${file}"; fi
  done
  if [[ -d /usr/local/share/ca-certificates ]]; then
    mkdir -p "$target/usr/local/share"
    cp -r /usr/local/share/ca-certificates "$target/usr/local/share/"
  fi
}

copy_project() {
  rm -rf "$target/srv/troupe"
  mkdir -p "$target/srv"
  if [[ $worktree == yes ]]; then
    mkdir "$target/srv/troupe"
    git -C "$root" ls-files -z --cached --others --exclude-standard |
      (cd "$root" && xargs -0 -r ls -d 2> /dev/null | tar -c --no-recursion -T - -f -) | tar -C "$target/srv/troupe" -xf -
    git -C "$target/srv/troupe" init -q
  else
    git clone --quiet --no-hardlinks "$root" "$target/srv/troupe"
  fi
}

# Runs inside the namespaces that `main` makes.
inside() {
  trap 'umount --recursive "$target/dev" "$target/proc" "$target/sys" 2> /dev/null || true' EXIT
  mount -t proc proc "$target/proc"
  mount -t sysfs -o ro sysfs "$target/sys"
  mount -t tmpfs -o mode=755 tmpfs "$target/dev"
  cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$target/dev/"
  ln -s /proc/self/fd "$target/dev/fd"
  mkdir "$target/dev/shm"
  mount -t tmpfs tmpfs "$target/dev/shm"

  local command
  case $mode in
    setup) command='./setup.sh build && cmake --preset release' ;;
    check) command='./check' ;;
    run) command='./setup.sh build && tests/smoke_run.sh' ;;
  esac
  say "in the new Debian: $command"
  env -i HOME=/root LANG=C.UTF-8 CI=true TERM="${TERM:-dumb}" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    ${no_proxy:+no_proxy="$no_proxy"} \
    chroot "$target" bash -c "cd /srv/troupe && $command" < /dev/null
}

main() {
  [[ $(id -u) -eq 0 ]] || die "needs root: debootstrap and chroot do"
  "$root/setup.sh" fresh
  local code=0
  if [[ -z $target ]]; then
    target=$(mktemp -d /var/tmp/fresh-debian.XXXXXX)
    chmod 755 "$target"
    trap 'rm -rf --one-file-system "$target" "$target.log"' EXIT
  else
    mkdir -p "$target"
    target=$(cd "$target" && pwd)
  fi
  make_debian
  copy_network_settings
  copy_project
  unshare --mount --propagation private --pid --fork --kill-child \
    "${BASH_SOURCE[0]}" --inside "$mode" "$target" || code=$?
  if [[ $code -eq 0 ]]; then say "$mode: ok"; else say "$mode: FAILED ($code)"; fi
  return $code
}

mode=check
target=
worktree=no
entry=main
while [[ $# -gt 0 ]]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --worktree) worktree=yes ;;
    --inside) entry=inside ;;
    setup | check | run) mode=$1 ;;
    -*) usage >&2; die "unknown option '$1'" ;;
    *)
      [[ -z $target ]] || die "more than one directory: '$target' and '$1'"
      target=$1
      ;;
  esac
  shift
done
$entry
