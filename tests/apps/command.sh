# For tests of a subcommand as a user runs it; sourced with the command's name and the path of troupe:
# goes to the project's root, and gives $troupe, $scratch (removed in the end), `fail` and `expect`.
set -euo pipefail

command_name=$1
troupe=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { printf 'test of troupe %s: %s\n' "$command_name" "$*" >&2; exit 1; }

# expect CODE TEXT ARGUMENT...: the exit code, and a text in what is printed, which stays in $scratch/out.
expect() {
  local code=$1 text=$2 got=0
  shift 2
  "$troupe" "$command_name" "$@" > "$scratch/out" 2>&1 || got=$?
  [[ $got == "$code" ]] || fail "$* ended with $got, not $code: $(cat "$scratch/out")"
  grep -qF -- "$text" "$scratch/out" || fail "$* does not say '$text': $(cat "$scratch/out")"
}
