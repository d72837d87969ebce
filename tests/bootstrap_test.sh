#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bootstrap_test.sh <bootstrap.sh>
#
# Which program `bootstrap.sh train` takes, and what it says: with tools that are not there in truth.
set -euo pipefail
bootstrap="$1"
folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT

fail() {
  echo "FAILED: $*"
  cat "${folder}/out"
  exit 1
}

tool() {  # folder, name, text of the script
  mkdir -p "${folder}/$1"
  printf '#!/bin/sh\n%s\n' "$3" >"${folder}/$1/$2"
  chmod +x "${folder}/$1/$2"
}
# A cmake that builds nothing, and says what it was told.
# shellcheck disable=SC2016  # the script is to see $1
tool common cmake 'case "$1" in --version) echo "cmake version 3.25.1" ;; *) echo "cmake: $*" ;; esac'
tool common apt-get 'exit 1'
tool common sudo 'exit 1'
tool two_gpus nvidia-smi 'printf "GPU 0: A\nGPU 1: B\n"'
tool no_gpus nvidia-smi 'exit 9'
tool nvcc nvcc 'exit 0'
mkdir -p "${folder}/nccl/include"
touch "${folder}/nccl/include/nccl.h"

# Runs train with these folders first on the PATH.
train() {  # folders, arguments
  local path="" name
  for name in $1; do path+="${folder}/${name}:"; done
  shift
  local code=0
  PATH="${path}${PATH}" "${bootstrap}" train "$@" >"${folder}/out" 2>&1 || code=$?
  if grep -q "by apt-get" "${folder}/out"; then
    echo "skipped: not all packages are installed"
    exit 77
  fi
  return "${code}"
}
says() { grep -q -e "$1" "${folder}/out" || fail "does not say: $1"; }
is_silent() { ! grep -q -e "$1" "${folder}/out" || fail "says: $1"; }

export NCCL_ROOT="${folder}/nccl"
train "common two_gpus nvcc" --steps 3 || fail "with GPUs"
says "training on GPUs, 2 of them"
says "cmake: .*-DGRADLANE_TRAIN_PROGRAM=bert_train_cuda -DGRADLANE_TRAIN_RANKS=2 "
says "cmake: .*-DGRADLANE_TRAIN_ARGS=--steps;3"
says "cmake: --build --preset train"

train "common no_gpus nvcc" --steps 3 || fail "without a GPU"
says "training on the CPU: there is no NVIDIA GPU"
is_silent bert_train_cuda

train "common two_gpus nvcc" --cpu --steps 3 || fail "--cpu"
says "training on the CPU, as --cpu says"
says "cmake: .*-DGRADLANE_TRAIN_ARGS=--steps;3"
is_silent bert_train_cuda

if train "common no_gpus nvcc" --gpu; then fail "--gpu was accepted without a GPU"; fi
says "cannot train on GPUs: there is no NVIDIA GPU"
is_silent "cmake: --build"
echo "passed"
