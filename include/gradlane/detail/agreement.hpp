// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>     // for bucket_plan
#include <gradlane/concepts.hpp>         // for communicator_for, device, timeout
#include <gradlane/detail/exchange.hpp>  // for sync_all_gather
#include <gradlane/error.hpp>            // for plan_mismatch_error

#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
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

/// Compares one 64-bit hash over all ranks. Collective; blocks.
/// @param hash  of what all ranks must have alike.
/// @param text  gives the same as text, line by line; called on every rank where hashes differ.
/// @param what  begins the message of the error.
/// @throws plan_mismatch_error, on every rank alike, naming the first line that differs and the
///   ranks; timeout_error where a rank does not take part.
template <device Device, communicator_for<Device> Comm, class Text>
void sync_agree(Device& device,
                typename Device::stream& stream,
                Comm& comm,
                std::uint64_t hash,
                Text text,
                std::string const& what,
                timeout deadline) {
  auto const hashes = sync_all_gather(device, stream, comm, hash, deadline);
  auto agree        = true;
  for (auto const other : hashes) { agree = agree && other == hashes[0]; }
  if (agree) { return; }
  auto const texts = sync_all_gather(device, stream, comm, std::string{text()}, deadline);
  throw plan_mismatch_error{what + describe_difference(texts)};
}

/// The same for plan and policy of a pipeline.
template <device Device, communicator_for<Device> Comm>
void sync_agree(Device& device,
                typename Device::stream& stream,
                Comm& comm,
                bucket_plan const& plan,
                std::string const& policy,
                timeout deadline) {
  sync_agree(
      device,
      stream,
      comm,
      plan.hash(policy),
      [&] { return agreement_text(plan, policy); },
      "clip_allreduce: ranks were made with different plans or policies: ",
      deadline);
}

}  // namespace gradlane::detail
