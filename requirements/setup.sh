#!/usr/bin/env bash
# Makes .venv and installs what was tested together. Called by `make setup`; safe to kill and run again.
#   PYTHON=python3.12         the interpreter to use (else the first of python3.11, python3.12, python3 that fits)
#   TORCH_INDEX=URL           take torch from this index, e.g. https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv log=.venv/setup.log stamp=.venv/.scout-stamp
refuse() { echo "setup: $*" >&2; exit 2; }

fits='import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'
python=""
for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
  if "$candidate" -c "$fits" 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || refuse "python: ${PYTHON:-$(python3 --version 2>&1 || true)}: needs 3.11 or 3.12: install it, or name it with PYTHON=…"

want=$(cat pyproject.toml requirements/constraints.txt requirements/setup.sh | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$venv/bin/python" -c 'import scout_protocol' 2>/dev/null; then
  touch "$stamp"
  exit 0
fi
PYTHONPATH=protocol:cli "$python" -m scout_cli.machine

start=$SECONDS
# a set-up that was killed inside `venv` leaves a .venv without pip
if ! { "$venv/bin/python" -c "$fits" && "$venv/bin/python" -m pip --version; } >/dev/null 2>&1; then
  "$python" -m venv --clear "$venv" >/dev/null 2>&1 ||
    refuse "venv: $python cannot make $venv: install its venv package (Debian: apt-get install python3-venv)"
fi
echo "setup: installing the pinned packages into $venv (up to 10 minutes; log in $log)"
pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
    -c requirements/constraints.txt "$@" >>"$log" 2>&1 || {
    grep -E '^ERROR|^error|No space left' "$log" | tail -n 3 >&2 || true
    refuse "pip: could not install: see $log, then run \`make setup\` again"
  }
}
: >"$log"
if [ -n "${TORCH_INDEX:-}" ]; then
  pip_install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements/constraints.txt)"
fi
pip_install -e '.[data,eval,train,dev]'

fetch='git submodule update --init verl-tool'
if [ ! -e verl-tool/verl_tool ]; then
  GIT_TERMINAL_PROMPT=0 timeout 60 git submodule update --init --depth 1 verl-tool >>"$log" 2>&1 </dev/null ||
    echo "setup: verl-tool/ could not be fetched; only what is built on verl-tool needs it: $fetch"
fi
echo "$want" >"$stamp"
echo "setup: done in $((SECONDS - start)) s"
