// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum.hpp>           // for adasum_all_reduce, adasum_buffer, element_range
#include <gradlane/buffer_view.hpp>      // for buffer_view
#include <gradlane/detail/exchange.hpp>  // for upload_all
#include <gradlane/element_range.hpp>    // for element_range, intersection
#include <gradlane/types.hpp>            // for dtype, element

#include <support/model.hpp>  // for gradients, host_copy, load, poison, store

#include <algorithm>  // for find
#include <cmath>      // for isnan, log2, sqrt
#include <cstddef>    // for byte, size_t
#include <cstdint>    // for uint64_t
#include <cstring>    // for memcmp
#include <limits>     // for numeric_limits
#include <random>     // for mt19937_64, normal_distribution
#include <span>       // for span
#include <vector>     // for vector

/// Adasum in its plainest form, with more digits than fp64, and inputs for it.
namespace gradlane::test {

using wide_vector = std::vector<long double>;

struct adasum_reference {
  wide_vector value;
  long double orthogonality{};  ///< ‖value‖² / Σ ‖g_r‖²
};

[[nodiscard]] inline long double wide_dot(wide_vector const& a, wide_vector const& b) {
  auto sum = 0.0L;
  for (auto i = std::size_t{0}; i < a.size(); ++i) { sum += a[i] * b[i]; }
  return sum;
}

[[nodiscard]] inline wide_vector adasum_of_two(wide_vector const& a, wide_vector const& b) {
  auto const dot = wide_dot(a, b);
  auto const aa  = wide_dot(a, a);
  auto const bb  = wide_dot(b, b);
  auto const ca  = aa == 0 ? 1.0L : 1.0L - dot / (2 * aa);
  auto const cb  = bb == 0 ? 1.0L : 1.0L - dot / (2 * bb);
  auto result    = wide_vector{};
  for (auto i = std::size_t{0}; i < a.size(); ++i) { result.push_back(ca * a[i] + cb * b[i]); }
  return result;
}

/// The tree: the lowest 2s ranks in pairs, where s is what a power of two leaves over, then
/// neighbours until one is left.
[[nodiscard]] inline adasum_reference adasum_tree(std::vector<wide_vector> vectors) {
  auto leaf_squares = 0.0L;
  for (auto const& v : vectors) { leaf_squares += wide_dot(v, v); }
  auto power = std::size_t{1};
  while (2 * power <= vectors.size()) { power *= 2; }
  auto pairs = vectors.size() - power;
  while (vectors.size() > 1) {
    if (pairs == 0) { pairs = vectors.size() / 2; }
    auto joined = std::vector<wide_vector>{};
    for (auto i = std::size_t{0}; i < vectors.size();) {
      auto const is_pair = i < 2 * pairs;
      joined.push_back(is_pair ? adasum_of_two(vectors[i], vectors[i + 1]) : vectors[i]);
      i += is_pair ? 2 : 1;
    }
    vectors = joined;
    pairs   = 0;
  }
  auto const squares = wide_dot(vectors[0], vectors[0]);
  return {vectors[0], squares / leaf_squares};
}

/// By rank: the node that it is on. Each on its own: plain Adasum.
using node_layout = std::vector<int>;

[[nodiscard]] inline node_layout each_alone(int ranks) {
  auto result = node_layout{};
  for (auto r = 0; r < ranks; ++r) { result.push_back(r); }
  return result;
}

[[nodiscard]] inline node_layout grid_of(int nodes, int ranks_per_node) {
  auto result = node_layout{};
  for (auto r = 0; r < nodes * ranks_per_node; ++r) { result.push_back(r / ranks_per_node); }
  return result;
}

/// The nodes in the order of their lowest ranks.
[[nodiscard]] inline std::vector<int> nodes_in(node_layout const& layout) {
  auto result = std::vector<int>{};
  for (auto const node : layout) {
    if (std::find(result.begin(), result.end(), node) == result.end()) { result.push_back(node); }
  }
  return result;
}

/// The tree over the nodes' means of factors[r][p] · g[r][p], parameter by parameter.
[[nodiscard]] inline std::vector<adasum_reference> adasum_of(
    gradients const& g,
    std::vector<std::vector<double>> const& factors,
    node_layout const& layout) {
  auto result      = std::vector<adasum_reference>{};
  auto const nodes = nodes_in(layout);
  auto const share = static_cast<long double>(nodes.size()) / static_cast<long double>(g.size());
  for (auto p = std::size_t{0}; p < g[0].size(); ++p) {
    auto vectors = std::vector<wide_vector>{};
    for (auto const node : nodes) {
      auto& v = vectors.emplace_back(g[0][p].size());
      for (auto r = std::size_t{0}; r < g.size(); ++r) {
        for (auto i = std::size_t{0}; layout[r] == node && i < v.size(); ++i) {
          v[i] += share * static_cast<long double>(factors[r][p] * g[r][p][i]);
        }
      }
    }
    result.push_back(adasum_tree(vectors));
  }
  return result;
}

[[nodiscard]] inline std::vector<std::vector<double>> adasum(
    gradients const& g,
    std::vector<std::vector<double>> const& factors,
    node_layout const& layout) {
  auto result = std::vector<std::vector<double>>{};
  for (auto const& joined : adasum_of(g, factors, layout)) {
    result.emplace_back(joined.value.begin(), joined.value.end());
  }
  return result;
}

[[nodiscard]] inline std::vector<std::vector<double>> ones(gradients const& g) {
  return {g.size(), std::vector<double>(g[0].size(), 1.0)};
}

/// The distance between 1 and the next value.
[[nodiscard]] inline double epsilon_of(dtype type) {
  switch (type) {
    case dtype::fp64:
      return 0x1p-52;
    case dtype::bf16:
      return 0x1p-7;
    case dtype::fp16:
      return 0x1p-10;
    default:
      return 0x1p-23;
  }
}

/// A buffer in host memory with the gradients of every rank that it may be filled with.
struct adasum_case {
  dtype type{dtype::fp32};
  std::size_t count{};
  std::vector<element_range> segments;
  std::uint64_t seed{};

