# Set-up, shared by ./run and ./test, which source this file in the repository's root. It installs what is missing and
# builds what has changed, one line a stage; what the stages print goes to build/setup.log.
#
# Settings: PYTHON (the interpreter that .venv is made of, python3), THINWIRE_JOBS (parallel compilations, all cores),
# THINWIRE_NO_PACKAGES=1 (do not look at the machine's packages: they came from elsewhere).
# shellcheck shell=bash

SETUP_LOG=build/setup.log
JOBS=${THINWIRE_JOBS:-$(nproc)}
PYTHON=${PYTHON:-python3}
VENV_PYTHON=.venv/bin/python
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
readonly MISSING_PACKAGES=3 # exit status

export CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
export PIP_DISABLE_PIP_VERSION_CHECK=1
export LC_ALL=C.UTF-8 # decimal points, and sorting, are the same everywhere
# The Python module is compiled from the same files as the library, and so comes from ccache, if both name the compiler
# and the files alike.
export CXX=${CXX:-c++} CCACHE_BASEDIR=$PWD
# The same files in another checkout are the same, though debug information names the folder that they were compiled in first.
export CCACHE_NOHASHDIR=1
# ccache's conditions for files that begin with a precompiled header.
export CCACHE_SLOPPINESS=pch_defines,time_macros
# ccache looks for its folder under HOME, which service accounts and containers may lack.
[ -n "${HOME:-}" ] || export CCACHE_DIR=$PWD/build/.ccache

say() { printf '%s\n' "$*"; }

# What a stage wants to be read on the terminal, while its output goes to the log.
note() { printf '    %s\n' "$*" >&3; }

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

# stage TITLE FUNCTION [ARGUMENTS]: exits with the function's status if it fails, after the end of what it printed.
stage() {
  local title=$1 start=$EPOCHREALTIME status=0
  shift
  printf -- '--- %s: %s\n' "$title" "$(date)" >>"$SETUP_LOG"
  # In a process of its own, because bash ignores "set -e" in a function whose status is tested.
  set +e
  (
    set -e
    "$@"
  ) 3>&1 >>"$SETUP_LOG" 2>&1 </dev/null
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then
    printf '  %-28s %6s s\n' "$title" "$(seconds_since "$start")"
    return
  fi
  say "  $title failed. The last lines of $SETUP_LOG:"
  tail -n 25 "$SETUP_LOG" | sed 's/^/    | /'
  exit "$status"
}

# --- the machine's packages

cmake_at_least() {
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*//p') && [ -n "$version" ] &&
    printf '%s\n%s\n' "$1" "$version" | sort -V -C
}
python_makes_environments() { "$PYTHON" -c 'import ensurepip, venv'; }
python_has_headers() {
  "$PYTHON" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
}
debian_has() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# Whether a package's files were put below build/unpacked; every package has such a folder.
unpacked_has() { [ -d "build/unpacked/usr/share/doc/$1" ]; }

