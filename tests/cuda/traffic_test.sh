#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# traffic_test.sh PTXSIM STEP OTHER...: from counts of what kernels did, that the program STEP reads its
# bucket of 4 MiB once, beside what its communicator does, that the norm writes 8 bytes for each of at
# most 512 blocks and its result, and clipping no more than 1 KiB; and that no kernel of it or of the
# other programs meets bank conflicts.
set -euo pipefail
ptxsim="$1" step="$2"
shift
file="$(mktemp)"
trap 'rm -f "${file}"' EXIT

counts() { # PROGRAM: name, loaded sectors, stored bytes, wavefronts and ideal ones of each kernel
  PTXSIM_STATS="${file}" "${ptxsim}" "$1" >/dev/null
  sed -n 's/^"void \(.*\)",/\1\t/p' "${file}" | awk -F '\t' '{
    split($2, c, ","); print $1 "\t" c[7] "\t" c[6] "\t" c[10] "\t" c[11] }'
}

counts "${step}" | awk -F '\t' -v bucket=4194304 '
  /kernels::scale</ { next }
  { read += 32 * $2 }
  /kernels::sum_of_squares</ { sums++; norm += $3; next }
  { clip += $3 }
  END {
    printf "bucket of %d bytes: read %d, wrote %d for the norm, %d to clip\n", bucket, read, norm, clip
    exit !(sums == 1 && read >= bucket && read <= 1.05 * bucket && norm <= 8 * 512 + 64 && clip <= 1024)
  }'

for program in "$@"; do
  counts "${program}" | awk -F '\t' -v program="${program##*/}" '
    $4 != $5 { print "bank conflicts: " $1 ": " $4 " wavefronts, " $5 " would do"; bad++ }
    { kernels++ }
    END { print program ": " kernels " kernels"; exit !(kernels > 0 && bad == 0) }'
done
