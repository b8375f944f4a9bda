#!/usr/bin/env bash
# Makes the environment that `make lab` and `make test` run in, when it is missing or stale.
#
#   tools/venv.sh [FOLDER] [PYTHON]
#
# FOLDER is `.venv` unless given; PYTHON is the newest supported one that really runs. The environment is stale when
# requirements.lock or pyproject.toml changed since it was made, when its interpreter is gone, when another PYTHON
# is asked for, or when the last install was cut short. Then it is made anew, so that nothing old is left in it.
# It is bash and not Python because no Python is known yet. Works with the bash of macOS (3.2).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
asked=${2:-}
supported='3.11 to 3.13'
stamp=$venv/made-from

say() { printf '%s\n' "oplab: $*"; }
fail() { printf '%s\n' "oplab: $*" >&2; exit 1; }

# Prints "3.12.1 <where it is installed>", or one word that says why this interpreter will not do.
# It is really run: a pyenv shim may stand on the PATH and only answer "command not found".
probe() {
  "$1" -c '
import sys
try:
    import ensurepip, venv
    print("%d.%d.%d" % sys.version_info[:3] if (3, 11) <= sys.version_info[:2] <= (3, 13) else "unsupported", sys.base_prefix)
except ImportError:
    print("no-venv")
' 2>/dev/null </dev/null || echo absent
}

choose_python() {
  local candidate found without_venv=
  if [ -n "$asked" ]; then
    found=$(probe "$asked")
    case $found in
      absent) fail "PYTHON=$asked does not run. Give the path of a Python $supported." ;;
      unsupported*) fail "PYTHON=$asked is $("$asked" -V 2>&1), but oplab needs Python $supported." ;;
      no-venv) fail "PYTHON=$asked cannot make environments; on Debian and Ubuntu: sudo apt install python3-venv" ;;
    esac
    python=$asked base=$found
    return
  fi
  for candidate in python3.13 python3.12 python3 python3.11 python; do
    found=$(probe "$candidate")
    case $found in
      absent | unsupported*) ;;
      no-venv) without_venv=$candidate ;;
      *) python=$candidate base=$found; return ;;
    esac
  done
  if [ -n "$without_venv" ]; then
    fail "$without_venv cannot make environments; on Debian and Ubuntu: sudo apt install python3-venv"
  fi
  fail "no Python $supported was found; install one, or name it: make test PYTHON=/path/to/python3.12"
}

# What the environment is made from. The first line changes with the files, the second with the interpreter.
recipe() {
  cat requirements.lock pyproject.toml | cksum
  printf '%s\n' "$base"
}

fresh() {
  [ -f "$stamp" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null || return 1
  if [ -z "$asked" ]; then  # any supported Python will do: keep the one it has
    [ "$(head -n 1 "$stamp")" = "$(cat requirements.lock pyproject.toml | cksum)" ]
  else
    choose_python
    [ "$(cat "$stamp")" = "$(recipe)" ]
  fi
}

# Runs pip and shows its output only when it fails.
pip_quietly() {
  local log=$venv/pip.log
  if ! env -u PYTHONHOME -u PYTHONPATH PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 \
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    if [ "$(uname -sm)" = "Darwin x86_64" ]; then
      fail "pip failed (see above). Note that JAX has no packages for Macs with an Intel processor any more."
    fi
    fail "pip failed, its last lines are above. Is the network up? The next make starts again from here."
  fi
}

if fresh; then
  exit 0
fi
choose_python
[ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && fail "$venv is there, but it is not a Python environment; move it away."
say "$venv: Python ${base%% *} (from $python)"
if ! "$python" -m venv --clear "$venv"; then
  fail "$python could not make the environment $venv (see above)."
fi
say "$venv: installing $(grep -c == requirements.lock) pinned packages (a few minutes the first time, 1 GB of disk)"
pip_quietly install --progress-bar off -r requirements.lock
say "$venv: installing oplab itself, from this folder"
pip_quietly install --no-deps --no-build-isolation --editable .
pip_quietly check
recipe >"$stamp"
say "$venv: ready"
