#!/usr/bin/env bash
# bench_learning.sh FOLDER SEED…: the quickstart for each seed, one after the other, with wall and CPU seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift
child=""
stop() { [ -z "$child" ] || kill "$child" 2>/dev/null || true; wait; exit 130; }
trap stop INT TERM HUP
TIMEFORMAT='%R s wall, %U s user, %S s system'
for seed in "$@"; do
  echo "== seed $seed"
  mkdir -p "$folder/seed$seed"
  # in the background and waited for, so that a signal to this script reaches it
  time { .venv/bin/scout quickstart --run "$folder/seed$seed" --seed "$seed" & child=$!; wait "$child"; }
  child=""
done
.venv/bin/python -m scout_cli.bench_table "$folder"
