// SPDX-License-Identifier: Apache-2.0
#include "launch.cuh"  // for launch
#include "optimizer.hpp"
#include "optimizer_kernels.cuh"  // for begin_update, adamw, lamb_moments, lamb_ratios, lamb_apply
#include "tuning.hpp"             // for optimizer_elements, optimizer_threads

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/error.hpp>       // for expects
#include <gradlane/types.hpp>       // for bf16, fp16

#include <algorithm>  // for min
#include <vector>     // for vector

namespace bert::cuda {

using gradlane::expects;
using gradlane::cuda::check;
using tuning::optimizer_elements;
using tuning::optimizer_threads;

namespace {

template <class T>
void sync_upload(cudaStream_t stream, std::span<T const> from, T* to) {
  if (!from.empty()) {
    check(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream));
    check(cudaStreamSynchronize(stream));
  }
}

template <class T>
device_buffer<T> sync_upload(cudaStream_t stream, std::vector<T> const& from) {
  auto result = device_buffer<T>{from.size()};
  sync_upload(stream, std::span<T const>{from}, result.data());
  return result;
}

void zero(cudaStream_t stream, device_buffer<float> const& x) {
  check(cudaMemsetAsync(x.data(), 0, x.size() * sizeof(float), stream));
}

}  // namespace

struct optimizer::tables {
  device_buffer<tensor_entry> tensors;
  device_buffer<block_entry> blocks;
  device_buffer<block_norms> norms;  // by block
  device_buffer<float> ratios;       // by tensor
  device_buffer<step_factors> factors{1};
};

optimizer::optimizer(parameter_list const& list,
                     optimizer_settings const& settings,
                     std::span<std::span<float> const> gradients,
                     gradlane::cuda::stream const& stream)
    : optimizer{list, settings, gradients, whole_tensors(list), stream} {}

optimizer::optimizer(parameter_list const& list,
                     optimizer_settings const& settings,
                     std::span<std::span<float> const> gradients,
                     std::span<tensor_part const> parts,
                     gradlane::cuda::stream const& stream)
    : settings_{settings},
      total_{list.total()},
      stream_{stream.get()},
      tables_{std::make_unique<tables>()} {
  settings.check();
  expects(gradients.size() == list.size(), "optimizer: needs one gradient for each tensor");
  auto tensors = std::vector<tensor_entry>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    auto const& p = list[i];
    expects(gradients[i].size() == p.size, "optimizer: a gradient has the wrong size");
    tensors.push_back(
        {gradients[i].data(), p.decay ? static_cast<float>(settings.weight_decay) : 0.0F, 0, 0});
  }
  auto blocks = std::vector<block_entry>{};
  auto place  = std::size_t{0};
  for (auto const& [tensor, begin, size] : parts) {
    check_part(list, settings, {tensor, begin, size});
    auto& entry       = tensors[tensor];
    entry.first_block = static_cast<std::uint32_t>(blocks.size());
    for (auto done = std::size_t{0}; done < size; done += optimizer_elements) {
      blocks.push_back({list[tensor].offset + begin + done,
                        place + done,
                        begin + done,
                        static_cast<std::uint32_t>(tensor),
                        static_cast<std::int32_t>(std::min(optimizer_elements, size - done))});
    }
    entry.last_block = static_cast<std::uint32_t>(blocks.size());
    offsets_.push_back(list[tensor].offset + begin);
    sizes_.push_back(size);
    place += size;
  }
  first_           = device_buffer<float>{place};
  second_          = device_buffer<float>{place};
  tables_->tensors = sync_upload(stream_, tensors);
  tables_->blocks  = sync_upload(stream_, blocks);
  tables_->norms   = device_buffer<block_norms>{blocks.size()};
  tables_->ratios  = device_buffer<float>{tensors.size()};
  check(cudaMemsetAsync(tables_->factors.data(), 0, sizeof(step_factors), stream_));
  zero(stream_, first_);
  zero(stream_, second_);
}

optimizer::~optimizer()                    = default;
optimizer::optimizer(optimizer&&) noexcept = default;

template <class Working>
void optimizer::step(std::span<float> parameters,
                     step_value<double> learning_rate,
                     gradlane::step_status const* status,
                     std::span<Working> working) {
  expects(parameters.size() == total_, "optimizer: the parameters have the wrong size");
  expects(working.empty() || working.size() == total_, "optimizer: the copy has the wrong size");
  auto const& s      = settings_;
  auto const numbers = update_numbers{static_cast<float>(s.beta1),
                                      static_cast<float>(1 - s.beta1),
                                      static_cast<float>(s.beta2),
                                      static_cast<float>(1 - s.beta2),
                                      static_cast<float>(s.epsilon),
                                      s.trust_without_decay};
  auto const all     = update_vectors{parameters.data(), first_.data(), second_.data()};
  auto* const copy   = working.empty() ? nullptr : working.data();
  auto const& t      = *tables_;
  auto* const f      = t.factors.data();
  auto const grid    = dim3(static_cast<unsigned>(t.blocks.size()));
  auto const threads = dim3(optimizer_threads);
  launch(begin_update<1>,
         dim3(1),
         dim3(1),
         stream_,
         status,
         learning_rate,
         s.beta1,
         s.beta2,
         s.bias_correction,
         f);
  if (t.blocks.size() == 0) { return; }  // nothing is this rank's
  if (s.rule == update_rule::adamw) {
    launch(adamw<optimizer_threads, Working>,
           grid,
           threads,
           stream_,
           numbers,
           f,
           t.tensors.data(),
           t.blocks.data(),
           all,
           copy);
    return;
  }
  launch(lamb_moments<optimizer_threads>,
         grid,
         threads,
         stream_,
         numbers,
         f,
         t.tensors.data(),
         t.blocks.data(),
         all,
         t.norms.data());
  launch(lamb_ratios<optimizer_threads>,
         dim3(static_cast<unsigned>(t.tensors.size())),
         threads,
         stream_,
         numbers,
         f,
         t.tensors.data(),
         t.norms.data(),
         t.ratios.data());
  launch(lamb_apply<optimizer_threads, Working>,
         grid,
         threads,
         stream_,
         numbers,
         f,
         t.tensors.data(),
         t.blocks.data(),
         all,
         t.ratios.data(),
         copy);
}

template void optimizer::step(std::span<float>,
                              step_value<double>,
                              gradlane::step_status const*,
                              std::span<gradlane::bf16>);
template void optimizer::step(std::span<float>,
                              step_value<double>,
                              gradlane::step_status const*,
                              std::span<gradlane::fp16>);

std::uint64_t optimizer::sync_steps() const {
  auto result = step_factors{};
  check(cudaMemcpyAsync(
      &result, tables_->factors.data(), sizeof result, cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
  return result.steps;
}

void optimizer::sync_restore(std::uint64_t steps,
                             std::span<float const> first,
                             std::span<float const> second) {
  expects(first.size() == total_ && second.size() == total_,
          "optimizer: the moments have the wrong size");
  auto factors  = step_factors{};
  factors.steps = steps;
  sync_upload(stream_, std::span<step_factors const>{&factors, 1}, tables_->factors.data());
  auto place = std::size_t{0};
  for (auto i = std::size_t{0}; i < sizes_.size(); ++i) {
    sync_upload(stream_, first.subspan(offsets_[i], sizes_[i]), first_.data() + place);
    sync_upload(stream_, second.subspan(offsets_[i], sizes_[i]), second_.data() + place);
    place += sizes_[i];
  }
}

}  // namespace bert::cuda
