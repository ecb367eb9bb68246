#!/usr/bin/env bash
# Builds CAF from the distribution's source package with ThreadSanitizer, for the `tsan` preset.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

usage() {
  cat <<'TEXT'
usage: tools/build_tsan_caf.sh [--jobs N] [--force]

ThreadSanitizer reports falsely about code that is not compiled with it. This fetches the source package of
the CAF version that is installed, applies the distribution's patches, compiles core, io and openssl with
-fsanitize=thread and installs them in build-tsan-caf/install, which the `tsan` preset uses. The package
manager's own configuration stays untouched: source entries are derived from it in a private copy. Does
nothing when that was done before for this version.

  --jobs N   compile N files at a time (default: the number of cores)
  --force    build again
TEXT
}

say() { printf 'tsan-caf: %s\n' "$*"; }
die() { printf 'tsan-caf: error: %s\n' "$*" >&2; exit 1; }

jobs=$(nproc)
force=no
while [[ $# -gt 0 ]]; do
  case $1 in
    --jobs)
      [[ $# -ge 2 && $2 =~ ^[1-9][0-9]*$ ]] || die "--jobs needs a number"
      jobs=$2
      shift
      ;;
    --force) force=yes ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$1'" ;;
  esac
  shift
done

version=$(dpkg-query -W -f '${source:Version}' libcaf-dev 2> /dev/null) || die "libcaf-dev is not installed; run ./setup.sh"
source_package=$(dpkg-query -W -f '${source:Package}' libcaf-dev)
base=$root/build-tsan-caf
stamp=$base/install/.version
if [[ $force == no && -f $stamp && $(< "$stamp") == "$version" ]]; then
  say "version $version is built already"
  exit 0
fi

rm -rf "$base"
mkdir -p "$base/apt/lists/partial" "$base/apt/sources.d" "$base/source"

# Source entries out of the binary ones, in both formats that the package manager knows.
derive_sources() {
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -f $file ]] || continue
    sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$file"
  done > "$base/apt/sources.list"
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f $file ]] || continue
    # Only the distribution's own entries, where CAF is; others may have no sources at all.
    sed 's/^Types:.*/Types: deb-src/' "$file" > "$base/apt/sources.d/$(basename "$file")"
  done
}

apt_here() {
  apt-get -q \
    -o Dir::Etc::SourceList="$base/apt/sources.list" \
    -o Dir::Etc::SourceParts="$base/apt/sources.d" \
    -o Dir::State::Lists="$base/apt/lists" \
    -o Dir::Cache="$base/apt" \
    -o APT::Sandbox::User=root \
    "$@" < /dev/null
}

say "fetching the source of $source_package $version"
derive_sources
# Other repositories than the distribution's may lack sources; what counts is whether CAF's are found.
apt_here update > "$base/apt/update.log" 2>&1 || true
fetch() { (cd "$base/source" && apt_here source "$@" "$source_package=$version" >> "$base/apt/source.log" 2>&1); }
if ! fetch; then
  # Some mirrors lack the small archive of the distribution's patches. They concern packaging, not the code's
  # behaviour, and the preset compiles against this build's own headers, so the original source will do.
  say "the whole source package cannot be had, trying its original archive alone"
  if ! fetch --tar-only; then
    cat "$base/apt/update.log" "$base/apt/source.log" >&2
    die "cannot fetch $source_package $version: does the mirror in /etc/apt/sources.list* carry source packages?"
  fi
  tar -C "$base/source" -xf "$base/source/${source_package}_"*.orig.tar.*
fi
tree=$(find "$base/source" -mindepth 1 -maxdepth 1 -type d | head -n 1)
[[ -n $tree ]] || die "the source package unpacked to nothing"
# One header relies on another to include <limits>; newer compilers do not oblige (one of the patches).
header=$tree/libcaf_io/caf/io/network/receive_buffer.hpp
grep -q '<limits>' "$header" || sed -i '0,/#include/s//#include <limits>\n#include/' "$header"

say "configuring $(basename "$tree")"
launcher=()
if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
if ! cmake -S "$tree" -B "$base/build" -G Ninja \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS="-fsanitize=thread -fno-omit-frame-pointer -O1 -g1 -w" \
  -DCMAKE_EXE_LINKER_FLAGS=-fsanitize=thread -DCMAKE_SHARED_LINKER_FLAGS=-fsanitize=thread \
  -DCMAKE_INSTALL_PREFIX="$base/install" -DCMAKE_INSTALL_LIBDIR=lib \
  -DCAF_NO_UNIT_TESTS=yes -DCAF_NO_EXAMPLES=yes -DCAF_NO_TOOLS=yes -DCAF_NO_PYTHON=yes -DCAF_NO_OPENCL=yes \
  "${launcher[@]}" > "$base/configure.log" 2>&1; then
  cat "$base/configure.log" >&2
  die "configuring CAF failed"
fi
say "compiling (several minutes)"
cmake --build "$base/build" -j "$jobs"
cmake --install "$base/build" > "$base/install.log"
rm -rf "$base/build" "$base/apt"
printf '%s\n' "$version" > "$stamp"
say "installed in build-tsan-caf/install"
