// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a presort must do on every device with every communicator, as a test case over the fixture
// of conformance/pipeline.hpp. A test file says GRADLANE_PRESORT_CONFORMANCE(fixture). All device
// memory is read and written in stream order, and poisoned, so that what is read too early, or
// written too late, shows.

#include <gradlane/buffer_view.hpp>      // for buffer_view
#include <gradlane/detail/exchange.hpp>  // for upload_all
#include <gradlane/presort.hpp>          // for presort
#include <gradlane/types.hpp>            // for dtype, stream_priority

#include <doctest/doctest.h>

#include <support/dice.hpp>  // for dice
#include <support/samples.hpp>

#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint64_t
#include <span>     // for as_bytes, as_writable_bytes, span
#include <vector>   // for vector

namespace gradlane::test {

/// Samples whose contents lie in device memory.
template <class Device>
class device_samples {
 public:
  device_samples(Device& device, std::vector<balance::sample> const& samples) : host{samples} {
    for (auto const& array : host.data) { memory_.push_back(device.allocate(array.size())); }
  }

  /// Puts the contents there, in stream order.
  void write(Device& device, typename Device::stream& stream) {
    host.fill();
    for (auto a = std::size_t{0}; a < memory_.size(); ++a) {
      gradlane::detail::upload_all(device, stream, host.data.at(a), memory_[a].data());
    }
  }
  void poison(Device& device, typename Device::stream& stream) {
    for (auto a = std::size_t{0}; a < memory_.size(); ++a) {
      device.zero(stream, {memory_[a].data(), host.data.at(a).size(), dtype::uint8});
    }
  }

  [[nodiscard]] sample_window window(std::size_t steps) const {
    auto result = host.window(steps);
    for (auto a = std::size_t{0}; a < memory_.size(); ++a) {
      result.arrays[a] = {memory_[a].data(), host.data.at(a).size()};
    }
    return result;
  }

  sample_set host;

 private:
  mutable std::vector<typename Device::buffer> memory_;
};

/// What a batch holds in device memory, copied there in stream order, to be compared later: a
/// download to the host might wait, and so bring an order in that nothing guarantees.
template <class Device>
class batch_copy {
 public:
  using stream = typename Device::stream;

  batch_copy(Device& device, stream& s, presorted_batch const& batch) {
    auto samples = std::vector<balance::sample>{};
    for (auto i = std::size_t{0}; i < batch.size(); ++i) {
      auto const length = batch.starts()[i + 1] - batch.starts()[i];
      samples.push_back({batch.ids()[i], static_cast<std::uint32_t>(length)});
    }
    auto contents = sample_set{samples};
    contents.fill();
    for (auto a = std::size_t{0}; a < contents.data.size(); ++a) {
      add(device, s, contents.data.at(a), batch.template array<std::byte>(a));
    }
    add(device, s, as_bytes(batch.ids()), as_writable_bytes(batch.device_ids()));
    add(device, s, as_bytes(batch.starts()), as_writable_bytes(batch.device_starts()));
    for (auto const a : {positions, labels}) {
      auto const there = batch.device_row_starts(a);
      add(device, s, as_bytes(batch.row_starts(a)), as_writable_bytes(there));
    }
  }

  [[nodiscard]] bool sync_is_right(Device& device, stream& s) {
    auto right = true;
    for (auto p = std::size_t{0}; p < copies_.size(); ++p) {
      auto found = std::vector<std::byte>(expected_[p].size());
      device.download(s, view_of(p), found);
      device.sync(s);
      right = right && found == expected_[p];
    }
    return right;
  }

 private:
  [[nodiscard]] buffer_view view_of(std::size_t part) {
    return {copies_[part].data(), expected_[part].size(), dtype::uint8};
  }