  /// Normal values: a part common to all ranks, and one of the rank's own; rounded to the dtype.
  [[nodiscard]] wide_vector gradient(int rank, std::size_t segment) const {
    auto common = std::mt19937_64{seed * 1000 + segment};
    auto own    = std::mt19937_64{(seed * 1000 + segment) * 100 + static_cast<unsigned>(rank) + 1};
    auto shared = std::normal_distribution{};  // each keeps a value for its next call
    auto normal = std::normal_distribution{};
    auto result = wide_vector{};
    auto cell   = double{};
    for (auto i = segments[segment].begin; i < segments[segment].end; ++i) {
      auto const view = buffer_view{reinterpret_cast<std::byte*>(&cell), 1, type};
      store(view, 0, 0.5 * shared(common) + normal(own));
      result.push_back(static_cast<long double>(load(view, 0)));
    }
    return result;
  }

  [[nodiscard]] adasum_reference expected(int ranks, std::size_t segment) const {
    auto all = std::vector<wide_vector>{};
    for (auto r = 0; r < ranks; ++r) { all.push_back(gradient(r, segment)); }
    return adasum_tree(all);
  }

  /// NaN everywhere but in the segments.
  void fill(buffer_view memory, int rank) const {
    poison(memory);
    for (auto t = std::size_t{0}; t < segments.size(); ++t) {
      auto const g = gradient(rank, t);
      for (auto i = std::size_t{0}; i < g.size(); ++i) {
        store(memory, segments[t].begin + i, static_cast<double>(g[i]));
      }
    }
  }

  /// ‖found − expected‖ / ‖expected‖ of one segment, in units of the dtype's epsilon.
  [[nodiscard]] double error(buffer_view memory, int ranks, std::size_t segment) const {
    return error_within(memory, ranks, segment, {0, count});
  }

  /// The same, where only some elements of `memory` are looked at.
  [[nodiscard]] double error_within(buffer_view memory,
                                    int ranks,
                                    std::size_t segment,
                                    element_range part) const {
    auto const wanted = expected(ranks, segment).value;
    auto const here   = intersection(segments[segment], part);
    auto squares      = 0.0L;
    for (auto i = here.begin; i < here.end; ++i) {
      auto const found = static_cast<long double>(load(memory, i));
      auto const error = found - wanted[i - segments[segment].begin];
      squares += error * error;
    }
    auto const norm = std::sqrt(wide_dot(wanted, wanted));
    if (here.count() == 0) { return 0.0; }
    return static_cast<double>(std::sqrt(squares) / norm) / epsilon_of(type);
  }
};

/// Segments of all kinds in one buffer: gaps before, between and behind, an empty one, one element,
/// one larger than all others together.
[[nodiscard]] inline adasum_case mixed_case(dtype type, std::uint64_t seed) {
  return {.type     = type,
          .count    = 4200,
          .segments = {{64, 65}, {128, 128}, {128, 471}, {512, 3777}, {3777, 4000}, {4100, 4103}},
          .seed     = seed};
}

/// Bytes of a segment.
[[nodiscard]] inline std::vector<std::byte> bytes_of(buffer_view memory, element_range segment) {
  auto const part = memory.subview(segment.begin, segment.count());
  return {part.data(), part.data() + part.size_bytes()};
}

/// Reduces the case over the ranks of `comm`; gives the bytes of all segments and their
/// orthogonalities, and checks both, with `check(condition)`, against the reference.
template <class Comm, class Device, class Check>
[[nodiscard]] std::vector<std::byte> run_adasum(Comm& comm,
                                                Device& device,
                                                adasum_case const& input,
                                                Check check) {
  auto memory      = device.allocate(input.count * size_of(input.type));
  auto const there = buffer_view{memory.data(), input.count, input.type};
  auto here        = host_copy{there};
  auto const view  = here.view();
  auto s           = device.make_stream(stream_priority::high);
  input.fill(view, comm.rank());
  auto reduction = adasum_all_reduce{device, comm, {{there, input.segments}}};
  gradlane::detail::upload_all(device, s, here.bytes(), there.data());
  reduction.reduce(s);
  reduction.download(s);
  device.download(s, there, here.bytes());
  device.sync(s);
  auto const bound = comm.size() == 1 ? 0.0 : 4 * std::log2(comm.size());
  auto result      = std::vector<std::byte>{};
  for (auto t = std::size_t{0}; t < input.segments.size(); ++t) {
    check(input.error(view, comm.size(), t) <= bound);
    auto const bytes = bytes_of(view, input.segments[t]);
    result.insert(result.end(), bytes.begin(), bytes.end());
    auto const found   = reduction.orthogonality(0, t);
    auto const wanted  = static_cast<double>(input.expected(comm.size(), t).orthogonality);
    auto const between = 100 * epsilon_of(input.type);  // of squares of results that were rounded
    check(comm.size() == 1 || input.segments[t].count() == 0
              ? true
              : std::abs(found - wanted) <= between * wanted);
    auto const* const as_bytes = reinterpret_cast<std::byte const*>(&found);
    if (input.segments[t].count() > 0) {
      result.insert(result.end(), as_bytes, as_bytes + sizeof found);
    }
  }
  return result;
}

}  // namespace gradlane::test
