// SPDX-License-Identifier: Apache-2.0
// main() of every test that does not run on MPI ranks.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
