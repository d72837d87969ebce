// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/deal.hpp>   // for deal, deal_rules, sample
#include <gradlane/sample_window.hpp>  // for array_of, presorted_window, sample_window

#include <array>    // for array
#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint8_t, uint16_t, uint32_t, uint64_t
#include <cstring>  // for memcpy, memset
#include <span>     // for as_bytes, span
#include <vector>   // for vector

/// Samples whose contents are a pure function of their ids: what the presort's tests compare with.
namespace gradlane::test {

/// A row that is no number.
struct coordinates {
  std::int16_t x;
  double y;
};

enum array_index : std::size_t { tokens, segments, next, places, positions, labels };

/// One array of every kind, rows of 1 to 16 bytes.
[[nodiscard]] inline std::vector<sample_array> sample_arrays() {
  return {array_of<std::uint32_t>("tokens"),
          array_of<std::uint8_t>("segments"),
          array_of<std::int32_t>("next", array_rows::per_sample),
          array_of<coordinates>("places", array_rows::per_sample),
          array_of<std::uint16_t>("positions", array_rows::counted),
          array_of<std::uint32_t>("labels", array_rows::counted, 2)};
}

[[nodiscard]] inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  auto h = a * 0x9E3779B97F4A7C15U + b * 0xBF58476D1CE4E5B9U + c * 0x94D049BB133111EBU + 1;
  h      = (h ^ (h >> 32U)) * 0xD6E8FEB86659FD93U;
  return h ^ (h >> 32U);
}

/// Rows of the two counted arrays.
[[nodiscard]] inline std::uint32_t count_of(std::uint64_t id, std::size_t which) {
  return static_cast<std::uint32_t>(mixed(id, which, 99) % 5);  // 0 … 4
}

/// Token ids reach above what 16 bits hold.
[[nodiscard]] inline std::uint32_t token_of(std::uint64_t id, std::size_t place) {
  return 50000 + static_cast<std::uint32_t>(mixed(id, place, 1) % 20000);
}
[[nodiscard]] inline std::uint8_t segment_of(std::uint64_t id, std::size_t place) {
  return static_cast<std::uint8_t>(mixed(id, place, 2));
}
[[nodiscard]] inline std::int32_t next_of(std::uint64_t id) {
  return static_cast<std::int32_t>(mixed(id, 0, 3));
}
[[nodiscard]] inline double place_of(std::uint64_t id) { return static_cast<double>(id) * 0.5; }
[[nodiscard]] inline std::uint16_t position_of(std::uint64_t id, std::size_t row) {
  return static_cast<std::uint16_t>(mixed(id, row, 4));
}
[[nodiscard]] inline std::uint32_t label_of(std::uint64_t id, std::size_t element) {
  return static_cast<std::uint32_t>(mixed(id, element, 5));
}

/// Some samples with memory for their contents.
class sample_set {
 public:
  sample_set() = default;
  explicit sample_set(std::vector<balance::sample> const& samples) {
    auto sizes = std::array<std::size_t, 6>{};
    for (auto const& [id, length] : samples) {
      ids.push_back(id);
      lengths.push_back(length);
      counts[0].push_back(count_of(id, 0));
      counts[1].push_back(count_of(id, 1));
      sizes[tokens] += length * sizeof(std::uint32_t);
      sizes[segments] += length;
      sizes[next] += sizeof(std::int32_t);
      sizes[places] += sizeof(coordinates);
      sizes[positions] += counts[0].back() * sizeof(std::uint16_t);
      sizes[labels] += counts[1].back() * 2 * sizeof(std::uint32_t);
    }
    for (auto a = std::size_t{0}; a < sizes.size(); ++a) { data.at(a).resize(sizes.at(a)); }
    poison();
  }

  /// Writes the contents.
  void fill() {
    auto at = std::array<std::byte*, 6>{};
    for (auto a = std::size_t{0}; a < at.size(); ++a) { at.at(a) = data.at(a).data(); }
    auto const put = [&](array_index a, auto value) {
      std::memcpy(at.at(a), &value, sizeof(value));
      at.at(a) += sizeof(value);
    };
    for (auto i = std::size_t{0}; i < ids.size(); ++i) {
      auto const id = ids[i];
      for (auto t = std::size_t{0}; t < lengths[i]; ++t) {
        put(tokens, token_of(id, t));
        put(segments, segment_of(id, t));
      }
      put(next, next_of(id));
      auto place = coordinates{};
      std::memset(static_cast<void*>(&place), 0, sizeof(place));
      place.x = static_cast<std::int16_t>(id);
      place.y = place_of(id);
      put(places, place);
      for (auto r = std::size_t{0}; r < counts[0][i]; ++r) { put(positions, position_of(id, r)); }
      for (auto e = std::size_t{0}; e < std::size_t{2} * counts[1][i]; ++e) {
        put(labels, label_of(id, e));
      }
    }
  }

