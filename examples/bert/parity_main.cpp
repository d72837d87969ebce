// SPDX-License-Identifier: Apache-2.0
// bert_parity FOLDER [fp32|bf16]: the CPU's side of parity.py.
#include "cpu/device.hpp"  // for device
#include "parity.hpp"      // for parity_main, run_parity

#include <gradlane/types.hpp>  // for bf16

#include <cstddef>      // for size_t
#include <cstring>      // for memcpy
#include <filesystem>   // for path
#include <type_traits>  // for type_identity

int main(int argc, char** argv) {
  return bert::parity_main<float, gradlane::bf16>(
      argc, argv, []<class Value>(std::type_identity<Value>, std::filesystem::path const& folder) {
        auto device = bert::cpu::device<Value>{};
        bert::run_parity(folder, device, [](void* to, void const* from, std::size_t bytes) {
          std::memcpy(to, from, bytes);
        });
      });
}
