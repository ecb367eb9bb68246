#!/usr/bin/env bash
# Formats the C++ and CUDA sources in place (.clang-format); `./check --only format` only looks.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  --help | -h)
    printf 'usage: tools/format.sh [FILE...]\n\nWithout files, all sources that git knows or would add.\n'
    exit 0
    ;;
esac
if [[ $# -gt 0 ]]; then
  clang-format-14 -i "$@"
else
  git ls-files -z --cached --others --exclude-standard -- '*.cpp' '*.hpp' '*.cu' '*.cuh' | xargs -0 -r clang-format-14 -i
fi
