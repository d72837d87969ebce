// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/sample_source.hpp"  // for sample_source
#include "command_line.hpp"           // for command_line

#include <cstddef>  // for size_t
#include <memory>   // for unique_ptr
#include <string>   // for string

namespace bert {

/// The data of a run.
struct corpus {
  std::unique_ptr<sample_source> training;
  std::unique_ptr<sample_source> held_out;
  std::size_t vocabulary_size = 0;  // ids are below; 0 where the data do not say
  std::string vocabulary;           // as vocab.txt has it; empty where it is not known
  std::string summary;              // a line for people
};

/// Opens the text of a run: vocabulary and token cache lie in its output directory, and are made
/// there first where they are absent or stale; ranks that open it after one has made it only read.
/// Or its HDF5 files, whose samples were made beforehand.
/// @param vocabulary_limit  of the model, for HDF5 files, which do not say.
/// @throws input_error for data that are missing, empty or too few, file_error for bad files.
[[nodiscard]] corpus open_corpus(command_line const& wanted, std::size_t vocabulary_limit);

}  // namespace bert
