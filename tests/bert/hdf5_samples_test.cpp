// SPDX-License-Identifier: Apache-2.0
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/config.hpp>
#include <bert/data/hdf5_samples.hpp>
#include <bert/errors.hpp>
#include <hdf5.h>

#include <array>

namespace {

using namespace bert;
namespace fs = std::filesystem;
using ids    = std::vector<std::int32_t>;

/// [CLS] 10 [MASK] [SEP] 12 13 [SEP] and the like; token 2 was 11.
[[nodiscard]] std::vector<hdf5_samples::row> rows() {
  return {{{2, 10, 4, 3, 12, 13, 3}, {0, 0, 0, 0, 1, 1, 1}, {2, 5}, {11, 13}, 1},
          {{2, 20, 3, 21, 3}, {0, 0, 0, 1, 1}, {1}, {20}, 0},
          {{2, 30, 3}, {0, 0, 0}, {}, {}, 0}};
}

void put(hid_t file,
         char const* name,
         std::vector<hsize_t> const& shape,
         hid_t type,
         bool packed,
         hid_t memory_type,
         void const* data) {
  auto const space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  auto const how   = H5Pcreate(H5P_DATASET_CREATE);
  if (packed) {
    H5Pset_chunk(how, static_cast<int>(shape.size()), shape.data());
    H5Pset_deflate(how, 4);
  }
  auto const set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
  REQUIRE(H5Dwrite(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
  H5Dclose(set);
  H5Pclose(how);
  H5Sclose(space);
}

/// DeepLearningExamples' form: rows padded with 0, compressed.
void write_fixed(fs::path const& path,
                 std::vector<hdf5_samples::row> const& samples,
                 std::string const& without = "") {
  auto const n      = samples.size();
  auto const file   = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  auto const matrix = [&](char const* name, std::size_t columns, hid_t type, auto const& of) {
    if (name == without) { return; }
    auto values = ids(n * columns);
    for (auto i = std::size_t{0}; i < n; ++i) {
      auto const row = of(samples[i]);
      std::copy(row.begin(), row.end(), values.begin() + static_cast<std::ptrdiff_t>(i * columns));
    }
    put(file, name, {n, columns}, type, true, H5T_NATIVE_INT32, values.data());
  };
  using row = hdf5_samples::row;
  matrix("input_ids", 16, H5T_STD_I32LE, [](row const& r) { return r.ids; });
  matrix("input_mask", 16, H5T_STD_I8LE, [](row const& r) { return ids(r.ids.size(), 1); });
  matrix("segment_ids", 16, H5T_STD_I8LE, [](row const& r) { return r.segments; });
  matrix("masked_lm_positions", 4, H5T_STD_I32LE, [](row const& r) { return r.positions; });
  matrix("masked_lm_ids", 4, H5T_STD_I32LE, [](row const& r) { return r.labels; });
  auto next = ids{};
  for (auto const& sample : samples) { next.push_back(sample.next); }
  put(file, "next_sentence_labels", {n}, H5T_STD_I8LE, true, H5T_NATIVE_INT32, next.data());
  H5Fclose(file);
}

/// MLPerf's form since v1.1: rows of their own lengths, 16 and 8 bits wide.
void write_variable(fs::path const& path,
                    std::vector<hdf5_samples::row> const& samples,
                    bool packed = false) {
  auto const n      = samples.size();
  auto const file   = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  auto const memory = H5Tvlen_create(H5T_NATIVE_INT32);
  auto const column = [&](char const* name, hid_t element, auto member) {
    auto lists = std::vector<hvl_t>{};
    for (auto const& sample : samples) {
      auto const& values = sample.*member;
      lists.push_back({values.size(), const_cast<std::int32_t*>(values.data())});
    }
    auto const type = H5Tvlen_create(element);
    put(file, name, {n}, type, false, memory, lists.data());
    H5Tclose(type);
  };
  column("input_ids", H5T_STD_I16LE, &hdf5_samples::row::ids);
  column("segment_ids", H5T_STD_I8LE, &hdf5_samples::row::segments);
  column("masked_lm_positions", H5T_STD_I16LE, &hdf5_samples::row::positions);
  column("masked_lm_ids", H5T_STD_I16LE, &hdf5_samples::row::labels);
  if (packed) { column("packed_input_len", H5T_STD_I16LE, &hdf5_samples::row::labels); }
  auto next = ids{};
  for (auto const& sample : samples) { next.push_back(sample.next); }
  put(file, "next_sentence_labels", {n}, H5T_STD_I8LE, false, H5T_NATIVE_INT32, next.data());
  H5Tclose(memory);
  H5Fclose(file);
}

[[nodiscard]] hdf5_samples::row take(hdf5_samples const& from, std::uint32_t sample) {
  auto const data = make_batch(from, std::vector{sample}, 0);
  CHECK(data.samples == std::vector{sample});
  return {data.tokens, data.segments, data.predicted, data.labels, data.next[0]};
}

void expect_rows(hdf5_samples const& samples, std::vector<hdf5_samples::row> const& expected) {
  REQUIRE(samples.size() == expected.size());
  for (auto i = std::uint32_t{0}; i < samples.size(); ++i) {
    auto const found = take(samples, i);
    CHECK(samples.length(i) == expected[i].ids.size());
    CHECK(found.ids == expected[i].ids);
    CHECK(found.segments == expected[i].segments);
    CHECK(found.positions == expected[i].positions);
    CHECK(found.labels == expected[i].labels);
    CHECK(found.next == expected[i].next);
  }
}

TEST_CASE("hdf5_samples reads both forms to the same samples, in the order of the files") {
  auto const folder = test::temporary_directory{};
  auto const fixed  = folder.path() / "b.hdf5";
  auto const vlen   = folder.path() / "a.h5";
  write_fixed(fixed, rows());
  write_variable(vlen, rows());
  auto const one   = hdf5_samples{std::vector{fixed}, 100, 16};
  auto const other = hdf5_samples{std::vector{vlen}, 100, 16};
  expect_rows(one, rows());
  expect_rows(other, rows());
  CHECK(one.fingerprint() == other.fingerprint());
  CHECK(find_hdf5_files(std::vector{folder.path()}) == std::vector{vlen, fixed});
  auto twice = rows();
  for (auto const& row : rows()) { twice.push_back(row); }
  auto const both = hdf5_samples{std::vector{vlen, fixed}, 100, 16};
  expect_rows(both, twice);
  CHECK(both.fingerprint() != one.fingerprint());
  auto config       = preset("mini");
  config.vocab_size = 100;
  CHECK_NOTHROW(check(make_batch(both, std::vector<std::uint32_t>{5, 0, 3}, 1), config));
}

TEST_CASE("hdf5_samples reads files of more rows than it takes at once") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "many.hdf5";
  auto many         = std::vector<hdf5_samples::row>{};
  for (auto i = 0; i < 2500; ++i) {
    many.push_back(rows()[static_cast<std::size_t>(i % 3)]);
    many.back().ids[1] = 10 + i;
  }
  write_variable(path, many);
  expect_rows(hdf5_samples{std::vector{path}, 3000, 16}, many);
  write_fixed(path, many);
  expect_rows(hdf5_samples{std::vector{path}, 3000, 16}, many);
}

TEST_CASE("hdf5_samples counts the tokens of the text as it was before masking") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "a.h5";
  write_variable(path, rows());
  auto const counts = hdf5_samples{std::vector{path}, 100, 16}.count_tokens();
  CHECK(counts.size() == 31);
  CHECK(counts[11] == 1);  // under [MASK]
  CHECK(counts[4] == 0);
  CHECK(counts[30] == 1);
  CHECK(counts[3] == 2);  // the separators in the middle
}

TEST_CASE("hdf5_samples names the file, and what is wrong with it") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "a.hdf5";
  auto const read   = [&](std::size_t vocab_size, std::size_t length) {
    return hdf5_samples{std::vector{path}, vocab_size, length}.size();
  };
  CHECK_THROWS_AS(static_cast<void>(read(100, 16)), file_system_error);
  for (auto const* name : {"input_ids", "input_mask", "masked_lm_ids"}) {
    write_fixed(path, rows(), name);
    CHECK_THROWS_WITH_AS(static_cast<void>(read(100, 16)),
                         doctest::Contains((std::string{"a.hdf5: its dataset "} + name).c_str()),
                         damaged_file_error);
  }
  write_variable(path, rows(), true);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(read(100, 16)), doctest::Contains("packed samples"), damaged_file_error);
  write_fixed(path, rows());
  CHECK_THROWS_WITH_AS(static_cast<void>(read(30, 16)),
                       doctest::Contains("sample 2 has ids beyond the model's vocabulary"),
                       input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(read(100, 6)),
                       doctest::Contains("sample 0 is longer than the model's positions"),
                       input_error);
  auto const whole = read_file(path);
  output_file{path}.write(whole.substr(0, whole.size() / 2));
  CHECK_THROWS_WITH_AS(static_cast<void>(read(100, 16)),
                       doctest::Contains("a.hdf5: is truncated, or no HDF5 file"),
                       damaged_file_error);
  output_file{path}.write("not at all");
  CHECK_THROWS_AS(static_cast<void>(read(100, 16)), damaged_file_error);
}

TEST_CASE("hdf5_samples refuses a sample that no model can take") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "a.hdf5";
  auto const refuse = [&](auto const& spoil, char const* message) {
    auto bad = rows();
    spoil(bad[1]);
    write_variable(path, bad);
    CHECK_THROWS_WITH_AS(hdf5_samples(std::vector{path}, 100, 16),
                         doctest::Contains((std::string{"sample 1 "} + message).c_str()),
                         input_error);
  };
  using row = hdf5_samples::row;
  refuse([](row& r) { r.ids.clear(); }, "is empty");
  refuse([](row& r) { r.ids[1] = -3; }, "has ids beyond");
  refuse([](row& r) { r.segments.pop_back(); }, "has not one segment");
  refuse([](row& r) { r.segments[0] = 1; }, "has segments that are not");
  refuse([](row& r) { r.labels.clear(); }, "has not one label");
  refuse([](row& r) { r.labels[0] = 100; }, "has ids beyond");
  refuse([](row& r) { r.positions[0] = 5; }, "has positions that do not ascend");
  refuse([](row& r) { r.next = 2; }, "has a next-sentence label");
}

}  // namespace
