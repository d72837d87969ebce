// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/attention/philox.hpp>

namespace {

using bert::philox;
using bert::philox_words;

constexpr auto ones = 0xFFFFFFFFU;

// The known answers that Random123 1.14 publishes (tests/kat_vectors, philox4x32).
TEST_CASE("philox with seven rounds gives Random123's known answers") {
  CHECK(philox<7>({0, 0, 0, 0}, 0, 0) ==
        philox_words{0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48});
  CHECK(philox<7>({ones, ones, ones, ones}, ones, ones) ==
        philox_words{0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662});
  CHECK(philox<7>({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, 0xA4093822, 0x299F31D0) ==
        philox_words{0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A});
}

TEST_CASE("philox with ten rounds gives Random123's known answers") {
  CHECK(philox<10>({0, 0, 0, 0}, 0, 0) ==
        philox_words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  CHECK(philox<10>({ones, ones, ones, ones}, ones, ones) ==
        philox_words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  CHECK(philox<10>({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, 0xA4093822, 0x299F31D0) ==
        philox_words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

}  // namespace
