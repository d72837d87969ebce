// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/error.hpp>            // for check
#include <gradlane/cuda/stream.hpp>           // for stream
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle

#include <cuda_runtime_api.h>

#include <cstddef>  // for size_t
#include <map>      // for map
#include <utility>  // for forward

namespace bert::cuda {

namespace detail {

struct graph_traits {
  using handle_type = cudaGraph_t;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type graph) noexcept {
    static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
  }
};

struct instance_traits {
  using handle_type = cudaGraphExec_t;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type instance) noexcept {
    static_cast<void>(cudaGraphExecDestroy(instance));
    static_cast<void>(cudaGetLastError());
  }
};

}  // namespace detail

/// Work that a stream is given over and over, and that is the same each time but for what it reads
/// from memory. The first time it is enqueued as it is, which makes all that there is to choose and
/// to connect; the second time it is captured into a graph; from then on the graph is launched.
///
/// @tparam Key  all that the work depends on besides the contents of memory.
template <class Key>
class step_graphs {
 public:
  /// @param sync     waits for all work on the stream: a graph cannot wait for what was enqueued
  ///                 before its capture.
  /// @param enqueue  neither waits nor allocates, from the second time on.
  template <class Sync, class Enqueue>
  void run(Key const& key, gradlane::cuda::stream const& stream, Sync&& sync, Enqueue&& enqueue) {
    auto const [place, is_new] = graphs_.try_emplace(key);
    if (is_new) {
      enqueue();
      return;
    }
    auto& graph = place->second;
    if (!graph) {
      std::forward<Sync>(sync)();
      graph = capture(stream, std::forward<Enqueue>(enqueue));
    }
    gradlane::cuda::check(cudaGraphLaunch(graph.get(), stream.get()));
  }

  /// Forgets all: what they read has moved. Nothing of them may be running.
  void clear() { graphs_.clear(); }

  [[nodiscard]] std::size_t size() const { return graphs_.size(); }

 private:
  using instance = gradlane::detail::unique_handle<detail::instance_traits>;

  [[nodiscard]] static gradlane::detail::unique_handle<detail::graph_traits> end_capture(
      gradlane::cuda::stream const& stream) {
    auto* graph = cudaGraph_t{};
    gradlane::cuda::check(cudaStreamEndCapture(stream.get(), &graph));
    return gradlane::detail::unique_handle<detail::graph_traits>{graph};
  }

  template <class Enqueue>
  [[nodiscard]] static instance capture(gradlane::cuda::stream const& stream, Enqueue&& enqueue) {
    using gradlane::cuda::check;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    try {
      enqueue();
    } catch (...) {
      auto* broken = cudaGraph_t{};
      static_cast<void>(cudaStreamEndCapture(stream.get(), &broken));
      static_cast<void>(cudaGetLastError());
      if (broken != nullptr) { static_cast<void>(cudaGraphDestroy(broken)); }
      throw;
    }
    auto const graph = end_capture(stream);
    auto* result     = cudaGraphExec_t{};
    check(cudaGraphInstantiate(&result, graph.get(), 0));
    return instance{result};
  }

  std::map<Key, instance> graphs_;  // without an instance before the second time
};

}  // namespace bert::cuda
