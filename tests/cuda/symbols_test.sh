#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# symbols_test.sh <nm> <program>: the host parts of kernels are there, and none is visible to other
# source files, one of which might launch it in place of its own.
set -u
found=$("$1" -C --defined-only "$2" | grep '__device_stub__' | grep -c 'gradlane::cuda')
global=$("$1" -C --defined-only --extern-only "$2" | grep -E '__device_stub__|gradlane::cuda::kernels::')
if [ "$found" -eq 0 ]; then
  echo "FAILED: $2 has no kernels, so that nothing is tested"
  exit 1
fi
if [ -n "$global" ]; then
  echo "FAILED: visible outside of their source file:"
  echo "$global"
  exit 1
fi
