#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what gradlane needs on Debian or Ubuntu, builds it and runs it: see usage().
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: cmake/bootstrap.sh train [--cpu|--gpu] [ARGUMENT...]
                                                build the main program and run it on MPI ranks;
                                                the arguments are the program's
       cmake/bootstrap.sh test [ARGUMENT...]    build the tests and run them; the arguments are
                                                ctest's
       cmake/bootstrap.sh --help

Trains on GPUs, one rank each, where NVIDIA's GPUs, nvcc and NCCL are there, else on the CPU, and says
which and why; --cpu and --gpu, right after `train`, choose. nvcc is looked for on the PATH, in CUDACXX
and in /usr/local/cuda, NCCL in NCCL_ROOT, the CUDA toolkit and where g++ looks.

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

# Prints how many GPUs there are.
count_gpus() {
  local -a devices
  if have nvidia-smi; then
    nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true
  else
    mapfile -t devices < <(compgen -G '/dev/nvidia[0-9]*')
    echo "${#devices[@]}"
  fi
}

# Prints the path of nvcc.
find_nvcc() {
  command -v nvcc && return
  local candidate
  for candidate in "${CUDACXX-}" /usr/local/cuda/bin/nvcc; do
    if [[ -n "${candidate}" && -x "${candidate}" ]]; then
      echo "${candidate}"
      return
    fi
  done
  return 1
}

has_nccl() {  # nvcc
  local folder
  for folder in "${NCCL_ROOT-}" "$(dirname -- "$(dirname -- "$(readlink -f -- "$1")")")"; do
    if [[ -n "${folder}" && -e "${folder}/include/nccl.h" ]]; then return; fi
  done
  has_header nccl.h
}

# Prints what is missing to train on GPUs, or nothing.
missing_for_gpus() {
  local nvcc
  if [[ "$(count_gpus)" -eq 0 ]]; then
    echo "there is no NVIDIA GPU"
  elif ! nvcc="$(find_nvcc)"; then
    echo "there is no nvcc"
  elif ! has_nccl "${nvcc}"; then
    echo "there is no NCCL"
  fi
}

# Adds to the array `configure` what has the target train run on GPUs, where it is to.
choose_processor() {  # --cpu, --gpu or nothing
  local missing gpus
  missing="$(missing_for_gpus)"
  if [[ "$1" == --cpu ]]; then
    say "training on the CPU, as --cpu says"
  elif [[ -n "${missing}" && "$1" == --gpu ]]; then
    fail "cannot train on GPUs: ${missing}"
  elif [[ -n "${missing}" ]]; then
    say "training on the CPU: ${missing}"
  else
    gpus="$(count_gpus)"
    say "training on GPUs, ${gpus} of them: there are nvcc and NCCL too"
    configure+=(-DGRADLANE_CUDA=ON "-DCMAKE_CUDA_COMPILER=$(find_nvcc)" -DCMAKE_CUDA_ARCHITECTURES=native
      -DGRADLANE_TRAIN_PROGRAM=bert_train_cuda "-DGRADLANE_TRAIN_RANKS=${gpus}")
  fi
}

main() {
  local job="${1-}" processor="" mpicxx
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
  if [[ "${job}" == train && "${1-}" =~ ^--(cpu|gpu)$ ]]; then
    processor="$1"
    shift
  fi
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
    choose_processor "${processor}"
    local IFS=';'
    configure+=("-DGRADLANE_TRAIN_ARGS=${*//;/\\;}")
  fi
  say "configuring, building and running '${job}' in build/${job}"
  "${configure[@]}"
  cmake --build --preset "${job}"  # which also runs, for train
  if [[ "${job}" == test ]]; then ctest --preset test -j "$(nproc)" "$@"; fi
}

main "$@"
