#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# schedules.sh N PTXSIM COMMAND...: runs the command under ptxsim N times, its streams' work in another
# random order each time. GRADLANE_SCHEDULE_SEED is the first seed (1).
set -uo pipefail
count="$1" first="${GRADLANE_SCHEDULE_SEED:-1}"
shift
for ((seed = first; seed < first + count; ++seed)); do
  if ! output="$(PTXSIM_SCHEDULE="random:${seed}" "$@" 2>&1)"; then
    printf 'PTXSIM_SCHEDULE=random:%d fails:\n%s\n' "${seed}" "${output}"
    exit 1
  fi
done
echo "passed in ${count} random orders"
