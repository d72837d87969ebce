#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_spills_test.sh NVCC INCLUDE SOURCE...: compiles kernels for sm_80 and sm_90. Not one may keep a
# register in memory: the compiler's report must say 0 bytes everywhere.
set -euo pipefail
nvcc="$1" include="$2"
shift 2
failed=0
for source in "$@"; do
  report="$("${nvcc}" -std=c++20 -I"${include}" -gencode arch=compute_80,code=sm_80 \
    -gencode arch=compute_90,code=sm_90 -Xptxas -v -c -o /dev/null "${source}" 2>&1)"
  clean="$(grep -c ' 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' <<<"${report}" || true)"
  all="$(grep -c 'bytes stack frame' <<<"${report}" || true)"
  echo "${source##*/}: of ${all} functions ${clean} do not spill"
  if ((all == 0 || clean != all)); then
    grep -E 'Compiling|spill|registers' <<<"${report}"
    failed=1
  fi
done
exit "${failed}"
