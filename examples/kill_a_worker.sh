#!/usr/bin/env bash
# Shows that an answer survives the death of a worker process: the same request twice, the second time
# with kill -9 of one worker in the middle, and the two answers compared byte for byte.
#
#   ./run &                      # or: build/bin/troupe serve config/local.yaml
#   examples/kill_a_worker.sh [BASE_URL] [NODE] [SIGNAL]
set -euo pipefail

url=${1:-http://127.0.0.1:8000}
node=${2:-2}
signal=${3:-KILL}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

field() { # field NAME: the number behind "NAME": in /cluster, for the node asked about
  curl -sf "$url/cluster" | tr -d ' \n' | sed "s/.*\"node\":$node,//" | grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2
}

ask() { # sixteen streams at once, so that every worker has some
  local file=$1 stream
  for stream in $(seq 16); do
    curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -d "{\"prompt\": \"And it came to pass\",
      \"max_tokens\": 300, \"temperature\": 0.7, \"seed\": $stream, \"ignore_eos\": true}" |
      grep -o '"text":"[^"]*"' > "$file.$stream" &
  done
  if [[ $file == "$work/disturbed" ]]; then
    sleep 0.4
    process=$(field process)
    printf 'kill -%s %s   (the process of node %s, with 16 streams running)\n' "$signal" "$process" "$node"
    kill "-$signal" "$process"
  fi
  wait
  cat "$file".[0-9]* > "$file"
}

ask "$work/undisturbed"
ask "$work/disturbed"
printf '%s streams, %s bytes of text\n' 16 "$(wc -c < "$work/disturbed")"
cmp "$work/undisturbed" "$work/disturbed" && printf 'both answers are equal, byte for byte\n'
printf 'requests that moved to another shard: %s\n' "$(curl -sf "$url/cluster" | grep -o '"resumed": [0-9]*' | cut -d' ' -f2)"
