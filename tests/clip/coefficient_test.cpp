// SPDX-License-Identifier: Apache-2.0
#include <gradlane/clip/coefficient.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

using namespace gradlane;

namespace {

constexpr auto infinite     = std::numeric_limits<double>::infinity();
constexpr auto not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("clip_factor is min(1, threshold / norm), and NaN where the norm is not finite") {
  static_assert(clip_factor(0.0, 1.0) == 1.0);
  static_assert(clip_factor(1.0, 1.0) == 1.0);
  static_assert(clip_factor(4.0, 1.0) == 0.25);
  static_assert(clip_factor(1e300, infinite) == 1.0);
  CHECK(std::isnan(clip_factor(infinite, 1.0)));
  CHECK(std::isnan(clip_factor(not_a_number, 1.0)));
  CHECK(std::isnan(clip_factor(infinite, infinite)));
  CHECK(std::isnan(clip_factor(1.0, not_a_number)));
  CHECK(clip_factor(5e-324, 1.0) == 1.0);
}

TEST_CASE("loss_scaling is NaN where the scale is not positive and finite") {
  for (auto const good : {1e-38F, 1.0F, 65536.0F}) {
    CHECK(detail::loss_scaling{.scale = &good}.value() == static_cast<double>(good));
  }
  for (auto const bad : {0.0F, -2.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    CHECK(std::isnan(detail::loss_scaling{.scale = &bad}.value()));
    CHECK(std::isnan(detail::loss_scaling{.scale = &bad}.divisor()));
  }
  CHECK(detail::loss_scaling{}.value() == 1.0);
}

TEST_CASE("bucket_coefficient multiplies clip factor, share and the inverse loss scale") {
  auto step  = step_record{.share = 0.25};
  auto scale = 8.0F;
  for (auto const unscale : {true, false}) {
    auto record = bucket_record{.sum_of_squares = 64.0 * 16.0, .threshold = 2.0};  // S·g = 32
    detail::bucket_coefficient{.record   = &record,
                               .step     = &step,
                               .loss     = {.scale = &scale, .unscale = unscale},
                               .adaptive = 0.0,
                               .clips    = true}();
    CHECK(record.norm == 4.0);
    CHECK(record.clipped == 1);
    CHECK(record.non_finite == 0);
    CHECK(record.coefficient == (unscale ? 0.5F * 0.25F / 8.0F : 0.5F * 0.25F));
  }
}

TEST_CASE("bucket_coefficient of a rank without weight is 0, whatever its norm") {
  auto step = step_record{.share = 0.0};
  for (auto const sum : {1.0, infinite, not_a_number}) {
    auto record = bucket_record{.sum_of_squares = sum, .threshold = 0.5};
    detail::bucket_coefficient{
        .record = &record, .step = &step, .loss = {}, .adaptive = 0.0, .clips = true}();
    CHECK(record.coefficient == 0.0F);
    CHECK(record.clipped == 0);
    CHECK(record.non_finite == 0);
    CHECK(record.norm == 0.0);
  }
}

TEST_CASE("share_of_weights divides by the sum, by the ranks, and never by 0") {
  auto step = step_record{.weight = {3.0, 1.0}, .total_weight = {12.0, 4.0}};
  detail::share_of_weights{.step = &step, .ranks = 0.0}();
  CHECK(step.share == 0.25);
  detail::share_of_weights{.step = &step, .ranks = 6.0}();
  CHECK(step.share == 0.5);
  step = step_record{};
  detail::share_of_weights{.step = &step, .ranks = 0.0}();
  CHECK(step.share == 0.0);
}

TEST_CASE("total_coefficient gives all buckets one coefficient from the norm of all") {
  auto step    = step_record{.share = 1.0};
  auto records = std::array{bucket_record{.sum_of_squares = 9.0, .threshold = 1.0},
                            bucket_record{.sum_of_squares = 16.0, .threshold = 1.0}};
  detail::total_coefficient{.records = records.data(), .buckets = 2, .step = &step, .loss = {}}();
  CHECK(records[0].coefficient == 0.2F);
  CHECK(records[1].coefficient == 0.2F);
  CHECK(records[0].norm == 3.0);
  CHECK(step.clipped == 1);
  records[1].sum_of_squares = not_a_number;
  detail::total_coefficient{.records = records.data(), .buckets = 2, .step = &step, .loss = {}}();
  CHECK(std::isnan(records[0].coefficient));
  CHECK(records[0].non_finite == 0);
  CHECK(records[1].non_finite == 1);
}

TEST_CASE("close_step counts steps that were not skipped, and leaves all else as it was") {
  auto step        = step_record{.share = 1.0};
  auto records     = std::array{bucket_record{}, bucket_record{}};
  auto const close = [&](double average_decay) {
    detail::close_step{.records  = records.data(),
                       .buckets  = 2,
                       .step     = &step,
                       .loss     = {},
                       .decay    = average_decay,
                       .scope    = clip_scope::local_bucket,
                       .local    = true,
                       .detects  = true,
                       .in_place = false}();
  };
  records[0] = {.norm = 3.0, .threshold = 2.0, .clipped = 1};
  records[1] = {.norm = 4.0, .threshold = 9.0};
  close(0.5);
  CHECK(step.norm == 5.0);
  CHECK(step.steps == 1);
  CHECK(step.clipped_units == 1);
  CHECK(records[0].clipped_steps == 1);
  CHECK(records[0].average == 2.0);  // the norm, but no more than the bound
  CHECK(records[1].average == 4.0);
  records[1].norm = 8.0;
  close(0.5);
  CHECK(records[1].average == 6.0);
  auto const kept            = records[1].average;
  records[0].reduced_squares = not_a_number;
  close(0.5);
  CHECK(step.status.skip == 1);
  CHECK(step.steps == 2);
  CHECK(step.skipped_steps == 1);
  CHECK(step.clipped_units == 2);
  CHECK(records[1].average == kept);
  CHECK(records[0].non_finite == 1);
  records[0].reduced_squares = 0.0;
  records[0].non_finite      = 0;  // the next coefficient says so
  close(-1.0);
  CHECK(step.status.skip == 0);
  CHECK(step.steps == 3);
}
