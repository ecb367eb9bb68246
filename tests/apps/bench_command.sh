#!/usr/bin/env bash
# `troupe bench` as a user runs it: usage: bench_command.sh TROUPE
source "$(dirname "${BASH_SOURCE[0]}")/command.sh" bench "$1"

small='--model examples/tiny-moe --runs 1 --prompts 20 --batches 3 --context 40'
for profile in f32 auto; do
  expect 0 'decode batch 3 ' $small --profile $profile --threads 2
  expect 0 'experts ' $small --profile $profile --operators
done
# Every operator that reads weights is told with its bytes: a dash stands only where there are none.
for name in 'q_a, kv_a' 'absorb keys' attention 'absorb values' o router experts 'shared down' head; do
  grep -qE "^$name +[0-9]+ .* [0-9]+%$" "$scratch/out" || fail "there is no limit for $name: $(cat "$scratch/out")"
done
grep -qE '^limits: a plain reader of the same bytes, [0-9.]+ GB/s; registers, [0-9]+ GFLOP/s$' "$scratch/out" ||
  fail "the limits are not told: $(cat "$scratch/out")"
expect 2 'no-such-model' --model no-such-model
expect 2 'batches' --model examples/tiny-moe --batches 0
