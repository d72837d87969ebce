// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/bucket_update.hpp>     // for bucket_update
#include <gradlane/buckets/plan.hpp>      // for bucket_plan
#include <gradlane/buffer_view.hpp>       // for buffer_view
#include <gradlane/concepts.hpp>          // for device
#include <gradlane/error.hpp>             // for expects, update_error
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets

#include <cstddef>     // for size_t
#include <cstdint>     // for uint64_t
#include <exception>   // for exception, throw_with_nested
#include <functional>  // for function
#include <string>      // for string, to_string
#include <utility>     // for move
#include <vector>      // for vector

namespace gradlane::detail {

/// The trainer's optimizer of reduce::deltas, if there is one, and the views it is given.
template <device Device>
class local_update {
 public:
  using function = std::function<void(bucket_update<Device> const&)>;

  local_update() = default;
  /// @throws contract_error for an empty function.
  explicit local_update(function update) : update_{std::move(update)} {
    expects(static_cast<bool>(update_), "reduce::deltas: the update is an empty function");
  }

  /// Makes the views of the buckets as they are laid out now.
  void reset(gradient_buckets<Device>& buckets) {
    views_.clear();
    for (auto b = std::size_t{0}; update_ && b < buckets.plan().buckets().size(); ++b) {
      auto const& storage = buckets.bucket(b);
      auto& added         = views_.emplace_back();
      added.gradients     = storage.tensors;
      for (auto t = std::size_t{0}; t < storage.tensors.size(); ++t) {
        auto const& slot = *buckets.plan().slot(buckets.plan().buckets()[b].parameters[t]);
        added.deltas.push_back(storage.wire.subview(slot.offset, slot.count));
        if (!storage.accumulator.empty()) {
          added.gradients[t] = storage.accumulator.subview(slot.offset, slot.count);
        }
      }
    }
  }

  /// @throws update_error, with what the update threw nested in it.
  void operator()(typename Device::stream& stream,
                  bucket_plan const& plan,
                  std::size_t bucket,
                  float const* coefficient,
                  std::uint64_t const* steps) const {
    auto const fail = [&](std::string const& cause) {
      std::throw_with_nested(update_error{"reduce::deltas: the update of bucket " +
                                              std::to_string(bucket) + ", " +
                                              plan.name_list(bucket) + ", failed: " + cause,
                                          bucket});
    };
    try {
      update_({.stream      = stream,
               .bucket      = bucket,
               .parameters  = plan.buckets()[bucket].parameters,
               .gradients   = views_[bucket].gradients,
               .deltas      = views_[bucket].deltas,
               .coefficient = coefficient,
               .steps       = steps});
    } catch (std::exception const& cause) { fail(cause.what()); } catch (...) {
      fail("by an exception that is no std::exception");
    }
  }

 private:
  struct bucket_views {
    std::vector<buffer_view> gradients;  // by parameter of the bucket
    std::vector<buffer_view> deltas;
  };

  function update_;
  std::vector<bucket_views> views_;  // by bucket
};

}  // namespace gradlane::detail
