#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# attention_costs_test.sh PTXSIM PROGRAM: what the kernels do at lengths of 511, 512 and 513 in
# attention_test.cu, counted by ptxsim: no bank conflicts, global memory read and written in whole
# sectors, and hardly more work for the tensor cores than the lengths ask for.
set -euo pipefail
ptxsim="$1" program="$2"
counts="$(mktemp)"
trap 'rm -f "${counts}"' EXIT
PTXSIM_STATS="${counts}" "${ptxsim}" "${program}" --test-case='*lengths of 511*'
# kernel,launches,blocks,threads,warp_instructions,global_load_bytes,global_store_bytes,
# global_load_sectors,global_store_sectors,atomics,shared_wavefronts,shared_ideal,mma_flops,…
sed 's/^"void bert::attention::\([a-z_]*\)::\([a-z_]*\)<[^"]*"/\1 \2/' "${counts}" | awk -F, '
  function expect(holds, what) {
    if (!holds) { print name ": " what; failed = 1 }
  }
  $1 ~ /^(tensor|cuda)_core / {
    name = $1
    seen++
    printf "%-28s wavefronts %.3f of ideal, loads %.3f, stores %.3f of bytes, %d mma flops\n",
           name, $11 / $12, $8 * 32 / $6, $9 * 32 / $7, $13
    expect($11 == $12, "has bank conflicts")
    expect($8 * 32 <= 1.05 * $6, "reads parts of sectors")
    expect($9 * 32 <= 1.05 * $7, "writes parts of sectors")
    expect($10 == 0, "has atomics")
    products = name ~ /forward/ ? 2 : name ~ / dq/ ? 3 : 4
    least    = products * 2 * 64 * (511 * 511 + 512 * 512 + 513 * 513)
    if (name ~ /^tensor/) {
      expect($13 >= least && $13 <= 1.1 * least, "computes " $13 / least " of what is needed")
    } else {
      expect($13 == 0, "uses tensor cores")
    }
  }
  END {
    name = "all"
    expect(seen == 9, "counted " seen + 0 " kernels, not 9")
    exit failed
  }'
