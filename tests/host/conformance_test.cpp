// SPDX-License-Identifier: Apache-2.0
#include <gradlane/host/device.hpp>  // for device

#include <doctest/doctest.h>

#include <conformance/device.hpp>  // for GRADLANE_DEVICE_CONFORMANCE

#include <atomic>     // for atomic
#include <chrono>     // for microseconds
#include <memory>     // for make_shared, shared_ptr
#include <stdexcept>  // for runtime_error
#include <thread>     // for sleep_for

namespace {

struct on_host {
  using device = gradlane::host::device;

  class gate {
   public:
    void hold(device& d, device::stream& s) {
      d.enqueue(s, [opened = opened_] { opened->wait(false); });
    }
    void open() {
      opened_->store(true);
      opened_->notify_all();
    }

   private:
    std::shared_ptr<std::atomic<bool>> opened_ = std::make_shared<std::atomic<bool>>(false);
  };

  static void delay(device& d, device::stream& s, int microseconds) {
    d.enqueue(s, [=] { std::this_thread::sleep_for(std::chrono::microseconds{microseconds}); });
  }

  static void fail(device& d, device::stream& s, char const* text) {
    d.enqueue(s, [=] { throw std::runtime_error{text}; });
  }
};

}  // namespace

TYPE_TO_STRING(on_host);
GRADLANE_DEVICE_CONFORMANCE(on_host);
GRADLANE_DEVICE_ERROR_CONFORMANCE(on_host);
