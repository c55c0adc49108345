#!/usr/bin/env bash
# Installs the built wheel without extras into a throw-away environment and imports the tool server there.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
.venv/bin/python -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --progress-bar off \
  -c requirements/constraints.txt . 2>"$place/log" || { grep -v '^WARNING' "$place/log" >&2; exit 1; }
checkout=$PWD
cd "$place"
"$place/venv/bin/python" "$checkout/requirements/check_base.py"