# missing_packages required|optional|unpacked: the names
missing_packages() {
  local kind package check
  while IFS='|' read -r kind package check _; do
    kind=${kind// /} package=${package// /}
    [ "$kind" = "$1" ] || continue
    if [ -n "${check// /}" ]; then
      # shellcheck disable=SC2086  # a command with its arguments
      (eval $check) >/dev/null 2>&1 </dev/null || echo "$package"
    else
      debian_has "$package" || unpacked_has "$package" || echo "$package"
    fi
  done <scripts/packages.txt
}

# The prefix that makes a command one of the administrator; fails where this user is none.
administrator() {
  if [ "$(id -u)" -eq 0 ]; then
    echo env
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo sudo -n env
  else
    return 1
  fi
}

install_packages() {
  local admin=$1
  shift
  # Lists of other repositories may fail to update: what matters is whether the packages can be installed.
  $admin DEBIAN_FRONTEND=noninteractive apt-get -q update || true
  $admin DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"
}

# Takes nobody's rights, but Debian's lists of packages. What could not be had once is not tried at every call.
unpack_packages() {
  local package
  for package in $(missing_packages unpacked); do
    [ ! -e "build/unpacked/$package.tried" ] || continue
    mkdir -p build/unpacked
    touch "build/unpacked/$package.tried"
    (cd build/unpacked && apt-get -q download "$package" && dpkg-deb -x "$package"_*.deb . && rm "$package"_*.deb) || true
  done
}

left_out() {
  local package
  for package in "$@"; do
    note "left out, as $package is missing: $(sed -n "s/^[a-z]* *| *$package *|.*| *//p" scripts/packages.txt)"
  done
}

machine_packages() {
  local admin required optional package
  required=$(missing_packages required | xargs)
  optional=$(missing_packages optional | xargs)
  # Optional packages that could not be installed once are not tried at every call.
  if { [ -n "$required" ] || [ "$optional" != "$(cat build/optional-packages-tried 2>/dev/null)" ]; } &&
    command -v apt-get && admin=$(administrator); then
    echo "$optional" >build/optional-packages-tried
    [ -z "$required" ] || note "installing $required"
    # shellcheck disable=SC2086  # lists of words
    if [ -z "$optional" ] || ! install_packages "$admin" $required $optional; then
      [ -z "$required" ] || install_packages "$admin" $required
      # One that this machine's release does not have keeps none of the others away.
      for package in $optional; do install_packages "$admin" "$package" || true; done
    fi
    required=$(missing_packages required | xargs)
    optional=$(missing_packages optional | xargs)
  fi
  unpack_packages
  # shellcheck disable=SC2046,SC2086  # lists of words
  left_out $optional $(missing_packages unpacked)
  if [ -n "$required" ]; then
    note "missing here, and not to be installed by this user: $required"
    note "    sudo apt-get install $required"
    return "$MISSING_PACKAGES"
  fi
}

# --- the Python environment

hash_of() { sha256sum | cut -d ' ' -f 1; }
pip() { "$VENV_PYTHON" -m pip "$@" --progress-bar off; }

# PyTorch's build without CUDA is some 200 MB, where the one that PyPI gives for x86-64 brings several GB. So it is taken
# from wherever pip is set up to look, then from PyTorch's own index if that answers at once, and only then plain.
install_torch() {
  local wanted plain
  plain=$(grep '^torch==' requirements.txt)
  wanted=$plain+cpu
  if "$VENV_PYTHON" -c "import importlib.metadata as m, sys
sys.exit(m.version('torch').split('+')[0] != '${plain#torch==}')"; then
    return
  fi
  [ "$(uname -m)" = x86_64 ] || wanted=$plain
  pip install "$wanted" && return
  if timeout 10 "$VENV_PYTHON" -c "import urllib.request as u; u.urlopen('$TORCH_CPU_INDEX/torch/', timeout=5)"; then
    pip install --extra-index-url "$TORCH_CPU_INDEX" "$wanted" && return
  fi
  note "no CPU build of $plain is to be had here: installing PyPI's, which may bring several GB of CUDA packages"
  pip install "$plain"
}

python_environment() {
  local stamp=.venv/.thinwire-requirements wanted
  wanted=$({ cat requirements.txt && "$PYTHON" -VV; } | hash_of)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$VENV_PYTHON" -c ''; then
    return
  fi
  rm -f "$stamp"
  if ! "$VENV_PYTHON" -m pip --version || [ "$("$VENV_PYTHON" -VV)" != "$("$PYTHON" -VV)" ]; then
    "$PYTHON" -m venv --clear .venv
  fi
  install_torch
  pip install -r requirements.txt
  echo "$wanted" >"$stamp"
}

# --- the build

# What the compiled Python module is made of. Python's own files are not: the installation points at them.
module_sources() {
  find CMakeLists.txt cmake include src python/CMakeLists.txt python/src pyproject.toml -type f -print0 | sort -z |
    xargs -0 sha256sum
  cat .venv/.thinwire-requirements
  find python/thinwire -name '*.py' | sort
}

python_package() {
  local stamp=.venv/.thinwire-package wanted
  wanted=$(module_sources | hash_of)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  rm -f "$stamp"
  pip install --no-build-isolation --no-deps --config-settings build-dir=build-python --editable .
  echo "$wanted" >"$stamp"
}

# explain COMMAND ARGUMENTS: runs COMMAND instead of a set-up if the arguments ask for help, where there is a Python.
explain() {
  local command=$1
  shift
  # shellcheck disable=SC2086  # the command is several words
  case " $* " in
    *" -h "* | *" --help "*) ! command -v "$PYTHON" >/dev/null || exec "$PYTHON" $command --help ;;
  esac
}

# set_up: all that ./run and ./test need alike
set_up() {
  mkdir -p build
  : >>"$SETUP_LOG"
  # Two calls in one checkout at the same time would install over each other.
  exec 9>build/setup.lock
  if ! flock -n 9; then
    say "Another set-up is at work in this checkout; waiting for it."
    flock 9
  fi
  : >"$SETUP_LOG"
  say "Set-up (details in $SETUP_LOG):"
  [ -n "${THINWIRE_NO_PACKAGES:-}" ] || stage "machine packages" machine_packages
  stage "Python environment" python_environment
  stage "command-line tool" scripts/cmake_build.sh release src/tool/all
  stage "Python package" python_package
  exec 9>&-
}
