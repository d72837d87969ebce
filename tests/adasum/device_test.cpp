// SPDX-License-Identifier: Apache-2.0
#include <gradlane/adasum/device.hpp>  // for adasum_device
#include <gradlane/host/device.hpp>    // for device

#include <doctest/doctest.h>

#include <conformance/adasum_device.hpp>  // for GRADLANE_ADASUM_DEVICE_CONFORMANCE

#include <vector>  // for vector

namespace {

using namespace gradlane;

struct on_host {
  using device = host::device;
};

}  // namespace

TYPE_TO_STRING(on_host);
GRADLANE_ADASUM_DEVICE_CONFORMANCE(on_host);

TEST_CASE("host::device refuses lists for Adasum that are not alike") {
  auto d        = host::device{};
  auto s        = d.make_stream();
  auto x        = std::vector<float>(8);
  auto y        = std::vector<double>(8);
  auto const of = [&](std::vector<buffer_view> const& views) { return d.make_tensor_list(views); };
  auto whole    = of({std::span{x}});
  auto half     = of({std::span{x}.first(4)});
  auto two      = of({std::span{x}.first(4), std::span{x}.last(4)});
  auto wide     = of({std::span{y}});
  auto out      = std::vector<pair_products>(2);
  CHECK_THROWS_AS(d.dot_products(s, whole, half, out.data()), contract_error);
  CHECK_THROWS_AS(d.dot_products(s, whole, two, out.data()), contract_error);
  CHECK_THROWS_AS(d.dot_products(s, whole, wide, out.data()), contract_error);
  CHECK_THROWS_AS(d.combine(s, whole, whole, out.data(), half), contract_error);
  CHECK_THROWS_AS(d.combine(s, whole, whole, out.data(), wide), contract_error);
}
