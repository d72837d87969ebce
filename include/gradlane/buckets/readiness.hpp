// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>  // for bucket_plan
#include <gradlane/error.hpp>         // for state_error

#include <cstddef>   // for size_t
#include <optional>  // for optional
#include <span>      // for span
#include <string>    // for string, to_string
#include <vector>    // for vector

namespace gradlane {

/// Which gradients of a step are complete, and which bucket may be launched next.
///
/// A bucket may be launched when all its gradients are complete and all earlier buckets have been
/// launched, whatever order backward takes: so all ranks launch alike. Pure; allocates only when
/// made. The plan must outlive it.
class readiness {
 public:
  explicit readiness(bucket_plan const& plan)
      : plan_{&plan},
        marks_(plan.parameters().size()),
        open_slots_(plan.parameters().size()),
        open_buckets_(plan.buckets().size()) {
    order_.reserve(plan.completion_order().size());
    reset();
  }

  /// Begins a step: nothing is ready.
  void reset() {
    next_ = 0;
    order_.clear();
    for (auto& marks : marks_) { marks = 0; }
    for (auto& open : open_slots_) { open = 0; }
    for (auto b = std::size_t{0}; b < open_buckets_.size(); ++b) {
      open_buckets_[b] = plan_->buckets()[b].marks;
    }
    for (auto i = std::size_t{0}; i < marks_.size(); ++i) {
      if (plan_->slot(i)) { open_slots_[plan_->owner(i)] += plan_->parameters()[i].uses; }
    }
  }

  /// Counts one ready() of a parameter; gives the number of its earlier ones in this step.
  /// @throws contract_error for an unknown parameter, state_error for a frozen one and for more
  ///   calls than its uses; then nothing has changed.
  std::size_t mark(std::size_t parameter) {
    plan_->check_index(parameter);
    auto const& p = plan_->parameters()[parameter];
    if (!p.trainable) { throw state_error{"ready: '" + p.name + "' is frozen"}; }
    if (marks_[parameter] == p.uses) {
      throw state_error{"ready: '" + p.name +
                        "' was marked already (uses = " + std::to_string(p.uses) +
                        "); declare more uses if its gradient is written more than once a step"};
    }
    if (auto const& slot = plan_->slot(parameter)) {
      auto const owner = plan_->owner(parameter);
      if (--open_slots_[owner] == 0) { order_.push_back(owner); }
      --open_buckets_[slot->bucket];
    }
    return marks_[parameter]++;
  }

  /// The next bucket to launch, once; none while it is incomplete or all have been launched.
  [[nodiscard]] std::optional<std::size_t> pop() {
    if (next_ == open_buckets_.size() || open_buckets_[next_] != 0) { return std::nullopt; }
    return next_++;
  }

  /// All buckets have been given out by pop().
  [[nodiscard]] bool all_launched() const noexcept { return next_ == open_buckets_.size(); }

  /// Slot owners in the order in which their gradients became complete in this step.
  [[nodiscard]] std::span<std::size_t const> order() const noexcept {
    return {order_.data(), order_.size()};
  }

  /// Names the first bucket that is incomplete and its parameters that lack marks.
  [[nodiscard]] std::string describe_missing() const {
    auto const limit = std::size_t{8};
    auto text        = std::string{};
    auto count       = std::size_t{0};
    for (auto i = std::size_t{0}; i < marks_.size(); ++i) {
      auto const& p    = plan_->parameters()[i];
      auto const& slot = plan_->slot(i);
      if (!slot || marks_[i] == p.uses || ++count > limit) { continue; }
      text += (count > 1 ? ", '" : "'") + p.name + "' (bucket " + std::to_string(slot->bucket) +
              ", " + std::to_string(marks_[i]) + " of " + std::to_string(p.uses) + " marks)";
    }
    if (count > limit) { text += " and " + std::to_string(count - limit) + " more"; }
    return text;
  }

 private:
  bucket_plan const* plan_;
  std::size_t next_{0};
  std::vector<std::size_t> marks_;         // by parameter: ready() calls so far
  std::vector<std::size_t> open_slots_;    // by slot owner: marks still missing
  std::vector<std::size_t> open_buckets_;  // by bucket: marks still missing
  std::vector<std::size_t> order_;
};

}  // namespace gradlane
