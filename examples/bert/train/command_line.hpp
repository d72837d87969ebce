// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "settings.hpp"  // for training_settings

#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <filesystem>   // for path
#include <optional>     // for optional
#include <string>       // for string
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace bert {

enum class precision { fp32, bf16, fp16 };

[[nodiscard]] constexpr std::string_view name_of(precision of) {
  return of == precision::fp32 ? "fp32" : of == precision::bf16 ? "bf16" : "fp16";
}

/// A training program, as a person calls it.
struct program {
  std::string name;
  bool on_gpus;
};

/// What a person asks of the program.
struct command_line {
  training_settings training;

  std::vector<std::filesystem::path> text;  // empty: postgresql-doc of Debian
  std::vector<std::filesystem::path> hdf5;  // instead of text
  std::vector<std::filesystem::path> hdf5_held_out;
  std::filesystem::path vocabulary;  // empty: learned from the text
  std::size_t vocabulary_size = 8192;
  std::string model           = "mini";  // a preset, or a config.json
  std::size_t max_length      = 128;
  std::optional<double> dropout;  // else the model's own
  precision compute = precision::fp32;
  int threads       = 0;  // of each rank; 0: as OpenMP says
  bool graphs       = false;

  std::filesystem::path output   = "bert-run";
  std::uint64_t report_every     = 10;
  std::uint64_t evaluate_every   = 0;  // 0: at the end only
  std::size_t evaluation_samples = 1024;
  std::uint64_t checkpoint_every = 200;
  bool resume                    = false;
};

/// @param exit_code  set where the program is to end at once: after --help, or a wrong option.
/// @param speaks     whether this rank prints help and errors.
/// @throws input_error for settings that do not go together.
[[nodiscard]] command_line parse_command_line(
    program const& which, int argc, char const* const* argv, bool speaks, int& exit_code);

}  // namespace bert
