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
#include <vector>       // for vector

namespace gradlane::detail {

/// Takes the first line off a text; "(nothing)" where there is none.
[[nodiscard]] inline std::string_view take_line(std::string_view& text) {
  if (text.empty()) { return "(nothing)"; }
  auto const line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size() < text.size() ? line.size() + 1 : line.size());
  return line;
}

/// Says where texts of several ranks first differ from that of rank 0; empty where none does.
[[nodiscard]] inline std::string describe_difference(std::span<std::string const> texts) {
  auto rest   = std::vector<std::string_view>(texts.begin(), texts.end());
  auto result = std::string{};
  for (auto more = true; more && result.empty();) {
    auto const expected = take_line(rest[0]);
    more                = !rest[0].empty();
    for (auto rank = std::size_t{1}; rank < rest.size(); ++rank) {
      auto const found = take_line(rest[rank]);
      more             = more || !rest[rank].empty();
      if (found == expected) { continue; }
      if (result.empty()) { result.append("rank 0 has ").append(expected); }
      result.append("; rank ").append(std::to_string(rank)).append(" has ").append(found);
    }
  }
  return result;
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
