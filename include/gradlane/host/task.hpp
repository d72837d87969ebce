// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>     // for same_as
#include <cstddef>      // for size_t, byte, max_align_t
#include <new>          // for launder
#include <type_traits>  // for is_invocable_r_v, is_nothrow_move_constructible_v, remove_cvref_t
#include <utility>      // for exchange, forward, move

namespace gradlane::host {

/// A callable kept inline: making or moving one never allocates.
///
/// Move-only, and so may be the callable. What it captures is destroyed with it, or with the
/// object that it was moved to.
template <class Result>
class inline_function {
 public:
  /// The largest callable that fits, in bytes.
  static constexpr std::size_t capacity = 128;

  /// Empty; not to be called.
  inline_function() = default;

  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, inline_function> &&
             std::is_invocable_r_v<Result, std::remove_cvref_t<F>&>)
  explicit inline_function(F&& function) : operations_{&operations_for<std::remove_cvref_t<F>>} {
    using callable = std::remove_cvref_t<F>;
    static_assert(sizeof(callable) <= capacity,
                  "host::task: the callable is larger than the capacity; capture a pointer");
    static_assert(alignof(callable) <= alignof(std::max_align_t),
                  "host::task: the callable is over-aligned");
    static_assert(std::is_nothrow_move_constructible_v<callable>,
                  "host::task: moving the callable may throw");
    ::new (static_cast<void*>(storage_)) callable(std::forward<F>(function));
  }

  inline_function(inline_function const&)            = delete;
  inline_function& operator=(inline_function const&) = delete;
  inline_function(inline_function&& other) noexcept
      : operations_{std::exchange(other.operations_, nullptr)} {
    if (operations_ != nullptr) { operations_->relocate(other.storage_, storage_); }
  }
  inline_function& operator=(inline_function&& other) noexcept {
    if (this != &other) {
      reset();
      operations_ = std::exchange(other.operations_, nullptr);
      if (operations_ != nullptr) { operations_->relocate(other.storage_, storage_); }
    }
    return *this;
  }
  ~inline_function() { reset(); }

  Result operator()() { return operations_->run(storage_); }

  /// Destroys the callable.
  void reset() noexcept {
    if (operations_ != nullptr) { std::exchange(operations_, nullptr)->destroy(storage_); }
  }

 private:
  struct operations {
    Result (*run)(std::byte*);
    void (*relocate)(std::byte* from, std::byte* to) noexcept;
    void (*destroy)(std::byte*) noexcept;
  };

  template <class F>
  [[nodiscard]] static F& held_in(std::byte* storage) noexcept {
    return *std::launder(reinterpret_cast<F*>(storage));
  }

  template <class F>
  static constexpr operations operations_for{
      .run = [](std::byte* storage) -> Result { return held_in<F>(storage)(); },
      .relocate =
          [](std::byte* from, std::byte* to) noexcept {
            auto& source = held_in<F>(from);
            ::new (static_cast<void*>(to)) F(std::move(source));
            source.~F();  // NOLINT(bugprone-use-after-move): ends the life of what is left
          },
      .destroy = [](std::byte* storage) noexcept { held_in<F>(storage).~F(); }};

  operations const* operations_{};
  alignas(std::max_align_t) std::byte storage_[capacity];
};

/// What a stream runs, once.
using task = inline_function<void>;

}  // namespace gradlane::host
