// SPDX-License-Identifier: Apache-2.0
// The presort on one CUDA device, with a communicator of one rank: what it does by itself.
#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda

#include <conformance/presort.hpp>        // for GRADLANE_PRESORT_CONFORMANCE
#include <support/lone_communicator.hpp>  // for lone_communicator

#include <cstdint>  // for uint64_t
#include <vector>   // for vector

namespace {

struct alone_on_cuda : gradlane::test::on_cuda {
  static constexpr auto schedules = std::uint64_t{4};

  [[nodiscard]] static std::vector<int> worlds() { return {1}; }

  template <class F>
  static void run(int, std::uint64_t, F f) {
    auto on   = device{};
    auto comm = gradlane::test::lone_communicator<device, false>{on};
    f(comm, on);
  }
};

}  // namespace

TYPE_TO_STRING(alone_on_cuda);
GRADLANE_PRESORT_CONFORMANCE(alone_on_cuda);

TEST_CASE("a CUDA device copies segments at any alignment, and of any size") {
  using namespace gradlane;
  auto device       = gradlane::cuda::device{};
  auto stream       = device.make_stream(stream_priority::normal);
  constexpr auto kb = std::size_t{1} << 10U;
  auto const from   = device.allocate(64 * kb);
  auto const to     = device.allocate(64 * kb);
  auto source       = std::vector<std::uint8_t>(64 * kb);
  for (auto i = std::size_t{0}; i < source.size(); ++i) {
    source[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  }
  auto expected = std::vector<std::uint8_t>(64 * kb, 0);
  auto list     = std::vector<detail::segment>{};
  auto at       = std::size_t{0};
  for (auto const bytes : {0, 1, 3, 15, 16, 17, 63, 1000, 4099}) {
    for (auto shift = std::size_t{0}; shift < 5; ++shift) {
      auto const n = static_cast<std::size_t>(bytes);
      list.push_back({from.data() + 3 * shift + at / 2, to.data() + at + shift * shift, n});
      for (auto i = std::size_t{0}; i < n; ++i) {
        expected[at + shift * shift + i] = source[3 * shift + at / 2 + i];
      }
      at += n + 32;
    }
  }
  REQUIRE(at < 64 * kb);
  auto const table = device.allocate(list.size() * sizeof(detail::segment));
  auto found       = std::vector<std::uint8_t>(64 * kb);
  auto const whole = buffer_view{to.data(), found.size(), dtype::uint8};
  detail::upload_all(device, stream, std::as_bytes(std::span{source}), from.data());
  detail::upload_all(device, stream, std::as_bytes(std::span{list}), table.data());
  device.zero(stream, whole);
  detail::copy_segments(
      device, stream, reinterpret_cast<detail::segment const*>(table.data()), list.size());
  device.download(stream, whole, std::as_writable_bytes(std::span{found}));
  device.sync(stream);
  CHECK(found == expected);
}