  void add(Device& device,
           stream& s,
           std::span<std::byte const> expected,
           std::span<std::byte> there) {
    REQUIRE(expected.size() == there.size());
    expected_.emplace_back(expected.begin(), expected.end());
    copies_.push_back(device.allocate(expected.size()));
    auto const from = buffer_view{there.data(), there.size(), dtype::uint8};
    device.copy(s, from, view_of(copies_.size() - 1));
  }

  std::vector<std::vector<std::byte>> expected_;
  std::vector<typename Device::buffer> copies_;
};

/// The samples of every rank in a window.
[[nodiscard]] inline std::vector<std::vector<balance::sample>> random_samples(std::uint64_t seed,
                                                                              int ranks) {
  auto random = dice{seed};
  auto result = std::vector<std::vector<balance::sample>>(static_cast<std::size_t>(ranks));
  auto id     = seed * 1000;
  for (auto& own : result) {
    for (auto n = random.below(12); n > 0; --n) {
      own.push_back({id++, static_cast<std::uint32_t>(random.below(40))});
    }
  }
  return result;
}

template <class On>
void run_presort(std::uint64_t seed, int ranks) {
  CAPTURE(seed);
  CAPTURE(ranks);
  On::run(ranks, seed, [&](auto& comm, auto& device) {
    constexpr auto windows = std::uint64_t{4};
    auto const rank        = static_cast<std::size_t>(comm.rank());
    auto random            = dice{seed * 100 + rank};
    auto const micro_steps = 1 + seed % 2;
    auto sort              = presort{device, comm, sample_arrays(), {.micro_steps = micro_steps}};
    auto producer          = device.make_stream(stream_priority::normal);
    auto reader            = device.make_stream(stream_priority::normal);
    using samples          = device_samples<typename On::device>;
    auto own               = std::vector<samples>{};
    auto copies            = std::vector<batch_copy<typename On::device>>{};
    for (auto w = std::uint64_t{0}; w < windows; ++w) {
      own.emplace_back(device, random_samples(seed * windows + w, ranks)[rank]);
      own.back().poison(device, producer);
    }
    copies.reserve(windows * 8);
    auto const submit = [&](std::uint64_t w) {
      On::delay(device, producer, static_cast<int>(random.below(300)));
      own[w].write(device, producer);
      sort.submit(producer, own[w].window(1 + (seed + w) % 3));
    };
    submit(0);
    for (auto w = std::uint64_t{0}; w < windows; ++w) {
      static_cast<void>(sort.advance());
      auto const& window = sort.sync_take(reader);
      auto const early   = random.below(2) == 0;
      if (early && w + 1 < windows) { submit(w + 1); }
      On::delay(device, reader, static_cast<int>(random.below(300)));
      own[w].poison(device, reader);  // the presort has read it
      for (auto s = std::size_t{0}; s < window.steps(); ++s) {
        for (auto m = std::size_t{0}; m < micro_steps; ++m) {
          auto const batch = window.batch(s, m);
          copies.emplace_back(device, reader, batch);
          for (auto a = std::size_t{0}; a < 6; ++a) {
            auto const bytes = batch.template array<std::byte>(a);
            device.zero(reader, {bytes.data(), bytes.size(), dtype::uint8});
          }
        }
      }
      sort.release(reader);
      if (!early && w + 1 < windows) { submit(w + 1); }
    }
    device.sync(producer);
    device.sync(reader);
    for (auto& copy : copies) { CHECK(copy.sync_is_right(device, reader)); }
  });
}

}  // namespace gradlane::test

TEST_CASE_TEMPLATE_DEFINE("a presort brings samples to where they are dealt in device memory",
                          On,
                          presort_random_schedules) {
  for (auto const ranks : On::worlds()) {
    for (auto seed = std::uint64_t{0}; seed < On::schedules; ++seed) {
      gradlane::test::run_presort<On>(seed, ranks);
    }
  }
}

#define GRADLANE_PRESORT_CONFORMANCE(...) \
  TEST_CASE_TEMPLATE_INVOKE(presort_random_schedules, __VA_ARGS__)
