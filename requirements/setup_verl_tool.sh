#!/usr/bin/env bash
# Makes .venv-verl-tool, the environment of `scout train --engine verl_tool`. Called by `make setup-verl-tool`;
# safe to kill and run again.
#   VERL_TOOL=path            a checkout of verl-tool with its code (default: the submodule verl-tool/)
#   PYTHON=python3.12         the interpreter to use (else the first of python3.11, python3.12, python3 that fits)
#   TORCH_INDEX=URL           take torch from this index, e.g. https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-verl-tool log=$venv/setup.log stamp=$venv/.scout-stamp pins=requirements/verl_tool.txt
checkout=${VERL_TOOL:-verl-tool}
refuse() { echo "setup-verl-tool: $*" >&2; exit 2; }

for part in verl_tool/trainer/main_ppo.py verl/verl/version/version; do
  [ -f "$checkout/$part" ] || refuse "VERL_TOOL: $checkout: has no $part: git submodule update --init verl-tool, or name a checkout with VERL_TOOL=…"
done

fits='import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'
python=""
for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
  if "$candidate" -c "$fits" 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || refuse "python: ${PYTHON:-$(python3 --version 2>&1 || true)}: needs 3.11 or 3.12: install it, or name it with PYTHON=…"

want=$(cat "$pins" requirements/setup_verl_tool.sh | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$venv/bin/python" -c 'import msgspec' 2>/dev/null; then
  exit 0
fi
start=$SECONDS
# a set-up that was killed inside `venv` leaves a folder without pip
if ! { "$venv/bin/python" -c "$fits" && "$venv/bin/python" -m pip --version; } >/dev/null 2>&1; then
  "$python" -m venv --clear "$venv" >/dev/null 2>&1 ||
    refuse "venv: $python cannot make $venv: install its venv package (Debian: apt-get install python3-venv)"
fi
echo "setup-verl-tool: installing the pinned packages into $venv (some minutes; log in $log)"
pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" >>"$log" 2>&1 || {
    grep -E '^ERROR|^error|No space left' "$log" | tail -n 3 >&2 || true
    refuse "pip: could not install: see $log, then run \`make setup-verl-tool\` again"
  }
}
: >"$log"
if [ -n "${TORCH_INDEX:-}" ]; then
  pip_install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' "$pins")"
fi
pip_install -r "$pins"
echo "$want" >"$stamp"
echo "setup-verl-tool: done in $((SECONDS - start)) s"
