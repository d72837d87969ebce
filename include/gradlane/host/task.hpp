// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>     // for invocable, same_as
#include <cstddef>      // for size_t, byte, max_align_t
#include <new>          // for launder
#include <type_traits>  // for remove_cvref_t, is_nothrow_move_constructible_v
#include <utility>      // for exchange, forward, move

namespace gradlane::host {

/// A callable that a stream runs once, kept inline: making or moving one never allocates.
///
/// Move-only, and so may be the callable. What it captures is destroyed with it, or with the
/// task that it was moved to.
class task {
 public:
  /// The largest callable that fits, in bytes.
  static constexpr std::size_t capacity = 128;

  /// Empty; not to be called.
  task() = default;

  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, task> && std::invocable<std::remove_cvref_t<F>&>)
  explicit task(F&& function) : operations_{&operations_for<std::remove_cvref_t<F>>} {
    using callable = std::remove_cvref_t<F>;
    static_assert(sizeof(callable) <= capacity,
                  "host::task: the callable is larger than task::capacity; capture a pointer");
    static_assert(alignof(callable) <= alignof(std::max_align_t),
                  "host::task: the callable is over-aligned");
    static_assert(std::is_nothrow_move_constructible_v<callable>,
                  "host::task: moving the callable may throw");
    ::new (static_cast<void*>(storage_)) callable(std::forward<F>(function));
  }

  task(task const&)            = delete;
  task& operator=(task const&) = delete;
  task(task&& other) noexcept : operations_{std::exchange(other.operations_, nullptr)} {
    if (operations_ != nullptr) { operations_->relocate(other.storage_, storage_); }
  }
  task& operator=(task&& other) noexcept {
    if (this != &other) {
      reset();
      operations_ = std::exchange(other.operations_, nullptr);
      if (operations_ != nullptr) { operations_->relocate(other.storage_, storage_); }
    }
    return *this;
  }
  ~task() { reset(); }

  void operator()() { operations_->run(storage_); }

  /// Destroys the callable.
  void reset() noexcept {
    if (operations_ != nullptr) { std::exchange(operations_, nullptr)->destroy(storage_); }
  }

 private:
  struct operations {
    void (*run)(std::byte*);
    void (*relocate)(std::byte* from, std::byte* to) noexcept;
    void (*destroy)(std::byte*) noexcept;
  };

  template <class F>
  [[nodiscard]] static F& held_in(std::byte* storage) noexcept {
    return *std::launder(reinterpret_cast<F*>(storage));
  }

  template <class F>
  static constexpr operations operations_for{
      .run = [](std::byte* storage) { held_in<F>(storage)(); },
      .relocate =
          [](std::byte* from, std::byte* to) noexcept {
            auto& source = held_in<F>(from);
            ::new (static_cast<void*>(to)) F(std::move(source));
            source.~F();
          },
      .destroy = [](std::byte* storage) noexcept { held_in<F>(storage).~F(); }};

  operations const* operations_{};
  alignas(std::max_align_t) std::byte storage_[capacity];
};

}  // namespace gradlane::host
