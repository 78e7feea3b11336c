#!/usr/bin/env bash
# tests/fuzz/grow_corpus.sh SECONDS [TARGET ...]: lets libFuzzer look for inputs, and adds to a target's corpus those that
# reach code which no input there reaches. Needs build-fuzz/.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1
shift
[ $# -gt 0 ] || set -- gather_varied gradiveq messages payloads saved_state  # the others are files for people, written by hand
for target in "$@"; do
  program=build-fuzz/tests/fuzz/fuzz_$target corpus=tests/fuzz/corpus/$target found=$(mktemp -d)
  mkdir -p "$corpus"
  "$program" -max_total_time="$seconds" -max_len=256 -verbosity=0 "$found" "$corpus"
  "$program" -merge=1 -use_counters=0 -verbosity=0 "$corpus" "$found"
  rm -r "$found"
  echo "$target: $(find "$corpus" -type f | wc -l) inputs, $(cat "$corpus"/* | wc -c) bytes"
done
