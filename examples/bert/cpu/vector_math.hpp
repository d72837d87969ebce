// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>      // for bit_cast
#include <cstdint>  // for int32_t, uint32_t

namespace bert::cpu {

/// e^x in straight-line arithmetic, so that a loop over it becomes vector code.
///
/// Relative error below 1e-7 where the result is a normal float; x beyond ±87 is taken as ±87.
/// Source: range reduction and polynomial of Moshier's Cephes, expf.
[[nodiscard]] inline float exp_fast(float x) {
  x                   = x < -87.0F ? -87.0F : x;
  x                   = x > 87.0F ? 87.0F : x;
  auto const shifted  = x * 1.44269504F + 12582912.0F;  // the sum's low bits: x / ln 2, rounded
  auto const n        = shifted - 12582912.0F;
  auto const r        = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  auto p              = 1.9875691500e-4F;
  p                   = p * r + 1.3981999507e-3F;
  p                   = p * r + 8.3334519073e-3F;
  p                   = p * r + 4.1665795894e-2F;
  p                   = p * r + 1.6666665459e-1F;
  p                   = p * r + 5.0000001201e-1F;
  auto const mantissa = p * (r * r) + r + 1.0F;
  auto const exponent = std::bit_cast<std::int32_t>(shifted) - 0x4B400000;
  return mantissa * std::bit_cast<float>((exponent + 127) << 23);
}

/// The standard normal distribution at z: its density without the factor 1/√(2π), and its
/// cumulative function.
struct normal {
  float exponential;  // e^(-z²/2)
  float cumulative;
};

/// Relative error of both tails below 4e-7: cumulative(-a) = e^(-a²/2) t R(t), t = 1 / (1 + 0.35
/// a), where R is our own least-maximum fit of degree 8 (3.2e-8 before rounding).
[[nodiscard]] inline normal normal_fast(float z) {
  auto const a    = z < 0 ? -z : z;
  auto const e    = exp_fast(-0.5F * a * a);
  auto const t    = 1.0F / (1.0F + 0.35F * a);
  auto r          = -0.0291460676F;
  r               = r * t + 0.143972352F;
  r               = r * t - 0.255715572F;
  r               = r * t + 0.15917562F;
  r               = r * t - 0.0231108039F;
  r               = r * t + 0.105508397F;
  r               = r * t + 0.119832773F;
  r               = r * t + 0.139861882F;
  r               = r * t + 0.139621404F;
  auto const tail = e * t * r;
  return {e, z < 0 ? tail : 1.0F - tail};
}

}  // namespace bert::cpu
