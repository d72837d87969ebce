// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/histogram.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <balance/draws.hpp>
#include <balance/figure.hpp>
#include <balance/lengths.hpp>
#include <balance/simulation.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace simulation;

namespace {

[[nodiscard]] settings small() {
  auto s        = settings{};
  s.most_gpus   = 64;
  s.repetitions = 64;
  return s;
}

/// What was found for a method, by number of GPUs.
[[nodiscard]] std::map<std::string, std::vector<finding>> found_by(settings const& options) {
  auto const s     = simulator{options, paper_model()};
  auto const found = s.run();
  auto result      = std::map<std::string, std::vector<finding>>{};
  for (std::size_t m = 0; m < found.size(); ++m) { result[s.methods()[m].name] = found[m]; }
  return result;
}

[[nodiscard]] std::size_t count_of(std::string_view part, std::string_view text) {
  auto count = std::size_t{0};
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// A file of this content, removed at the end.
class file_of {
 public:
  explicit file_of(std::string const& content)
      : path_{std::filesystem::temp_directory_path() /
              ("gradlane_simulation_test_" + std::to_string(std::random_device{}()))} {
    std::ofstream{path_} << content;
  }
  file_of(file_of const&)            = delete;
  file_of& operator=(file_of const&) = delete;
  ~file_of() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("paper_model has the paper's shares of strata and of full sequences") {
  auto const lengths = paper_model();
  auto const totals  = totals_of(gradlane::balance::strata::of_bert(), lengths);
  auto const share   = [&](std::uint64_t count) {
    return static_cast<double>(count) / static_cast<double>(lengths.samples());
  };
  // Percentages that add up to 100.1, and counts that are rounded within strata.
  CHECK(share(totals[0].samples) == doctest::Approx(0.373).epsilon(0.002));
  CHECK(share(totals[1].samples) == doctest::Approx(0.197).epsilon(0.002));
  CHECK(share(totals[2].samples) == doctest::Approx(0.117).epsilon(0.002));
  CHECK(share(totals[3].samples) == doctest::Approx(0.314).epsilon(0.002));
  CHECK(share(lengths.entries().back().count) == doctest::Approx(0.234).epsilon(0.002));
}

TEST_CASE("read_histogram reads lines, and names the one that is none") {
  auto const good = file_of{"# a comment\nlength,count\n5,10\n6,0\n512,3\n"};
  auto const read = read_histogram(good.path());
  CHECK(read.samples() == 13);
  CHECK(read.tokens() == 50 + 3 * 512);
  auto const message = [](std::string const& path) {
    try {
      static_cast<void>(read_histogram(path));
    } catch (std::runtime_error const& e) { return std::string{e.what()}; }
    return std::string{};
  };
  auto const bad = file_of{"5,10\n6;7\n"};
  CHECK(message(bad.path()) == bad.path() + ":2: not \"length,count\"");
  auto const empty = file_of{"length,count\n"};
  CHECK(message(empty.path()) == empty.path() + ": counts no sequences");
  CHECK(message("/nowhere/at/all") == "/nowhere/at/all: cannot be read");
}

TEST_CASE("draws come as often as their weights say") {
  auto const weights = std::vector{5.0, 0.0, 1.0, 0.25, 3.75, 90.0};
  auto const drawing = draws<int>{{0, 1, 2, 3, 4, 5}, weights};
  auto random        = random_bits{7, 0};
  auto often         = std::vector<int>(6);
  auto const runs    = 200'000;
  for (auto i = 0; i < runs; ++i) { ++often[static_cast<std::size_t>(drawing(random))]; }
  auto chi = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    auto const expected = weights[i] / 100 * runs;
    if (expected == 0) {
      CHECK(often[i] == 0);
      continue;
    }
    chi += (often[i] - expected) * (often[i] - expected) / expected;
  }
  CHECK(chi < 4 + 5 * std::sqrt(8.0));  // four degrees of freedom, five standard deviations
}

TEST_CASE("random_bits are other streams for other numbers and seeds") {
  CHECK(random_bits{1, 2}() == random_bits{1, 2}());
  CHECK(random_bits{1, 2}() != random_bits{1, 3}());
  CHECK(random_bits{1, 2}() != random_bits{2, 2}());
  auto random  = random_bits{1, 2};
  auto largest = std::uint64_t{0};
  for (auto i = 0; i < 1000; ++i) { largest = std::max(largest, random.below(10)); }
  CHECK(largest == 9);
}

TEST_CASE("simulator finds sequences of one length balanced by any method") {
  auto const one      = length_histogram{std::vector<length_count>{{512, 7}}};
  auto options        = small();
  options.repetitions = 8;
  for (auto const& of_method : simulator{options, one}.run()) {
    for (auto const& f : of_method) {
      CHECK(f.max_over_mean == doctest::Approx(1.0).epsilon(1e-12));
      CHECK(f.cost_max_over_mean == doctest::Approx(1.0).epsilon(1e-12));
      CHECK(f.least == f.most);
    }
  }
}

TEST_CASE("simulator finds the same with any number of threads") {
  auto options        = small();
  options.repetitions = 24;
  auto const alone    = found_by(options);
  options.threads     = 3;
  auto const together = found_by(options);
  for (auto const& [name, findings] : alone) {
    for (std::size_t i = 0; i < findings.size(); ++i) {
      CHECK(together.at(name)[i].max_over_mean == findings[i].max_over_mean);
      CHECK(together.at(name)[i].least == findings[i].least);
    }
  }
}

TEST_CASE("simulator agrees with steps that are simulated in the plainest way") {
  auto const found   = found_by(small()).at("no balancing");
  auto const lengths = paper_model();
  auto values        = std::vector<double>{};
  auto weights       = std::vector<double>{};
  for (auto const& e : lengths.entries()) {
    values.push_back(e.length);
    weights.push_back(static_cast<double>(e.count));
  }
  auto random     = std::mt19937_64{5};
  auto draw       = std::discrete_distribution<std::size_t>{weights.begin(), weights.end()};
  auto sum        = 0.0;
  auto squares    = 0.0;
  auto const runs = 64;
  for (auto run = 0; run < runs; ++run) {
    auto most = 0.0;
    auto all  = 0.0;
    for (auto gpu = 0; gpu < 64; ++gpu) {
      auto tokens = 0.0;
      for (auto i = 0; i < 16; ++i) { tokens += values[draw(random)]; }
      most = std::max(most, tokens);
      all += tokens;
    }
    auto const ratio = most * 64 / all;
    sum += ratio;
    squares += ratio * ratio;
  }
  auto const mean  = sum / runs;
  auto const error = std::sqrt((squares / runs - mean * mean) / runs);
  REQUIRE(found.back().gpus == 64);
  CHECK(found.back().repetitions == 64);
  auto const both = std::hypot(error, found.back().standard_error);
  CHECK(std::abs(found.back().max_over_mean - mean) < 4 * both);
  CHECK(found.back().standard_error == doctest::Approx(error).epsilon(0.5));
  CHECK(found.back().mean == doctest::Approx(16 * lengths.mean_length()).epsilon(0.02));
}

TEST_CASE("simulator ranks the methods as the paper does, windows beyond its best") {
  auto const found = found_by(small());
  auto const at_64 = [&](std::string const& name) { return found.at(name).back().max_over_mean; };
  CHECK(at_64("no balancing") > 1.3);
  CHECK(at_64("local raster") < at_64("no balancing"));
  CHECK(at_64("local snake") < at_64("local raster"));
  CHECK(at_64("strata") < at_64("local snake"));
  CHECK(at_64("strata + local raster") < at_64("strata"));
  CHECK(at_64("strata + local snake") < at_64("global raster"));
  CHECK(at_64("strata + LPT") < at_64("strata + local snake"));
  CHECK(at_64("strata + LPT, window 8") < at_64("strata + LPT"));
  CHECK(at_64("strata + LPT, window 8") < 1.013);
  CHECK(at_64("16 spread strata + LPT, window 8") < at_64("strata + LPT, window 8"));
  CHECK(at_64("global snake") < at_64("global raster"));
  CHECK(at_64("packing, up to 12") < 1.01);
}

TEST_CASE("simulator finds what it found before with the same seed") {
  auto const found = found_by(small());
  auto const at_64 = [&](std::string const& name) { return found.at(name).back().max_over_mean; };
  CHECK(at_64("no balancing") == doctest::Approx(1.41101).epsilon(5e-6));
  CHECK(at_64("global raster") == doctest::Approx(1.06063).epsilon(5e-6));
  CHECK(at_64("strata + local snake") == doctest::Approx(1.02553).epsilon(5e-6));
  CHECK(at_64("strata + LPT, window 8") == doctest::Approx(1.00658).epsilon(5e-6));
  CHECK(at_64("spread strata + LPT, window 8") == doctest::Approx(1.00636).epsilon(5e-6));
}

TEST_CASE("simulator refuses settings that make no sense") {
  auto const refuses = [](auto change) {
    auto options = small();
    change(options);
    CHECK_THROWS_AS((simulator{options, paper_model()}), gradlane::contract_error);
  };
  refuses([](settings& s) { s.most_gpus = 24; });
  refuses([](settings& s) { s.most_gpus = 4; });
  refuses([](settings& s) { s.batch = 0; });
  refuses([](settings& s) { s.window = 0; });
  refuses([](settings& s) { s.n0 = 0; });
  CHECK_THROWS_AS((simulator{small(), length_histogram{std::vector<length_count>{}}}),
                  gradlane::contract_error);
}

TEST_CASE("figure_svg draws a bar for every method and number of GPUs") {
  auto options        = small();
  options.repetitions = 8;
  auto const s        = simulator{options, paper_model()};
  auto const svg      = figure_svg(s.methods(), s.run());
  auto const methods  = s.methods().size();
  CHECK(count_of("<rect", svg) == 1 + methods * 4 + methods);  // background, bars, legends
  CHECK(count_of("</svg>", svg) == 1);
  CHECK(count_of("<text", svg) == count_of("</text>", svg));
  CHECK(count_of("strata + local snake, 64 GPUs: ", svg) == 1);
  CHECK(count_of("nan", svg) == 0);
}
