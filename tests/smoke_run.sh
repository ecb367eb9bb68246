#!/usr/bin/env bash
# Starts ./run as a user would, waits until it serves, asks for one completion and stops it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: tests/smoke_run.sh [URL]

URL is where config/local.yaml makes the API server listen (default: http://127.0.0.1:8000).
SMOKE_TIMEOUT_S in the environment bounds the wait for a first answer, the build included (default: 1200).
TEXT
}

say() { printf 'smoke: %s\n' "$*"; }
die() { printf 'smoke: error: %s\n' "$*" >&2; exit 1; }

case ${1:-} in
  --help | -h) usage; exit 0 ;;
esac
url=${1:-http://127.0.0.1:8000}
timeout_s=${SMOKE_TIMEOUT_S:-1200}

ask() { curl --silent --show-error --fail --noproxy '*' --max-time 60 "$@"; }

if ask --output /dev/null "$url/health" 2> /dev/null; then die "something serves at $url already"; fi

log=$(mktemp)
./run > "$log" 2>&1 < /dev/null &
server=$!
# shellcheck disable=SC2317  # called by the trap
stop() {
  kill -TERM "$server" 2> /dev/null || true
  rm -f "$log"
}
trap stop EXIT

say "waiting for $url/health, at most $timeout_s s"
until ask --output /dev/null "$url/health" 2> /dev/null; do
  if ! kill -0 "$server" 2> /dev/null; then
    cat "$log" >&2
    die "./run ended before it served"
  fi
  if [[ $SECONDS -gt $timeout_s ]]; then
    tail -n 50 "$log" >&2
    die "no answer within $timeout_s s"
  fi
  sleep 1
done
say "serving after $SECONDS s"

model=$(ask "$url/v1/models" | sed -n 's/.*"id"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' | head -n 1)
[[ -n $model ]] || die "$url/v1/models names no model"
answer=$(ask -H 'Content-Type: application/json' "$url/v1/completions" \
  --data "{\"model\": \"$model\", \"prompt\": \"In the beginning\", \"max_tokens\": 8, \"temperature\": 0}")
grep -q '"text"' <<< "$answer" || die "the completion has no text: $answer"
say "completion: $answer"

kill -TERM "$server"
code=0
for _ in $(seq 30); do
  kill -0 "$server" 2> /dev/null || break
  sleep 1
done
if kill -0 "$server" 2> /dev/null; then
  kill -KILL "$server"
  die "still running 30 s after SIGTERM"
fi
wait "$server" || code=$?
# 143 is the signal itself: a server that sets no handler of its own.
[[ $code -eq 0 || $code -eq 143 ]] || { tail -n 30 "$log" >&2; die "exit code $code after SIGTERM"; }
say "stopped cleanly"
