#!/usr/bin/env bash
# Starts a server and lets the official `openai` package talk to it.
#
# Exit codes: 0 all checks hold; 1 one does not, or the server did not come up; 2 wrong usage;
# 77 skipped, because Python or the package cannot be had here.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: run_openai_client.sh TROUPE_BINARY CONFIG [ARGUMENT...]

Runs `TROUPE_BINARY serve CONFIG --port 0 --port-file FILE ARGUMENT...`, waits until it is ready, runs
openai_client.py against it and stops it.

environment
  TROUPE_OPENAI_VENV   where the Python environment is kept (default: troupe/openai-venv in the user's cache)
  TROUPE_READY_S       seconds the server may take to start (default: 120)
  TROUPE_API_KEY       the server's API key, where CONFIG sets one
TEXT
}

if [[ $# -lt 2 || $1 == --help || $1 == -h ]]; then
  usage
  [[ ${1:-} == --help || ${1:-} == -h ]] && exit 0
  exit 2
fi
troupe=$1
config=$2
shift 2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
openai_version=3.57.0
ready_s=${TROUPE_READY_S:-120}
venv=${TROUPE_OPENAI_VENV:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/troupe/openai-venv}

skip() { printf 'skipped: %s\n' "$*"; exit 77; }

# A half-made environment is made again: the marker is written last.
prepare_venv() {
  local marker=$venv/openai-$openai_version.ok
  if [[ -e $marker ]]; then return; fi
  command -v python3 > /dev/null || skip "python3 is not installed"
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv" > /dev/null 2>&1 || skip "python3 cannot make a virtual environment (python3-venv is missing?)"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "openai==$openai_version" ||
    skip "openai $openai_version cannot be installed; is there a network?"
  touch "$marker"
}
prepare_venv

scratch=$(mktemp -d)
server=
finish() {
  local code=$?
  trap - EXIT
  if [[ -n $server ]] && kill -0 "$server" 2> /dev/null; then
    kill -TERM "$server"
    for _ in $(seq 100); do
      kill -0 "$server" 2> /dev/null || break
      sleep 0.1
    done
    if kill -KILL "$server" 2> /dev/null; then
      echo "the server did not stop within 10 s of SIGTERM" >&2
      [[ $code -ne 0 ]] || code=1
    fi
  fi
  if [[ $code -ne 0 && -s $scratch/log ]]; then
    echo "--- the end of the server's output" >&2
    tail -n 40 "$scratch/log" >&2
  fi
  rm -rf "$scratch"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

"$troupe" serve "$config" --port 0 --port-file "$scratch/port" "$@" > "$scratch/log" 2>&1 &
server=$!

deadline=$((SECONDS + ready_s))
until [[ -s $scratch/port ]]; do
  if ! kill -0 "$server" 2> /dev/null; then
    echo "the server ended before it was ready" >&2
    exit 1
  fi
  if ((SECONDS >= deadline)); then
    echo "the server was not ready within $ready_s s" >&2
    exit 1
  fi
  sleep 0.1
done

port=$(< "$scratch/port")
"$venv/bin/python" "$here/openai_client.py" --base-url "http://127.0.0.1:$port/v1" --api-key "${TROUPE_API_KEY:-}"
