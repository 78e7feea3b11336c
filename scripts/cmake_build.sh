#!/usr/bin/env bash
# scripts/cmake_build.sh PRESET [TARGET ...]: configures and builds, in build/ for release and in build-PRESET/ for others.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 folder=build-$1 fresh=() targets=()
shift
[ "$preset" != release ] || folder=build
# A folder that was copied along with its checkout would build the checkout that it came from.
if [ -f "$folder/CMakeCache.txt" ] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$folder/CMakeCache.txt"; then
  fresh=(--fresh)
fi
cmake --preset "$preset" "${fresh[@]}"
for target in "$@"; do targets+=(--target "$target"); done
exec cmake --build "$folder" "${targets[@]}"
