#!/usr/bin/env bash
# `troupe place` as a user runs it: usage: place_command.sh TROUPE
source "$(dirname "${BASH_SOURCE[0]}")/command.sh" place "$1"

small=log_normal:layers=3,experts=32,windows=3,rows_per_token=4
expect 0 'policy' --topology this_machine --load "$small"
expect 0 'search' --list-policies
expect 0 '"balance_mean"' --topology this_machine --load "$small" --policy eplb --json
expect 0 'eplb,1,' --topology this_machine --load "$small" --policy eplb --csv
expect 0 'exit code 4' --topology this_machine --load "$small" --policy 'program:exit 4'
near='program:python3 examples/policy/near_sources.py'
expect 0 'near the 8 shards' --topology this_machine --load "${small/windows=3/windows=3,sources=8}" --policy "$near" --json
expect 0 'near the 0 shards' --topology this_machine --load "$small" --policy "$near" --json
expect 2 "did you mean 'eplb'" --policy elpb
expect 2 'no topology file' --topology nowhere
expect 2 'fewer than the 256 experts' --topology this_machine --load log_normal:windows=2
expect 2 'no load file' --load "$scratch/none.csv"

# What is written comes back: a load in both forms, a map for `static`, one heat map for each policy.
for ending in csv load; do
  expect 0 'eplb' --topology this_machine --load "$small" --policy eplb --save-load "$scratch/saved.$ending"
  expect 0 'eplb' --topology this_machine --load "$scratch/saved.$ending" --policy eplb
done
expect 0 'eplb' --topology this_machine --load "$small" --policy eplb --save-map "$scratch/map.json"
expect 0 'static' --topology this_machine --load "$small" --policy "static:file=$scratch/map.json"
expect 0 'eplb' --topology this_machine --load "$small" --policy linear --policy eplb --heat-map "$scratch/heat.svg"
grep -q '</svg>' "$scratch/heat.0.svg" || fail 'the first heat map is missing'
grep -q '</svg>' "$scratch/heat.1.svg" || fail 'the second heat map is missing'
