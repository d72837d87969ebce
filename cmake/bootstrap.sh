#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what gradlane needs on Debian or Ubuntu, builds it and runs it: see usage().
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: cmake/bootstrap.sh train [ARGUMENT...]   build the main program and run it on MPI ranks;
                                                the arguments are the program's
       cmake/bootstrap.sh test [ARGUMENT...]    build the tests and run them; the arguments are
                                                ctest's
       cmake/bootstrap.sh --help

Installs by apt-get what is missing of cmake, ninja-build, g++, mpich, libmpich-dev, doctest-dev, what
the BERT program uses (libdnnl-dev, nlohmann-json3-dev, libcli11-dev, libsentencepiece-dev,
libutf8proc-dev, libhdf5-dev) and, to train, its text (postgresql-doc). That needs root or sudo; where it cannot, it
lists what is missing and stops. Builds in build/train
or build/test, from scratch. Needs CMake 3.25 and g++ 12: Debian 12, Ubuntu 24.04, or newer.
The MPI must be MPICH; where another is installed too, MPICH is chosen by its own names.
TEXT
}

say() { printf 'bootstrap: %s\n' "$*"; }

fail() {
  printf 'bootstrap: %s\n' "$@" >&2
  exit 1
}

have() { command -v "$1" >/dev/null; }

# Prints MPICH's compiler. It comes by a name of its own too, for mpicxx may be another MPI's.
find_mpicxx() {
  local compiler
  for compiler in mpicxx.mpich mpicxx; do
    if have "mpiexec${compiler#mpicxx}" && have "${compiler}" &&
      "${compiler}" -E -dM -x c++ - <<<'#include <mpi.h>' 2>/dev/null | grep 'MPICH_VERSION' >/dev/null; then
      echo "${compiler}"
      return
    fi
  done
  return 1
}

has_header() { g++ -E -x c++ - <<<"#include <$1>" >/dev/null 2>&1; }

missing_packages() {  # train or test
  have cmake || echo cmake
  have ninja || echo ninja-build
  have g++ || echo g++
  find_mpicxx >/dev/null || printf '%s\n' mpich libmpich-dev
  has_header doctest/doctest.h || echo doctest-dev
  has_header oneapi/dnnl/dnnl.hpp || echo libdnnl-dev
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header sentencepiece_trainer.h || echo libsentencepiece-dev
  has_header utf8proc.h || echo libutf8proc-dev
  has_header hdf5.h || has_header hdf5/serial/hdf5.h || echo libhdf5-dev
  if [[ "$1" == train ]]; then compgen -G '/usr/share/doc/postgresql-doc-*/html' >/dev/null || echo postgresql-doc; fi
}

install() {
  local -a apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y)
  local by_hand="apt-get update && apt-get install $*"
  if ! have apt-get; then
    fail "missing, by their Debian names: $*" "There is no apt-get here: install them, and run this again."
  fi
  if [[ "$(id -u)" -ne 0 ]]; then
    if ! have sudo; then
      fail "missing: $*" "This is neither root nor is there sudo. As root, run: ${by_hand}"
    fi
    apt=(sudo "${apt[@]}")
  fi
  say "installing by apt-get: $*"
  "${apt[@]}" update || say "the package lists could not be refreshed; going on with those at hand"
  if ! "${apt[@]}" install --no-install-recommends "$@"; then
    fail "apt-get could not install: $*" \
      "Its message is above; is there a network? When the cause is gone, run this again, or: ${by_hand}"
  fi
}

require_cmake() {
  local oldest=3.25 version
  version="$(cmake --version | sed -n '1s/[^0-9]*//p')"
  if [[ "$(printf '%s\n' "${version}" "${oldest}" | sort -V | head -n 1)" != "${oldest}" ]]; then
    fail "CMake ${version} is too old, ${oldest} is needed: use Debian 12, Ubuntu 24.04, or newer"
  fi
}

# Some packages of MPICH (4.2.0 of Ubuntu 24.04) start n programs of one rank each.
require_ranks() {  # MPICH's compiler
  local folder works=yes
  folder="$(mktemp -d)"
  "$1" -x c++ -o "${folder}/two_ranks" - <<'TEXT'
#include <mpi.h>
int main() {
  int size = 0;
  MPI_Init(nullptr, nullptr);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Finalize();
  return size == 2 ? 0 : 1;
}
TEXT
  "mpiexec${1#mpicxx}" -n 2 "${folder}/two_ranks" || works=no
  rm -r "${folder}"
  if [[ "${works}" == no ]]; then
    fail "the MPICH installed here does not work: two ranks did not find each other" \
      "Ubuntu 24.04's mpich 4.2.0-5build3 is known for that (Launchpad 2072338): install a later one."
  fi
}

main() {
  local job="${1-}" mpicxx
  case "${job}" in
    train | test) shift ;;
    -h | --help)
      usage
      return
      ;;
    *)
      usage >&2
      return 2
      ;;
  esac
  cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

  local -a missing
  mapfile -t missing < <(missing_packages "${job}")
  if [[ "${#missing[@]}" -gt 0 ]]; then install "${missing[@]}"; fi
  require_cmake
  mpicxx="$(find_mpicxx)" || fail "MPICH was installed, yet there is no mpicxx of it"
  require_ranks "${mpicxx}"

  local -a configure=(cmake --fresh --preset "${job}"
    "-DMPI_CXX_COMPILER=${mpicxx}" "-DMPIEXEC_EXECUTABLE=$(command -v "mpiexec${mpicxx#mpicxx}")")
  if [[ "${job}" == train ]]; then
    local IFS=';'
    configure+=("-DGRADLANE_TRAIN_ARGS=${*//;/\\;}")
  fi
  say "configuring, building and running '${job}' in build/${job}"
  "${configure[@]}"
  cmake --build --preset "${job}"  # which also runs, for train
  if [[ "${job}" == test ]]; then ctest --preset test -j "$(nproc)" "$@"; fi
}

main "$@"
