// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command_line.hpp"  // for command_line, program
#include "corpus.hpp"        // for corpus

#include <gradlane/mpi/environment.hpp>  // for environment

#include <functional>  // for function
#include <optional>    // for optional

namespace bert {

/// What a training program has been told to do, and the data.
struct assignment {
  command_line wanted;
  corpus text;
};

/// Reads the command line and opens the data: rank 0 makes vocabulary and cache first. Collective
/// over MPI_COMM_WORLD.
/// @param exit_code  set where there is nothing to do: after --help, or where rank 0 has said why.
/// @throws input_error for what does not fit together, file_error for bad files.
[[nodiscard]] std::optional<assignment> prepare(program const& which,
                                                int argc,
                                                char const* const* argv,
                                                int& exit_code);

/// The main() of a training program: an exception is told, and ends the other ranks too.
/// @param train  returns the exit code.
[[nodiscard]] int run_program(program const& which,
                              std::function<int(gradlane::mpi::environment const&)> const& train);

}  // namespace bert
