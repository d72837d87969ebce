// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>      // for state_error
#include <gradlane/mpi/error.hpp>  // for check

#include <mpi.h>

#include <algorithm>    // for min, replace
#include <array>        // for array
#include <atomic>       // for atomic
#include <cstddef>      // for size_t
#include <cstdint>      // for uint8_t
#include <memory>       // for shared_ptr, make_shared
#include <string>       // for string
#include <string_view>  // for string_view

namespace gradlane::mpi {

/// MPI's thread levels: which threads may call MPI.
enum class thread_support : std::uint8_t { single, funneled, serialized, multiple };

[[nodiscard]] constexpr std::string_view name_of(thread_support level) noexcept {
  switch (level) {
    case thread_support::single:
      return "MPI_THREAD_SINGLE";
    case thread_support::funneled:
      return "MPI_THREAD_FUNNELED";
    case thread_support::serialized:
      return "MPI_THREAD_SERIALIZED";
    case thread_support::multiple:
      return "MPI_THREAD_MULTIPLE";
  }
  return "unknown";
}

namespace detail {

[[nodiscard]] inline int mpi_value(thread_support level) noexcept {
  switch (level) {
    case thread_support::single:
      return MPI_THREAD_SINGLE;
    case thread_support::funneled:
      return MPI_THREAD_FUNNELED;
    case thread_support::serialized:
      return MPI_THREAD_SERIALIZED;
    case thread_support::multiple:
      return MPI_THREAD_MULTIPLE;
  }
  return MPI_THREAD_SINGLE;
}

/// The level that MPI runs at; it must be initialised.
[[nodiscard]] inline thread_support thread_level() {
  auto level = 0;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level == MPI_THREAD_MULTIPLE) { return thread_support::multiple; }
  if (level == MPI_THREAD_SERIALIZED) { return thread_support::serialized; }
  return level == MPI_THREAD_FUNNELED ? thread_support::funneled : thread_support::single;
}

[[nodiscard]] inline bool is_initialized() noexcept {
  auto initialized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0;
}

[[nodiscard]] inline bool is_finalized() noexcept {
  auto finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

/// Whether this thread may call MPI now. These questions themselves are always allowed.
[[nodiscard]] inline bool may_call() noexcept {
  if (!is_initialized() || is_finalized()) { return false; }
  auto level = 0;
  auto main  = 0;
  if (MPI_Query_thread(&level) != MPI_SUCCESS) { return false; }
  return level == MPI_THREAD_MULTIPLE || (MPI_Is_thread_main(&main) == MPI_SUCCESS && main != 0);
}

/// Shared by an environment and the communicators that report to it.
struct health {
  std::atomic<bool> failed{false};
};

}  // namespace detail

/// Initialises MPI unless that has been done, and finalises it if it did.
///
/// MPI_Finalize waits for every peer, so after a rank has died it would never return: once a
/// communicator that reports here (options::owner) has failed, or `abandon` was called, the
/// environment leaves MPI as it is, and the process ends without MPI_Finalize.
///
/// Where it initialises MPI it makes MPI_COMM_WORLD return errors (MPI_ERRORS_RETURN), as MPICH
/// asks that communicator's handler, which by default ends the process, when a test of any
/// communicator's request fails. Made and destroyed on the main thread.
class environment {
 public:
  /// Asks for `wanted`; MPI may give less, and thread_level() says what it gave.
  /// @throws state_error where MPI is finalised already, error where it cannot be initialised.
  explicit environment(thread_support wanted = thread_support::multiple) : wanted_{wanted} {
    if (detail::is_finalized()) {
      throw state_error{"mpi::environment: MPI is finalised, and cannot be initialised again"};
    }
    if (!detail::is_initialized()) {
      auto provided = 0;
      detail::check(MPI_Init_thread(nullptr, nullptr, detail::mpi_value(wanted), &provided),
                    "MPI_Init_thread");
      owns_ = true;
      detail::check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                    "MPI_Comm_set_errhandler");
    }
    level_ = detail::thread_level();
  }
  environment(environment const&)            = delete;
  environment& operator=(environment const&) = delete;
  ~environment() {
    if (owns_ && !health_->failed && !detail::is_finalized()) { MPI_Finalize(); }
  }

  /// What MPI gave.
  [[nodiscard]] thread_support thread_level() const noexcept { return level_; }

  /// Whether this object initialised MPI, and so finalises it.
  [[nodiscard]] bool owns_mpi() const noexcept { return owns_; }

  /// A peer is lost: MPI_Finalize is not to be called.
  void abandon() noexcept { health_->failed = true; }

  /// "MPI_THREAD_FUNNELED (asked for MPI_THREAD_MULTIPLE), initialised by gradlane; MPICH …"
  [[nodiscard]] std::string describe() const {
    auto version = std::array<char, MPI_MAX_LIBRARY_VERSION_STRING>{};
    auto length  = 0;
    detail::check(MPI_Get_library_version(version.data(), &length), "MPI_Get_library_version");
    auto library = std::string{version.data(), static_cast<std::size_t>(length)};
    library.resize(std::min(library.find('\n'), library.size()));
    std::replace(library.begin(), library.end(), '\t', ' ');
    auto text = std::string{name_of(level_)};
    if (level_ != wanted_) { text.append(" (asked for ").append(name_of(wanted_)).append(")"); }
    text.append(owns_ ? ", initialised by gradlane; " : ", initialised by the program; ");
    return text.append(library);
  }

 private:
  friend class communicator;

  thread_support wanted_;
  thread_support level_{};
  bool owns_{false};
  std::shared_ptr<detail::health> health_ = std::make_shared<detail::health>();
};

}  // namespace gradlane::mpi
