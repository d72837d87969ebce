// SPDX-License-Identifier: Apache-2.0
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/report/log.hpp>
#include <bert/report/plot.hpp>
#include <bert/report/progress.hpp>

#include <cmath>

namespace {

using namespace bert;
using numbers = std::vector<double>;

[[nodiscard]] step_entry entry(std::uint64_t step) {
  auto const x = static_cast<double>(step);
  auto result  = step_entry{
      step, 9 - x, 8 - x, 1, 0.125, 1e-4 * x, 2.5, 0.5, 1234.5, 10 * x, step == 2, 1.25, 0.004};
  if (step == 1) { result.orthogonality = 0.75; }
  return result;
}

TEST_CASE("log_writer writes a line to an entry, which read_log reads back") {
  auto const folder = test::temporary_directory{};
  auto const file   = folder.path() / "log.jsonl";
  auto writer       = log_writer{file};
  writer.write("run", {{"ranks", 2}});
  writer.write(entry(1));
  writer.write(entry(2));
  writer.write(evaluation_entry{2, 5.5, 0.25, 0.75});
  CHECK(read_file(file).starts_with(
      "{\"kind\":\"run\",\"ranks\":2}\n{\"kind\":\"step\",\"step\":1,"));
  auto const log = read_log(file);
  CHECK(log.steps == std::vector{entry(1), entry(2)});
  CHECK(log.evaluations == std::vector{evaluation_entry{2, 5.5, 0.25, 0.75}});
}

TEST_CASE("log_writer keeps the entries of a run that goes on, up to where it does") {
  auto const folder = test::temporary_directory{};
  auto const file   = folder.path() / "log.jsonl";
  {
    auto writer = log_writer{file};
    writer.write("run", {{"ranks", 2}});
    for (auto const step : {1U, 2U, 3U, 4U}) { writer.write(entry(step)); }
    writer.write(evaluation_entry{2, 1, 1, 1});
    writer.write(evaluation_entry{4, 1, 1, 1});
  }
  auto const cut = read_file(file) + "{\"kind\":\"st";  // killed as it wrote
  output_file{file}.write(cut);
  CHECK(read_log(file).steps.size() == 4);
  log_writer{file, 3}.write(entry(4));
  CHECK(read_log(file).steps == std::vector{entry(1), entry(2), entry(3), entry(4)});
  CHECK(read_log(file).evaluations.size() == 1);
  CHECK(read_file(file).starts_with("{\"kind\":\"run\""));
  log_writer{file, 0}.write(entry(1));
  CHECK(read_log(file).steps.size() == 1);
}

TEST_CASE("read_log reads a loss that is no number, and names the line that is no entry") {
  auto const folder = test::temporary_directory{};
  auto const file   = folder.path() / "log.jsonl";
  auto wild         = entry(1);
  wild.loss         = std::nan("");
  log_writer{file}.write(wild);
  CHECK(std::isnan(read_log(file).steps[0].loss));
  output_file{file}.write("{\"kind\":\"run\"}\nnonsense\n");
  CHECK_THROWS_WITH_AS(static_cast<void>(read_log(file)),
                       doctest::Contains("log.jsonl: line 2 is no entry of a log"),
                       damaged_file_error);
}

TEST_CASE("short_number has three digits, and a unit from a thousand on") {
  CHECK(short_number(0) == "0");
  CHECK(short_number(12.34) == "12");
  CHECK(short_number(950) == "950");
  CHECK(short_number(999.6) == "1.00k");
  CHECK(short_number(12345) == "12.3k");
  CHECK(short_number(4560000) == "4.56M");
}

TEST_CASE("clock_time has hours where there are any") {
  CHECK(clock_time(0) == "0:00");
  CHECK(clock_time(7.4) == "0:07");
  CHECK(clock_time(59.6) == "1:00");
  CHECK(clock_time(754) == "12:34");
  CHECK(clock_time(10921) == "3:02:01");
  CHECK(clock_time(std::nan("")) == "?");
  CHECK(clock_time(-1) == "?");
}

TEST_CASE("step_pace is the mean of equal steps, and forgets old ones") {
  auto pace = step_pace{};
  CHECK(pace.seconds() == 0);
  for (auto i = 0; i < 5; ++i) { pace.add(2); }
  CHECK(pace.seconds() == doctest::Approx(2));
  for (auto i = 0; i < 200; ++i) { pace.add(1); }
  CHECK(pace.seconds() == doctest::Approx(1).epsilon(1e-3));
}

TEST_CASE("progress_line says where the run is and how long it will take") {
  auto pace = step_pace{};
  pace.add(0.5);
  CHECK(progress_line(entry(3), 1000, pace) ==
        "step    3/1000  loss 6.0000  masked-LM 5.0000  1.23k tokens/s  clipped  50 %  "
        "max/mean 1.250  balancing 0.4 %  left 8:19");
  CHECK(progress_line(entry(2), 2, pace).ends_with("left 0:00  skipped"));
  CHECK(evaluation_line({7, 4.5, 0.321, 0.5}) ==
        "held-out text after step 7: masked-LM loss 4.5000, accuracy 32.1 %, next sentence 50.0 %");
}

TEST_CASE("axis_ticks are round numbers inside the axis") {
  CHECK(axis_ticks(0, 10, 6) == numbers{0, 2, 4, 6, 8, 10});
  CHECK(axis_ticks(0, 9.2, 6) == numbers{0, 2, 4, 6, 8});
  CHECK(axis_ticks(0, 1, 3) == numbers{0, 0.5, 1});
  CHECK(axis_ticks(3, 47, 5) == numbers{20, 40});
  CHECK(axis_ticks(-1, 1, 5) == numbers{-1, -0.5, 0, 0.5, 1});
  CHECK_FALSE(std::signbit(axis_ticks(0, 10, 6).front()));
  auto const small = axis_ticks(0, 1e-4, 6);
  CHECK(small.size() == 6);
  CHECK(small.back() == doctest::Approx(1e-4));
}

[[nodiscard]] std::size_t count(std::string const& text, std::string const& part) {
  auto result = std::size_t{0};
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++result;
  }
  return result;
}

