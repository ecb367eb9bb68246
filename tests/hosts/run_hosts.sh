#!/usr/bin/env bash
# Three hosts on one machine: network namespaces with a slow network between them, and a node in each.
#
# Exit codes: 0 all checks hold; 1 one does not; 2 wrong usage; 77 skipped, because network namespaces
# or traffic control cannot be had here.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: run_hosts.sh TROUPE_BINARY

Makes three network namespaces, joined by a bridge in a fourth over links of TROUPE_HOSTS_RATE, and runs
`troupe serve` in the first and `troupe node --join` in the others, over UCX's tcp transport alone.
Completions must equal those of a single process, also while one host's cable is pulled; that host must
be declared dead and join again once the cable is back. Everything is removed at the end.

environment
  TROUPE_HOSTS_RATE   bandwidth of each host's link, each way, as tc takes it (default: 200mbit)
  TROUPE_READY_S      seconds the nodes may take to start, or to join again (default: 60)
TEXT
}

if [[ $# -ne 1 || $1 == --help || $1 == -h ]]; then
  usage
  [[ ${1:-} == --help || ${1:-} == -h ]] && exit 0
  exit 2
fi
troupe=$(readlink -f "$1")
model=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/examples/tiny-moe
rate=${TROUPE_HOSTS_RATE:-200mbit}
ready_s=${TROUPE_READY_S:-60}
hosts=3
join_port=7701
http_port=8001
max_tokens=240
prompts=("In the beginning" "And Moses said unto" "The LORD is my" "And it came to pass"
  "Blessed are the" "Then David arose" "Woe unto" "Behold, the days come")

say() { printf 'hosts: %s\n' "$*"; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }
fail() { printf 'hosts: error: %s\n' "$*" >&2; exit 1; }

for tool in ip tc curl; do command -v "$tool" > /dev/null || skip "$tool is not installed"; done

scratch=$(mktemp -d)
prefix=troupe-$$
bridge=$prefix-net

namespaces() { echo "$bridge"; seq -f "$prefix-%g" 0 $((hosts - 1)); }

# Whatever runs in our namespaces: nodes, and clients that still wait.
inhabitants() {
  local namespace
  for namespace in $(namespaces); do ip netns pids "$namespace" 2> /dev/null || true; done
}

# shellcheck disable=SC2317  # called by the trap
finish() {
  local code=$? left namespace
  trap - EXIT
  left=$(inhabitants)
  # shellcheck disable=SC2086  # a list of processes
  [[ -z $left ]] || kill -TERM $left 2> /dev/null || true
  for _ in $(seq 100); do
    left=$(inhabitants)
    [[ -n $left ]] || break
    sleep 0.1
  done
  # shellcheck disable=SC2086
  if [[ -n $left ]] && kill -KILL $left 2> /dev/null; then
    echo "hosts: a process did not stop within 10 s of SIGTERM" >&2
    [[ $code -ne 0 ]] || code=1
  fi
  # The links go with the namespaces that they are in.
  for namespace in $(namespaces); do ip netns delete "$namespace" 2> /dev/null || true; done
  if [[ $code -ne 0 && $code -ne 77 && $code -ne 130 ]]; then
    for log in "$scratch"/*.log; do
      [[ -s $log ]] || continue
      echo "--- the end of ${log##*/}" >&2
      tail -n 30 "$log" >&2
    done
  fi
  rm -rf "$scratch"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

address() { echo "10.77.0.$(($1 + 1))"; }
on_host() {
  local host=$1
  shift
  ip netns exec "$prefix-$host" "$@"
}
slow_down() {  # NAMESPACE DEVICE
  ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 64kb latency 5ms
}

# The bridge has a namespace of its own too, so that nothing of this machine's network is touched.
make_network() {
  ip netns add "$bridge" && ip -n "$bridge" link add switch type bridge && ip -n "$bridge" link set switch up || return
  local host
  for ((host = 0; host < hosts; ++host)); do
    ip netns add "$prefix-$host" || return
    ip -n "$bridge" link add "port$host" type veth peer name eth0 netns "$prefix-$host" || return
    ip -n "$bridge" link set "port$host" master switch up || return
    ip -n "$prefix-$host" address add "$(address $host)/24" dev eth0 || return
    ip -n "$prefix-$host" link set lo up || return
    ip -n "$prefix-$host" link set eth0 up || return
    slow_down "$bridge" "port$host" && slow_down "$prefix-$host" eth0 || return
  done
}
make_network 2> "$scratch/network" || skip "network namespaces with traffic control cannot be made: $(tail -n 1 "$scratch/network")"

cat > "$scratch/hosts.yaml" <<YAML
model: $model
nodes: $hosts
spawn_nodes: false
transports: tcp
listen: $(address 0)
join_port: $join_port
http_address: $(address 0)
http_port: $http_port
profile: f32
dispatch: f32
combine: f32
verdict_ms: 800
dispatch_deadline_ms: 500
YAML

# A node that is declared dead joins again by itself: its process lives.
start_node() {  # HOST
  on_host "$1" "$troupe" node --join "$(address 0):$join_port" --wire-host "$(address "$1")" --node "$1" \
    > "$scratch/node-$1.log" 2>&1 &
}

on_host 0 "$troupe" serve "$scratch/hosts.yaml" --port-file "$scratch/port" > "$scratch/node-0.log" 2>&1 &
head=$!
for ((host = 1; host < hosts; ++host)); do start_node $host; done

url=http://$(address 0):$http_port
ask() { on_host 0 curl --silent --show-error --fail --noproxy '*' --max-time 120 "$@"; }

wait_for() {  # SECONDS WHAT COMMAND...
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    kill -0 "$head" 2> /dev/null || fail "the head ended while waiting for $what"
    ((SECONDS < deadline)) || fail "no sign of $what in time"
    sleep 0.1
  done
}

# The JSON string after "text": both programs write JSON the same way.
text_of() { grep -oE '"text":"([^"\\]|\\.)*"' "$1" | head -n 1; }

single_process() {  # prompts one after another
  local i
  for i in "${!prompts[@]}"; do
    "$troupe" generate --model "$model" --profile f32 --json --max-tokens $max_tokens "${prompts[i]}" \
      > "$scratch/single-$i"
  done
}

# All prompts at once; the answers go to files that begin with the name given.
complete_all() {  # NAME
  local i clients=()
  for i in "${!prompts[@]}"; do
    ask -H 'Content-Type: application/json' "$url/v1/completions" --output "$scratch/$1-$i" \
      --data "{\"prompt\": \"${prompts[i]}\", \"max_tokens\": $max_tokens, \"temperature\": 0}" &
    clients+=($!)
  done
  for i in "${clients[@]}"; do wait "$i"; done
}

compare() {  # NAME
  local i
  for i in "${!prompts[@]}"; do
    [[ -n $(text_of "$scratch/single-$i") ]] || fail "one process gave no text for '${prompts[i]}'"
    [[ $(text_of "$scratch/$1-$i") == "$(text_of "$scratch/single-$i")" ]] ||
      fail "'${prompts[i]}' goes on differently over hosts ($1): $(cat "$scratch/$1-$i") instead of $(text_of "$scratch/single-$i")"
  done
}

cluster() { ask "$url/cluster" 2> /dev/null; }
counter() { cluster | grep -oE "\"$1\": *[0-9]+" | grep -oE '[0-9]+'; }
live_nodes() { cluster | grep -oE '"state": *"live"' | wc -l; }
# shellcheck disable=SC2317  # called through wait_for
nodes_are_live() { [[ $(live_nodes) -eq $1 ]]; }
# shellcheck disable=SC2317
tokens_reach() { [[ $(counter completion_tokens) -ge $1 ]]; }

single_process
wait_for "$ready_s" "the API" test -s "$scratch/port"
wait_for "$ready_s" "$hosts live nodes" nodes_are_live $hosts
say "$hosts hosts serve over $rate links after $SECONDS s"

complete_all together
compare together
say "${#prompts[@]} completions equal those of one process"

tokens=$(counter completion_tokens)
complete_all parted &
streams=$!
wait_for 60 "tokens of the streams" tokens_reach $((tokens + ${#prompts[@]} * max_tokens / 8))
ip -n "$bridge" link set port2 down
pulled=$SECONDS
wait_for 30 "the verdict on the host whose cable is pulled" nodes_are_live $((hosts - 1))
wait "$streams" || fail "a stream did not survive the loss of a host"
compare parted
say "host 2 was declared dead; ${#prompts[@]} streams went on token for token, $(counter resumed) of them elsewhere"

while ((SECONDS < pulled + 3)); do sleep 0.1; done
ip -n "$bridge" link set port2 up
wait_for "$ready_s" "the host whose cable is back" nodes_are_live $hosts
complete_all again
compare again
[[ $(counter failed) -eq 0 ]] || fail "$(counter failed) requests failed"
say "host 2 is back and the answers are equal; $SECONDS s in all"

# What cannot reach its peers any more must end when asked to, all the same (checked at the end).
ip -n "$bridge" link set port1 down
