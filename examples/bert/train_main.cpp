// SPDX-License-Identifier: Apache-2.0
// BERT pretraining on MPI ranks: mpiexec -n 2 ./bert_train [--help]
#include "train/command_line.hpp"  // for command_line, parse_command_line, precision
#include "train/corpus.hpp"        // for corpus, open_corpus
#include "train/cpu_place.hpp"     // for cpu_place
#include "train/run.hpp"           // for training_run

#include <gradlane/error.hpp>             // for error
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for communicator, from_mpi
#include <gradlane/mpi/environment.hpp>   // for environment
#include <gradlane/types.hpp>             // for bf16

#include <mpi.h>

#include <omp.h>

#include <algorithm>    // for max
#include <cstdlib>      // for getenv
#include <exception>    // for exception
#include <iostream>     // for cerr
#include <optional>     // for optional
#include <string>       // for to_string
#include <string_view>  // for string_view
#include <thread>       // for sleep_for

namespace {

/// Errors of ours name a line of code, which says nothing to who runs the program.
[[nodiscard]] std::string_view message_of(std::exception const& problem) {
  auto const* const ours = dynamic_cast<gradlane::error const*>(&problem);
  return ours != nullptr ? ours->message() : std::string_view{problem.what()};
}

/// The model wanted, by a preset's name or from a file.
[[nodiscard]] bert::model_config model_for(bert::command_line const& wanted) {
  auto config    = wanted.model.ends_with(".json") ? bert::read_config(wanted.model)
                                                   : bert::preset(wanted.model);
  config.dropout = wanted.dropout.value_or(config.dropout);
  return config;
}

/// A preset takes the size of the vocabulary, rounded up to 8; a file's own must hold it.
void fit_vocabulary(bert::command_line& wanted, std::size_t pieces) {
  auto& size = wanted.training.model.vocab_size;
  if (pieces == 0) { return; }
  if (!wanted.model.ends_with(".json")) { size = (pieces + 7) / 8 * 8; }
  if (pieces > size) {
    throw bert::input_error{"the vocabulary has " + std::to_string(pieces) +
                            " pieces, the model's embedding only " + std::to_string(size) +
                            " rows"};
  }
}

void expect_fits(bert::command_line const& wanted) {
  auto const longest = wanted.training.model.max_position_embeddings;
  if (wanted.max_length > longest) {
    throw bert::input_error{"--max-length " + std::to_string(wanted.max_length) +
                            " is more than the model's " + std::to_string(longest) + " positions"};
  }
}

/// The threads wanted, else those that OMP_NUM_THREADS says, else a fair share of the node's.
void set_threads(int wanted, int ranks_on_node) {
  auto const* const said = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe)
  if (wanted > 0) {
    omp_set_num_threads(wanted);
  } else if (said == nullptr) {
    omp_set_num_threads(std::max(1, omp_get_num_procs() / ranks_on_node));
  }
}

template <class Value>
void run(bert::command_line const& wanted,
         gradlane::host::device& lane,
         gradlane::mpi::communicator& comm,
         bert::corpus const& text) {
  using place  = bert::cpu_place<Value, gradlane::mpi::communicator>;
  auto session = bert::training_run<place>{wanted, {lane, comm}, text};
  session.train();
}

/// Rank 0 makes vocabulary and cache, while the others wait; then all open them.
/// @return nothing where rank 0 could not, which it has said.
[[nodiscard]] std::optional<bert::corpus> open(bert::command_line const& wanted, int rank) {
  auto result = std::optional<bert::corpus>{};
  auto made   = 1;
  if (rank == 0) {
    try {
      result.emplace(bert::open_corpus(wanted, wanted.training.model.vocab_size));
    } catch (std::exception const& problem) {
      std::cerr << "bert_train: " << message_of(problem) << std::endl;
      made = 0;
    }
  }
  MPI_Bcast(&made, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (made != 0 && rank != 0) {
    result.emplace(bert::open_corpus(wanted, wanted.training.model.vocab_size));
  }
  return result;
}

int train(int argc, char** argv, gradlane::mpi::environment const& environment) {
  auto rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto exit_code = 0;
  auto wanted    = bert::parse_command_line(argc, argv, rank == 0, exit_code);
  if (exit_code >= 0) { return exit_code; }
  wanted.training.model = model_for(wanted);
  expect_fits(wanted);
  auto const text = open(wanted, rank);
  if (!text) { return 1; }
  fit_vocabulary(wanted, text->vocabulary_size);

  auto lane = gradlane::host::device{};
  auto comm = gradlane::mpi::from_mpi(lane, MPI_COMM_WORLD, {.owner = &environment});
  set_threads(wanted.threads, comm.node_group().size());
  if (wanted.compute == bert::precision::bf16) {
    run<gradlane::bf16>(wanted, lane, comm, *text);
  } else {
    run<float>(wanted, lane, comm, *text);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto const environment = gradlane::mpi::environment{};
  try {
    return train(argc, argv, environment);
  } catch (std::exception const& problem) {
    auto rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    // What all ranks meet, rank 0 tells.
    if (rank != 0) { std::this_thread::sleep_for(std::chrono::seconds{1}); }
    auto line = "bert_train: rank " + std::to_string(rank) + ": ";
    line.append(message_of(problem)).append("\n");
    std::cerr << line << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds{300});  // mpiexec must pass it on first
    MPI_Abort(MPI_COMM_WORLD, 1);  // the others must not wait for this rank
  }
}
