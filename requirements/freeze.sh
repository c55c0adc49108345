#!/usr/bin/env bash
# Pins what is installed in .venv. torch loses its build tag (+cpu), so that any build of it fits.
set -euo pipefail
cd "$(dirname "$0")/.."
new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
  echo "# What was tested together; \`make constraints\` writes it from .venv. \`torch\` is pinned without its build"
  echo "# tag: PyPI's CUDA build and the CPU build both satisfy it (README: TORCH_INDEX)."
  "${VENV:-.venv}"/bin/python -m pip --disable-pip-version-check freeze --all --exclude-editable 2>/dev/null |
    grep -v -i -E '^(scout-rl|pip)(==| @)' | sed -E 's/\+(cpu|cu[0-9]+)$//'
} >"$new"
cat "$new" >requirements/constraints.txt
echo "requirements/constraints.txt: $(grep -c '==' "$new") packages"
