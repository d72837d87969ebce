// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include "../config.hpp"  // for model_config, preset, read_config
#include "../errors.hpp"  // for input_error

#include <gradlane/error.hpp>  // for error

#include <mpi.h>

#include <chrono>       // for milliseconds, seconds
#include <cstddef>      // for size_t
#include <exception>    // for exception
#include <iostream>     // for cerr
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <thread>       // for sleep_for
#include <utility>      // for move

namespace bert {

namespace {

/// Errors of ours name a line of code, which says nothing to who runs the program.
[[nodiscard]] std::string_view message_of(std::exception const& problem) {
  auto const* const ours = dynamic_cast<gradlane::error const*>(&problem);
  return ours != nullptr ? ours->message() : std::string_view{problem.what()};
}

/// The model wanted, by a preset's name or from a file.
[[nodiscard]] model_config model_for(command_line const& wanted) {
  auto config = wanted.model.ends_with(".json") ? read_config(wanted.model) : preset(wanted.model);
  config.dropout = wanted.dropout.value_or(config.dropout);
  return config;
}

/// A preset takes the size of the vocabulary, rounded up to 8; a file's own must hold it.
void fit_vocabulary(command_line& wanted, std::size_t pieces) {
  auto& size = wanted.training.model.vocab_size;
  if (pieces == 0) { return; }
  if (!wanted.model.ends_with(".json")) { size = (pieces + 7) / 8 * 8; }
  if (pieces > size) {
    throw input_error{"the vocabulary has " + std::to_string(pieces) +
                      " pieces, the model's embedding only " + std::to_string(size) + " rows"};
  }
}

void expect_fits(command_line const& wanted) {
  auto const longest = wanted.training.model.max_position_embeddings;
  if (wanted.max_length > longest) {
    throw input_error{"--max-length " + std::to_string(wanted.max_length) +
                      " is more than the model's " + std::to_string(longest) + " positions"};
  }
}

/// Rank 0 makes vocabulary and cache, while the others wait; then all open them.
/// @return nothing where rank 0 could not, which it has said.
[[nodiscard]] std::optional<corpus> open(program const& which,
                                         command_line const& wanted,
                                         int rank) {
  auto result = std::optional<corpus>{};
  auto made   = 1;
  if (rank == 0) {
    try {
      result.emplace(open_corpus(wanted, wanted.training.model.vocab_size));
    } catch (std::exception const& problem) {
      std::cerr << which.name << ": " << message_of(problem) << std::endl;
      made = 0;
    }
  }
  MPI_Bcast(&made, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (made != 0 && rank != 0) {
    result.emplace(open_corpus(wanted, wanted.training.model.vocab_size));
  }
  return result;
}

[[nodiscard]] int own_rank() {
  auto rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

}  // namespace

std::optional<assignment> prepare(program const& which,
                                  int argc,
                                  char const* const* argv,
                                  int& exit_code) {
  auto const rank = own_rank();
  auto wanted     = parse_command_line(which, argc, argv, rank == 0, exit_code);
  if (exit_code >= 0) { return {}; }
  wanted.training.model = model_for(wanted);
  expect_fits(wanted);
  auto text = open(which, wanted, rank);
  if (!text) {
    exit_code = 1;
    return {};
  }
  fit_vocabulary(wanted, text->vocabulary_size);
  return assignment{std::move(wanted), std::move(*text)};
}

int run_program(program const& which,
                std::function<int(gradlane::mpi::environment const&)> const& train) {
  auto const environment = gradlane::mpi::environment{};
  try {
    return train(environment);
  } catch (std::exception const& problem) {
    auto const rank = own_rank();
    // What all ranks meet, rank 0 tells.
    if (rank != 0) { std::this_thread::sleep_for(std::chrono::seconds{1}); }
    auto line = which.name + ": rank " + std::to_string(rank) + ": ";
    line.append(message_of(problem)).append("\n");
    std::cerr << line << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds{300});  // mpiexec must pass it on first
    MPI_Abort(MPI_COMM_WORLD, 1);  // the others must not wait for this rank
  }
  return 1;
}

}  // namespace bert
