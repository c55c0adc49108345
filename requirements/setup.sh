#!/usr/bin/env bash
# Makes .venv and installs what was tested together. Called by `make setup`; safe to kill and run again.
#   PYTHON=python3.12         the interpreter to use (else the first of python3.11, python3.12, python3 that fits)
#   TORCH_INDEX=URL           take torch from this index, e.g. https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
name=setup venv=.venv again='make setup' pins=requirements/constraints.txt
options=(-c "$pins")
. requirements/venv.sh

choose_python
want=$(cat pyproject.toml "$pins" requirements/setup.sh requirements/venv.sh | cksum)
if done_already "$want" scout_protocol; then
  touch "$stamp"
  exit 0
fi
PYTHONPATH=protocol:cli "$python" -m scout_cli.machine
make_venv "up to 10 minutes"
torch_from_index "$pins"
pip_install -e '.[data,eval,train,dev]'

fetch='git submodule update --init verl-tool'
if [ ! -e verl-tool/verl_tool ]; then
  GIT_TERMINAL_PROMPT=0 timeout 60 git submodule update --init --depth 1 verl-tool >>"$log" 2>&1 </dev/null ||
    echo "setup: verl-tool/ could not be fetched; only what is built on verl-tool needs it: $fetch"
fi
echo "$want" >"$stamp"
echo "setup: done in $((SECONDS - start)) s"
