// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"              // for model_config
#include "data/place.hpp"          // for data_place
#include "loss_scale.hpp"          // for loss_scale_state
#include "model_state.hpp"         // for model_state
#include "optimizer_settings.hpp"  // for optimizer_settings
#include "parameters.hpp"          // for parameter_list

#include <gradlane/balance/deal.hpp>  // for dealing

#include <cstddef>     // for size_t
#include <cstdint>     // for uint32_t, uint64_t
#include <filesystem>  // for path
#include <functional>  // for function
#include <map>         // for map
#include <optional>    // for optional
#include <string>      // for string
#include <vector>      // for vector

namespace bert {

/// Where a training run stands, besides weights and optimizer: nothing of it knows how many ranks
/// there are, and all random numbers follow from it.
struct trainer_state {
  std::uint64_t step = 0;  // that comes next
  data_place place;
  std::uint32_t seed       = 0;
  std::uint64_t batch_size = 0;
  gradlane::balance::dealing deal{};  // which, with the window, decides what a step trains on
  std::uint64_t window = 0;           // steps whose samples are dealt at once
  std::uint64_t data   = 0;           // sample_source::fingerprint()
  model_config model;
  optimizer_settings update;
  std::optional<loss_scale_state> scale{};  // of a run in fp16

  friend bool operator==(trainer_state const&, trainer_state const&) = default;
};

/// Moments that differ between ranks, as with bert_train's --reduce adasum-delta.
struct rank_moments {
  std::size_t ranks = 1;  // that have their own; rank 0's are those of the model_state
  std::function<model_state(std::size_t rank)> of{};  // called for 1 … ranks - 1 in turn
};

/// Checkpoints of one run: a directory for each, the newest of which is gone on from.
///
///     step-00000037/ model.safetensors      weights under Hugging Face's names
///                    optimizer.safetensors  both moments: m.<name>, v.<name>
///                    optimizer-rank-1.safetensors …  where ranks have moments of their own
///                    trainer.json           trainer_state
///                    config.json …          what transformers wants to see beside the weights
///                    manifest.json          sizes and checksums of the others
///
/// A directory gets its name when all of it is on the disk: a crash leaves the older ones. One
/// rank saves; all may load.
class checkpoint_store {
 public:
  /// @param keep  checkpoints that are left when a new one has been written; at least 1.
  explicit checkpoint_store(std::filesystem::path root, std::size_t keep = 2);

  /// Writes a checkpoint, then removes the oldest.
  /// @param texts  more files, by name: vocab.txt.
  /// @param others  moments of further ranks, which what has no use for them passes over.
  /// @return its directory.
  /// @throws file_system_error, disk full among them; older checkpoints stay as they are then.
  std::filesystem::path save(trainer_state const& state,
                             parameter_list const& list,
                             model_state const& model,
                             std::map<std::string, std::string> const& texts = {},
                             rank_moments const& others                      = {}) const;

  /// The directories, oldest first.
  [[nodiscard]] std::vector<std::filesystem::path> list() const;
  [[nodiscard]] std::optional<std::filesystem::path> newest() const;

 private:
  void remove_old() const;

  std::filesystem::path root_;
  std::size_t keep_;
};

/// What a checkpoint's trainer.json says; nothing else of it is read.
/// @throws damaged_file_error, file_system_error
[[nodiscard]] trainer_state read_trainer_state(std::filesystem::path const& checkpoint);

/// A checkpoint in memory.
struct checkpoint {
  trainer_state state;
  std::uint64_t steps = 0;  // of the optimizer
  std::vector<float> parameters;
  std::vector<float> first;
  std::vector<float> second;
  std::size_t ranks_with_moments = 1;

  [[nodiscard]] model_state model() const { return {steps, parameters, first, second}; }
};

/// Reads a checkpoint, after all of its files have been compared with their checksums.
///
/// @param wanted  the run that goes on; its step, place and loss scale are not looked at.
/// @param rank    whose moments are wanted, of `ranks` that have their own: they are rank 0's
/// unless
///                the checkpoint has those of as many ranks.
/// @throws damaged_file_error naming the file; input_error naming what differs from `wanted`;
///         file_system_error.
[[nodiscard]] checkpoint load_checkpoint(std::filesystem::path const& directory,
                                         trainer_state const& wanted,
                                         parameter_list const& list,
                                         std::size_t rank  = 0,
                                         std::size_t ranks = 1);

}  // namespace bert
