#!/usr/bin/env bash
# Makes .venv-verl-tool, the environment of `scout train --engine verl_tool`. Called by `make setup-verl-tool`;
# safe to kill and run again.
#   VERL_TOOL=path            a checkout of verl-tool with its code (default: the submodule verl-tool/)
#   PYTHON=python3.12         the interpreter to use (else the first of python3.11, python3.12, python3 that fits)
#   TORCH_INDEX=URL           take torch from this index, e.g. https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
name=setup-verl-tool venv=.venv-verl-tool again='make setup-verl-tool' pins=requirements/verl_tool.txt
options=()
. requirements/venv.sh

checkout=${VERL_TOOL:-verl-tool}
for part in verl_tool/trainer/main_ppo.py verl/verl/version/version; do
  [ -f "$checkout/$part" ] || refuse "VERL_TOOL: $checkout: has no $part: git submodule update --init verl-tool, or name a checkout with VERL_TOOL=…"
done
choose_python
want=$(cat "$pins" requirements/setup_verl_tool.sh requirements/venv.sh | cksum)
if done_already "$want" msgspec; then
  exit 0
fi
make_venv "some minutes"
torch_from_index "$pins"
pip_install -r "$pins"
echo "$want" >"$stamp"
echo "setup-verl-tool: done in $((SECONDS - start)) s"
