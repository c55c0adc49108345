# Sourced by the scripts that make an environment. They have set:
#   name     of the script, for its messages
#   venv     the folder
#   again    what a user types after mending what went wrong
#   options  (array) of every `pip install`
log=$venv/setup.log stamp=$venv/.scout-stamp start=$SECONDS
refuse() { echo "$name: $*" >&2; exit 2; }
fits='import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'

choose_python() { # PYTHON, or the first that fits
  python=""
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    if "$candidate" -c "$fits" 2>/dev/null; then
      python=$candidate
      return
    fi
  done
  refuse "python: ${PYTHON:-$(python3 --version 2>&1 || true)}: needs 3.11 or 3.12: install it, or name it with PYTHON=…"
}

done_already() { # the files it was made of, as a checksum; a module that is there only if it was made whole
  [ "$(cat "$stamp" 2>/dev/null)" = "$1" ] && "$venv/bin/python" -c "import $2" 2>/dev/null
}

make_venv() { # how long and how large
  # a set-up that was killed inside `venv` leaves a folder without pip
  if ! { "$venv/bin/python" -c "$fits" && "$venv/bin/python" -m pip --version; } >/dev/null 2>&1; then
    "$python" -m venv --clear "$venv" >/dev/null 2>&1 ||
      refuse "venv: $python cannot make $venv: install its venv package (Debian: apt-get install python3-venv)"
  fi
  echo "$name: installing the pinned packages into $venv ($1; log in $log)"
  : >"$log"
}

pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "${options[@]}" "$@" \
    >>"$log" 2>&1 && return
  local missing
  missing=$(sed -n 's/^ERROR: No matching distribution found for //p' "$log" | tail -n 1)
  [ -z "$missing" ] || refuse "pip: $missing: not to be had from this package index: see $log, then run \`$again\` again"
  grep -E '^ERROR|^error|No space left' "$log" | tail -n 3 >&2 || true
  refuse "pip: could not install: see $log, then run \`$again\` again"
}

torch_from_index() { # the file with the pin: TORCH_INDEX names the index to take torch from
  [ -z "${TORCH_INDEX:-}" ] || pip_install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' "$1")"
}
