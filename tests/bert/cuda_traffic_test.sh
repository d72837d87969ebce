#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_traffic_test.sh PTXSIM PROGRAM: what each operation of cuda_traffic.cpp moves in global memory,
# counted by ptxsim in whole sectors: at most 1.1 times the bytes that it says it must move. Without
# bank conflicts and without atomics.
set -euo pipefail
ptxsim="$1" program="$2"
folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT

"${program}" --list-test-cases | grep -v '^\[doctest\]\|^===' >"${folder}/names"
failed=0
while read -r name; do
  PTXSIM_STATS="${folder}/counts" "${ptxsim}" "${program}" --test-case="${name}" >"${folder}/output"
  must="$(sed -n 's/^must move //p' "${folder}/output")"
  # kernel,launches,blocks,threads,warp_instructions,global_load_bytes,global_store_bytes,
  # global_load_sectors,global_store_sectors,atomics,shared_wavefronts,shared_ideal,…
  sed 's/^"[^"]*"/kernel/' "${folder}/counts" | awk -F, -v must="${must}" -v name="${name}" '
    NR > 1 { moved += 32 * ($8 + $9); atomics += $10; wavefronts += $11; ideal += $12 }
    END {
      printf "%-45s moves %.3f of %d bytes, wavefronts %d of %d\n", name, moved / must, must, wavefronts, ideal
      exit !(must > 0 && moved <= 1.1 * must && moved >= 0.9 * must && atomics == 0 && wavefronts == ideal)
    }' || failed=1
done <"${folder}/names"
exit "${failed}"
