// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>     // for bucket_plan
#include <gradlane/concepts.hpp>         // for communicator_for, device, timeout
#include <gradlane/detail/exchange.hpp>  // for sync_all_gather
#include <gradlane/error.hpp>            // for plan_mismatch_error

#include <cstddef>      // for size_t
#include <span>         // for span
#include <string>       // for string, to_string
#include <string_view>  // for string_view

namespace gradlane::detail {

/// Line `index` of a text, or "(nothing)" past its end.
[[nodiscard]] inline std::string_view line_of(std::string_view text, std::size_t index) {
  for (; index > 0 && !text.empty(); --index) {
    auto const end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return text.empty() ? std::string_view{"(nothing)"} : text.substr(0, text.find('\n'));
}

/// Says where texts of several ranks first differ from that of rank 0; empty where none does.
[[nodiscard]] inline std::string describe_difference(std::span<std::string const> texts) {
  auto lines = std::size_t{0};
  for (auto const& text : texts) {
    auto own = std::size_t{1};
    for (auto const c : text) { own += c == '\n' ? 1 : 0; }
    if (lines < own) { lines = own; }
  }
  for (auto line = std::size_t{0}; line < lines; ++line) {
    auto const expected = line_of(texts[0], line);
    auto result         = std::string{};
    for (auto rank = std::size_t{1}; rank < texts.size(); ++rank) {
      auto const found = line_of(texts[rank], line);
      if (found == expected) { continue; }
      result += "; rank " + std::to_string(rank) + " has " + std::string{found};
    }
    if (!result.empty()) { return "rank 0 has " + std::string{expected} + result; }
  }
  return {};
}

/// What all ranks must have alike: parameters, options, `policy` and order, line by line.
[[nodiscard]] inline std::string agreement_text(bucket_plan const& plan,
                                                std::string const& policy) {
  auto text = std::string{};
  for (auto i = std::size_t{0}; i < plan.parameters().size(); ++i) {
    text += "parameter " + std::to_string(i) + ": " + plan.signature(i) + "\n";
  }
  text += plan.describe_options() + "\n" + policy;
  for (auto i = std::size_t{0}; i < plan.completion_order().size(); ++i) {
    text += "as gradient " + std::to_string(i) +
            " in order: " + plan.signature(plan.completion_order()[i]) + "\n";
  }
  return text;
}

/// Compares one 64-bit hash of plan and policy over all ranks. Collective; blocks.
/// @throws plan_mismatch_error, on every rank alike, naming the first parameter or policy that
///   differs and the ranks; timeout_error where a rank does not take part.
template <device Device, communicator_for<Device> Comm>
void sync_agree(Device& device,
                typename Device::stream& stream,
                Comm& comm,
                bucket_plan const& plan,
                std::string const& policy,
                timeout deadline) {
  auto const own    = plan.hash(policy);
  auto const hashes = sync_all_gather(device, stream, comm, own, deadline);
  auto agree        = true;
  for (auto const hash : hashes) { agree = agree && hash == hashes[0]; }
  if (agree) { return; }
  auto const texts = sync_all_gather(device, stream, comm, agreement_text(plan, policy), deadline);
  throw plan_mismatch_error{"clip_allreduce: ranks were made with different plans or policies: " +
                            describe_difference(texts)};
}

}  // namespace gradlane::detail
