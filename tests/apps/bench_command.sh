#!/usr/bin/env bash
# `troupe bench` as a user runs it: usage: bench_command.sh TROUPE
set -euo pipefail

troupe=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { printf 'bench_command: %s\n' "$*" >&2; exit 1; }

# expect CODE TEXT ARGUMENT...: the exit code, and a text in what is printed.
expect() {
  local code=$1 text=$2 got=0
  shift 2
  "$troupe" bench "$@" > "$scratch/out" 2>&1 || got=$?
  [[ $got == "$code" ]] || fail "bench $* ended with $got, not $code: $(cat "$scratch/out")"
  grep -qE -- "$text" "$scratch/out" || fail "bench $* does not say '$text': $(cat "$scratch/out")"
}

small='--model examples/tiny-moe --runs 1 --prompts 20 --batches 3 --context 40'
for profile in f32 auto; do
  expect 0 '^decode batch 3 +[0-9.]+' $small --profile $profile --threads 2
  expect 0 '^expert down +[0-9]+ +[0-9.]+ +[0-9.]+% +[0-9.]+ ' $small --profile $profile --operators
done
# Every operator that reads weights is told with its bytes: a dash stands only where there are none.
for name in 'q_a, kv_a' 'absorb keys' attention 'absorb values' o router 'expert gate, up' 'shared down' head; do
  grep -qE "^$name +[0-9]+ .* [0-9]+%$" "$scratch/out" || fail "there is no limit for $name: $(cat "$scratch/out")"
done
grep -qE '^limits: a plain reader of the same bytes, [0-9.]+ GB/s; registers, [0-9]+ GFLOP/s$' "$scratch/out" ||
  fail "the limits are not told: $(cat "$scratch/out")"
expect 2 'no-such-model' --model no-such-model
expect 2 'batches' --model examples/tiny-moe --batches 0
