#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# peer_killed_test.sh <mpiexec> <message> <program> [<argument>...]
#
# Runs 3 ranks, or as many as the environment variable RANKS says, of which rank 1 kills itself, and
# checks that the others end well and say <message>, in which RANK stands for their rank. MPICH's
# mpiexec -disable-auto-cleanup leaves them alone only where it does not see the signal: so a shell
# stands between. It tells the survivors by SIGUSR1, which would end them.
set -u
ranks="${RANKS:-3}"
mpiexec="$1" message="$2"
shift 2
output=$(timeout -k 5 60 "$mpiexec" -disable-auto-cleanup -n "$ranks" sh -c \
  'trap "" USR1; "$@"; echo "status $?"' sh "$@" 2>&1)
echo "$output"

# expect <how often> <pattern>
expect() {
  found=$(echo "$output" | grep -c "$2")
  if [ "$found" -ne "$1" ]; then
    echo "FAILED: $found lines with '$2', not $1"
    exit 1
  fi
}
for rank in $(seq 0 $((ranks - 1))); do
  [ "$rank" -eq 1 ] && continue
  expect 1 "survivor $rank of $ranks: .*$(echo "$message" | sed "s/RANK/$rank/g")"
done
expect $((ranks - 1)) "status 0"
expect 1 "status 137"