TEST_CASE("plot_svg draws every curve at the place its axis says") {
  auto log = training_log{};
  for (auto step = std::uint64_t{1}; step <= 4; ++step) { log.steps.push_back(entry(step)); }
  log.evaluations.push_back({4, 8, 0, 0});
  auto const svg = plot_svg(log, "a < b", 10 / 1.1);
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a &lt; b") != std::string::npos);
  // Loss 0 to 10 lies at 386 to 66, steps 0 to 4 at 76 to 830: losses 7, 6, 5, 4.
  CHECK(svg.find("points=\"264.5,162.0 453.0,194.0 641.5,226.0 830.0,258.0\"") !=
        std::string::npos);
  CHECK(svg.find("<circle cx=\"830.0\" cy=\"130.0\"") != std::string::npos);
  CHECK(svg.find("unigram entropy 9.091") != std::string::npos);
  // Clipped 0.5 half-way between 666 and 566.
  CHECK(svg.find("points=\"264.5,616.0 453.0,616.0 641.5,616.0 830.0,616.0\"") !=
        std::string::npos);
}

TEST_CASE("plot_svg leaves gaps for what is no number, and takes an empty log") {
  auto log = training_log{};
  for (auto step = std::uint64_t{1}; step <= 5; ++step) { log.steps.push_back(entry(step)); }
  auto const whole       = count(plot_svg(log, ""), "<polyline");
  log.steps[2].masked_lm = std::nan("");
  CHECK(count(plot_svg(log, ""), "<polyline") == whole + 2);  // of the loss, and of the smooth one
  CHECK(plot_svg({}, "nothing").find("nan") == std::string::npos);
}

TEST_CASE("plot_svg of a long run averages to a bounded number of points") {
  auto log = training_log{};
  for (auto step = std::uint64_t{1}; step <= 100000; ++step) { log.steps.push_back(entry(step)); }
  CHECK(plot_svg(log, "long").size() < 200000);
}

}  // namespace