  void poison() {
    for (auto& array : data) {
      if (!array.empty()) { std::memset(array.data(), 0xEE, array.size()); }
    }
  }

  /// A window of these samples alone.
  [[nodiscard]] sample_window window(std::size_t steps) const {
    auto result    = sample_window{};
    result.steps   = steps;
    result.ids     = ids;
    result.lengths = lengths;
    result.counts  = {counts[0], counts[1]};
    for (auto const& array : data) { result.arrays.emplace_back(array); }
    return result;
  }

  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> lengths;
  std::array<std::vector<std::uint32_t>, 2> counts;
  std::array<std::vector<std::byte>, 6> data;
};

/// How many of a batch's values are not what its samples have.
[[nodiscard]] inline std::size_t mistakes_in(presorted_batch const& batch) {
  auto wrong       = std::size_t{0};
  auto const check = [&](bool right) { wrong += right ? 0U : 1U; };
  auto const same  = [&](auto host, auto device) {
    check(host.size() == device.size());
    for (auto i = std::size_t{0}; i < host.size(); ++i) { check(host[i] == device[i]); }
  };
  same(batch.ids(), batch.device_ids());
  same(batch.starts(), batch.device_starts());
  same(batch.row_starts(positions), batch.device_row_starts(positions));
  same(batch.row_starts(labels), batch.device_row_starts(labels));
  check(batch.starts().front() == 0);
  check(batch.array<std::uint32_t>(tokens).size() == batch.tokens());
  check(batch.array<std::uint8_t>(segments).size() == batch.tokens());
  check(batch.array<std::int32_t>(next).size() == batch.size());
  for (auto i = std::size_t{0}; i < batch.size(); ++i) {
    auto const id    = batch.ids()[i];
    auto const range = [&](std::span<std::int32_t const> starts, auto use) {
      auto const begin = static_cast<std::size_t>(starts[i]);
      auto const end   = static_cast<std::size_t>(starts[i + 1]);
      for (auto row = begin; row < end; ++row) { use(row, row - begin); }
      return end - begin;
    };
    range(batch.starts(), [&](std::size_t row, std::size_t place) {
      check(batch.array<std::uint32_t>(tokens)[row] == token_of(id, place));
      check(batch.array<std::uint8_t>(segments)[row] == segment_of(id, place));
    });
    check(batch.array<std::int32_t>(next)[i] == next_of(id));
    check(batch.array<coordinates>(places)[i].y == place_of(id));
    auto const held = range(batch.row_starts(positions), [&](std::size_t row, std::size_t place) {
      check(batch.array<std::uint16_t>(positions)[row] == position_of(id, place));
    });
    check(held == count_of(id, 0));
    auto const pairs = range(batch.row_starts(labels), [&](std::size_t row, std::size_t place) {
      check(batch.array<std::uint32_t>(labels)[2 * row] == label_of(id, 2 * place));
      check(batch.array<std::uint32_t>(labels)[2 * row + 1] == label_of(id, 2 * place + 1));
    });
    check(pairs == count_of(id, 1));
  }
  return wrong;
}

/// Overwrites what a window holds in device memory: its reader may, until it is released.
inline void poison(presorted_window const& window) {
  for (auto s = std::size_t{0}; s < window.steps(); ++s) {
    for (auto m = std::size_t{0}; m < window.micro_steps(); ++m) {
      auto const batch = window.batch(s, m);
      for (auto a = std::size_t{0}; a < 6; ++a) {
        auto const bytes = batch.array<std::byte>(a);
        if (!bytes.empty()) { std::memset(bytes.data(), 0xDD, bytes.size()); }
      }
    }
  }
}

/// What balance::deal gives a rank: ids by batch.
[[nodiscard]] inline std::vector<std::vector<std::uint64_t>> expected_ids(
    std::vector<balance::sample> const& all,
    balance::deal_rules const& rules,
    std::size_t ranks,
    std::size_t rank) {
  auto const dealt = balance::deal(all, rules);
  auto result      = std::vector<std::vector<std::uint64_t>>{};
  for (auto step = std::size_t{0}; step < rules.steps; ++step) {
    for (auto part = rank; part < rules.ranks; part += ranks) {
      auto& batch = result.emplace_back();
      for (auto const i : dealt.bin(step, part)) { batch.push_back(all[i].id); }
    }
  }
  return result;
}

[[nodiscard]] inline std::vector<std::vector<std::uint64_t>> ids_by_batch(
    presorted_window const& window) {
  auto result = std::vector<std::vector<std::uint64_t>>{};
  for (auto s = std::size_t{0}; s < window.steps(); ++s) {
    for (auto m = std::size_t{0}; m < window.micro_steps(); ++m) {
      auto const ids = window.batch(s, m).ids();
      result.emplace_back(ids.begin(), ids.end());
    }
  }
  return result;
}

}  // namespace gradlane::test
