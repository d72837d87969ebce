// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>     // for atomic
#include <cstddef>    // for size_t
#include <exception>  // for exception_ptr
#include <thread>     // for jthread
#include <vector>     // for vector

namespace bert {

/// Calls work(i, thread) for every i below `count`, in order as threads become free.
///
/// @throws what the call with the smallest i threw; those that had not begun are left out.
template <class Work>
void parallel_for(std::size_t count, std::size_t threads, Work const& work) {
  auto next     = std::atomic<std::size_t>{0};
  auto failed   = std::atomic<bool>{false};
  auto failures = std::vector<std::exception_ptr>(threads);
  auto places   = std::vector<std::size_t>(threads, count);
  {
    auto workers = std::vector<std::jthread>{};
    for (auto thread = std::size_t{0}; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        for (auto i = next++; i < count && !failed; i = next++) {
          try {
            work(i, thread);
          } catch (...) {
            failures[thread] = std::current_exception();
            places[thread]   = i;
            failed           = true;
            return;
          }
        }
      });
    }
  }
  auto first = std::size_t{0};
  for (auto thread = std::size_t{1}; thread < threads; ++thread) {
    if (places[thread] < places[first]) { first = thread; }
  }
  if (threads > 0 && failures[first]) { std::rethrow_exception(failures[first]); }
}

}  // namespace bert
