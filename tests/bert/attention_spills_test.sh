#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# attention_spills_test.sh NVCC SOURCE: compiles the kernels that the source uses for sm_80 and sm_90.
# Not one may keep a register in memory: the compiler's report must say 0 bytes everywhere.
set -euo pipefail
nvcc="$1" source="$2"
for architecture in sm_80 sm_90; do
  report="$("${nvcc}" -std=c++20 -arch="${architecture}" -Xptxas -v -cubin -o /dev/null "${source}" 2>&1)"
  grep -E 'Compiling|spill|registers' <<<"${report}" | sed "s/^ptxas info *: */${architecture} /"
  # in bf16 forward with blocks of two sizes, dq and dkv, each with and without dropout; the same in
  # fp16 with blocks of one size; three in fp32
  expected=17
  clean="$(grep -c ' 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' <<<"${report}" || true)"
  kernels="$(grep -c 'Compiling entry function' <<<"${report}" || true)"
  if ((kernels != expected || clean != expected)); then
    echo "${architecture}: of ${kernels} kernels (expected: ${expected}) ${clean} do not spill"
    exit 1
  fi
done
