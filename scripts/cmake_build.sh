#!/usr/bin/env bash
# scripts/cmake_build.sh PRESET [TARGET ...]: configures and builds, in build/ for release and in build-PRESET/ for others.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 folder=build-$1 fresh=() targets=()
shift
[ "$preset" != release ] || folder=build
mkdir -p "$folder"
# One build in a folder at a time: a header that two compilers precompile into one file is no compiler's, and ccache would keep it. Compilers have
# the lock, too, so that those which outlive a killed build end first.
exec 8>"$folder/build.lock"
if ! flock -n 8; then
  echo "Another build is at work in $folder; waiting for it."
  flock 8
fi
# A folder that was copied along with its checkout would build the checkout that it came from.
if [ -f "$folder/CMakeCache.txt" ] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$folder/CMakeCache.txt"; then
  fresh=(--fresh)
fi
cmake --preset "$preset" "${fresh[@]}"
for target in "$@"; do targets+=(--target "$target"); done
log=$folder/build.log
cmake --build "$folder" "${targets[@]}" 2>&1 | tee "$log" && exit
# What such a file makes of the compiler; the cache may hold one from elsewhere.
grep -q "internal compiler error" "$log" || exit 1
echo "The compiler failed in itself, as it does on a spoilt precompiled header: once more, without what is precompiled and without ccache's objects."
find "$folder" -name "*.gch" -delete
CCACHE_RECACHE=1 cmake --build "$folder" "${targets[@]}"
