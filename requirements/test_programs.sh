#!/usr/bin/env bash
# Programs that some tests start: wrk (load) and redis-server (a cache for several hosts). Installed from Debian
# where this may be done; elsewhere those tests skip and say so.
set -uo pipefail
missing=()
for program in wrk redis-server; do
  command -v "$program" >/dev/null || missing+=("$program")
done
[ "${#missing[@]}" = 0 ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "test programs: no ${missing[*]}: the tests that need them skip (Debian: apt-get install ${missing[*]})"
  exit 0
fi
# RUNLEVEL=1: install the program, start no service.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install() { timeout 300 apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null 2>&1; }
install || { timeout 300 apt-get update -q >/dev/null 2>&1 && install; } ||
  echo "test programs: apt-get could not install ${missing[*]}: the tests that need them skip"
exit 0
