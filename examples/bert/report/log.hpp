// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../errors.hpp"  // for damaged_file_error
#include "../files.hpp"   // for output_file, pending_file, read_file

#include <nlohmann/json.hpp>

#include <cstddef>     // for size_t
#include <cstdint>     // for uint64_t
#include <filesystem>  // for path
#include <limits>      // for numeric_limits
#include <optional>    // for optional
#include <string>      // for string
#include <vector>      // for vector

namespace bert {

/// One step of training. Losses are means over all predictions, or sequences, of all ranks.
struct step_entry {
  std::uint64_t step       = 0;  // from 1: steps that are done
  double loss              = 0;  // masked_lm + next_sentence
  double masked_lm         = 0;
  double next_sentence     = 0;
  double accuracy          = 0;  // of masked-LM predictions
  double learning_rate     = 0;
  double gradient_norm     = 0;
  double clipped           = 0;  // fraction of the buckets, or 0 and 1
  double tokens_per_second = 0;
  double seconds           = 0;  // since the run began
  bool skipped             = false;
  double largest_over_mean = 1;           // tokens of the rank that had most, over the mean
  double balancing         = 0;           // share of the step that training waited for its samples
  std::optional<double> orthogonality{};  // of what Adasum joined, where it did: 1 / ranks … 1

  friend bool operator==(step_entry const&, step_entry const&) = default;
};

/// One evaluation on held-out text.
struct evaluation_entry {
  std::uint64_t step            = 0;  // steps that had been done
  double masked_lm              = 0;
  double accuracy               = 0;
  double next_sentence_accuracy = 0;

  friend bool operator==(evaluation_entry const&, evaluation_entry const&) = default;
};

struct training_log {
  std::vector<step_entry> steps;
  std::vector<evaluation_entry> evaluations;
};

namespace detail {

[[nodiscard]] inline nlohmann::ordered_json to_json(step_entry const& e) {
  auto result = nlohmann::ordered_json{{"kind", "step"},
                                       {"step", e.step},
                                       {"loss", e.loss},
                                       {"masked_lm", e.masked_lm},
                                       {"next_sentence", e.next_sentence},
                                       {"accuracy", e.accuracy},
                                       {"learning_rate", e.learning_rate},
                                       {"gradient_norm", e.gradient_norm},
                                       {"clipped", e.clipped},
                                       {"tokens_per_second", e.tokens_per_second},
                                       {"seconds", e.seconds},
                                       {"skipped", e.skipped},
                                       {"largest_over_mean", e.largest_over_mean},
                                       {"balancing", e.balancing}};
  if (e.orthogonality) { result["orthogonality"] = *e.orthogonality; }
  return result;
}

[[nodiscard]] inline nlohmann::ordered_json to_json(evaluation_entry const& e) {
  return {{"kind", "evaluation"},
          {"step", e.step},
          {"masked_lm", e.masked_lm},
          {"accuracy", e.accuracy},
          {"next_sentence_accuracy", e.next_sentence_accuracy}};
}

/// JSON has no NaN: it was written as null.
[[nodiscard]] inline double number(nlohmann::json const& line, char const* key) {
  auto const& value = line.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

[[nodiscard]] inline std::optional<double> optional_number(nlohmann::json const& line,
                                                           char const* key) {
  return line.contains(key) ? std::optional{number(line, key)} : std::nullopt;
}

inline void add_line(nlohmann::json const& line, training_log& log) {
  auto const& kind = line.at("kind");
  if (kind == "step") {
    log.steps.push_back({line.at("step").get<std::uint64_t>(),
                         number(line, "loss"),
                         number(line, "masked_lm"),
                         number(line, "next_sentence"),
                         number(line, "accuracy"),
                         number(line, "learning_rate"),
                         number(line, "gradient_norm"),
                         number(line, "clipped"),
                         number(line, "tokens_per_second"),
                         number(line, "seconds"),
                         line.at("skipped").get<bool>(),
                         number(line, "largest_over_mean"),
                         number(line, "balancing"),
                         optional_number(line, "orthogonality")});
  } else if (kind == "evaluation") {
    log.evaluations.push_back({line.at("step").get<std::uint64_t>(),
                               number(line, "masked_lm"),
                               number(line, "accuracy"),
                               number(line, "next_sentence_accuracy")});
  }
}

/// Calls use(text, object) for every line of a log; a last one that was cut short is passed over.
/// @throws file_system_error, damaged_file_error naming the line that is no entry.
template <class Use>
void for_each_line(std::filesystem::path const& file, Use const& use) {
  auto const text = read_file(file);
  auto number     = std::size_t{1};
  for (auto begin = std::size_t{0}; begin < text.size(); ++number) {
    auto const end = text.find('\n', begin);
    if (end == std::string::npos) { break; }  // the writer was killed
    auto const line = text.substr(begin, end - begin);
    try {
      use(line, nlohmann::json::parse(line));
    } catch (nlohmann::json::exception const&) {
      throw damaged_file_error{file, "line " + std::to_string(number) + " is no entry of a log"};
    }
    begin = end + 1;
  }
}

}  // namespace detail

/// Reads the steps and evaluations of a log; lines of other kinds are passed over.
/// @throws file_system_error, damaged_file_error naming the line that is no entry.
[[nodiscard]] inline training_log read_log(std::filesystem::path const& file) {
  auto log = training_log{};
  detail::for_each_line(
      file, [&](std::string const&, nlohmann::json const& line) { detail::add_line(line, log); });
  return log;
}

/// Writes a log as JSON lines: one object to a line, with its "kind".
///
/// Every line is with the system when its function returns. Throws file_system_error.
class log_writer {
 public:
  /// Begins a log, or goes on with one.
  /// @param done  steps that have been done; lines of `file` beyond them are dropped, and with 0
  ///              all are.
  explicit log_writer(std::filesystem::path const& file, std::uint64_t done = 0)
      : out_{begin(file, done)} {}

  void write(step_entry const& entry) { write_line(detail::to_json(entry)); }
  void write(evaluation_entry const& entry) { write_line(detail::to_json(entry)); }
  /// Anything else worth keeping, such as the settings of the run. @param line  an object
  void write(std::string const& kind, nlohmann::ordered_json const& line) {
    auto all = nlohmann::ordered_json{{"kind", kind}};
    all.update(line);
    write_line(all);
  }

 private:
  [[nodiscard]] static output_file begin(std::filesystem::path const& file, std::uint64_t done) {
    auto kept = std::string{};
    if (done > 0 && std::filesystem::exists(file)) {
      detail::for_each_line(file, [&](std::string const& text, nlohmann::json const& line) {
        if (line.value("step", std::uint64_t{0}) <= done) { kept += text + "\n"; }
      });
    }
    auto out = output_file{file};
    out.write(kept);
    return out;
  }

  void write_line(nlohmann::ordered_json const& line) { out_.write(line.dump() + "\n"); }

  output_file out_;
};

}  // namespace bert
