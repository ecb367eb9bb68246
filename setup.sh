#!/usr/bin/env bash
# Installs the Debian packages that the project needs (tools/packages.txt), if any is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
list=$root/tools/packages.txt

usage() {
  cat <<'TEXT'
usage: ./setup.sh [--list] [GROUP...]

Installs the packages of the named groups that are missing; without a name, group `build`. Groups are
build, test, full and fresh; tools/packages.txt lists them with what each package is for. Needs root, or sudo,
only when something is missing.

  --list   print what is missing and install nothing
  --help   this text

TROUPE_NO_SETUP=1 in the environment makes this script do nothing, for other distributions and for
machines where the packages come from elsewhere.
TEXT
}

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

list_only=no
groups=()
for argument in "$@"; do
  case $argument in
    --help | -h) usage; exit 0 ;;
    --list) list_only=yes ;;
    build | test | full | fresh) groups+=("$argument") ;;
    *) usage >&2; die "unknown argument '$argument'" ;;
  esac
done
[[ ${#groups[@]} -gt 0 ]] || groups=(build)

if [[ ${TROUPE_NO_SETUP:-} == 1 ]]; then
  say "TROUPE_NO_SETUP=1, leaving packages alone"
  exit 0
fi
if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  die "this is not a Debian-like system. Install what tools/packages.txt lists by your own means, then set TROUPE_NO_SETUP=1."
fi

wanted=()
while read -r group package _; do
  case $group in '' | '#'*) continue ;; esac
  for asked in "${groups[@]}"; do
    if [[ $asked == "$group" ]]; then wanted+=("$package"); fi
  done
done < "$list"

# One query for all; a package that dpkg has never heard of is on stderr and missing from stdout.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2> /dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF "installed $package" <<< "$installed" || missing+=("$package")
done

if [[ ${#missing[@]} -eq 0 ]]; then
  say "all ${#wanted[@]} packages of ${groups[*]} are installed"
  exit 0
fi
if [[ $list_only == yes ]]; then
  printf '%s\n' "${missing[@]}"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null ||
    die "missing packages, and neither root nor sudo to install them. As root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" < /dev/null
}

update() {
  say "refreshing the package lists"
  apt update || die "apt-get update failed: is the network reachable, and are /etc/apt/sources.list* right?"
}

# Lists may be absent (a fresh image) or older than what the mirror holds.
updated=no
for package in "${missing[@]}"; do
  if [[ -z $(apt-cache madison "$package" 2> /dev/null) ]]; then
    update
    updated=yes
    break
  fi
done

say "installing ${missing[*]}"
if ! apt install --no-install-recommends "${missing[@]}"; then
  [[ $updated == no ]] || die "apt-get install failed, see above"
  update
  apt install --no-install-recommends "${missing[@]}" || die "apt-get install failed, see above"
fi
say "installed ${#missing[@]} packages"
