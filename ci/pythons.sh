# shellcheck shell=bash
# Sourced by the scripts beside it: which Python interpreters this machine has.

# Prints one working CPython for each version from 3.$1 on, oldest first: from the PATH, else from pyenv.
pythons_from() {
  local minor candidate
  for minor in $(seq "$1" 30); do
    for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
      if "$candidate" -c "import sys, venv; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
        command -v "$candidate"
        break
      fi
    done
  done
}

# The oldest Python that can build (jaxlib 0.10.2, whose headers are needed, starts at 3.11).
build_python() {
  local found
  found=$(pythons_from 11 | head -n 1)
  if [ -z "$found" ]; then
    echo "hopgemm needs Python 3.11 or newer to build, and found none" >&2
    return 1
  fi
  echo "$found"
}
