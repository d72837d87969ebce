// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for tiny_config, formula_parameters

#include <doctest/doctest.h>

#include <bert/safetensors.hpp>
#include <bert/weights.hpp>
#include <unistd.h>  // for getpid

#include <filesystem>  // for path, temp_directory_path
#include <fstream>     // for ofstream, ifstream
#include <sstream>     // for ostringstream
#include <string>      // for string
#include <vector>      // for vector

namespace {

using namespace bert;

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("gradlane_safetensors_test_" + std::to_string(::getpid()));
  std::filesystem::path file = path / "x.safetensors";

  folder() { std::filesystem::create_directories(path); }
  folder(folder&&)            = delete;
  folder& operator=(folder&&) = delete;
  ~folder() { std::filesystem::remove_all(path); }

  void put(std::string const& content) const {
    std::ofstream{file, std::ios::binary}.write(content.data(),
                                                static_cast<std::streamsize>(content.size()));
  }
  [[nodiscard]] std::string get() const {
    auto in   = std::ifstream{file, std::ios::binary};
    auto text = std::ostringstream{};
    text << in.rdbuf();
    return text.str();
  }
  // a header of this text, then so many bytes of data
  void put(std::string const& header, std::size_t data) const {
    auto content = std::string(8, '\0');
    content[0]   = static_cast<char>(header.size());
    put(content + header + std::string(data, 'x'));
  }
  void refuse(char const* message) const {
    CHECK_THROWS_WITH_AS(safetensors{file}, doctest::Contains(message), damaged_file_error);
  }
};

constexpr auto one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST_CASE_FIXTURE(folder, "safetensors writes the bytes that the format prescribes") {
  auto const values = std::vector<float>{1, 2};
  write_safetensors(file, std::vector{float_tensor("a", {2}, values)}, {});
  auto const content = get();
  REQUIRE(content.size() == 8 + 56 + 8);
  CHECK(content.substr(0, 8) == std::string("\x38\0\0\0\0\0\0\0", 8));
  CHECK(content.substr(8, 56) == std::string{one} + "  ");
  CHECK(content.substr(64) == std::string("\0\0\x80\x3F\0\0\0\x40", 8));
}

TEST_CASE_FIXTURE(folder,
                  "safetensors reads back what was written, metadata and empty tensors too") {
  auto const config = test::tiny_config();
  auto const list   = parameter_list{config};
  auto const flat   = test::formula_parameters<float>(list);
  auto tensors      = named_tensors(list, flat);
  auto const ids    = std::vector<std::int64_t>{1, -2, 3};
  tensors.push_back({"ids", "I64", {3, 1}, std::as_bytes(std::span{ids})});
  tensors.push_back({"none", "U8", {0, 4}, {}});
  write_safetensors(file, tensors, {{"format", "pt"}, {"step", "37"}});
  auto back = std::vector<float>(list.total());
  load_weights(file, list, back);
  CHECK(back == flat);
  auto in = safetensors{file};
  CHECK(in.metadata().at("step") == "37");
  CHECK(in.entries().size() == list.size() + 2);
  CHECK(in.at("none").shape == std::vector<std::size_t>{0, 4});
  auto ids_back = std::vector<std::int64_t>(3);
  in.read("ids", "I64", {3, 1}, std::span{ids_back});
  CHECK(ids_back == ids);
  CHECK_THROWS_WITH_AS(in.read("ids", "I64", {1, 3}, std::span{ids_back}),
                       doctest::Contains("shape (3, 1) where ids of type I64 and shape (1, 3)"),
                       damaged_file_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(in.at("other")),
                       doctest::Contains("has no tensor other"),
                       damaged_file_error);
}

TEST_CASE_FIXTURE(folder, "safetensors refuses a file cut at any byte") {
  auto const values = std::vector<float>{1, 2};
  write_safetensors(file, std::vector{float_tensor("a", {2}, values)});
  auto const whole = get();
  CHECK_NOTHROW(safetensors{file});
  for (auto size = std::size_t{0}; size < whole.size(); ++size) {
    put(whole.substr(0, size));
    CHECK_THROWS_AS(safetensors{file}, damaged_file_error);
  }
  put(whole + "x");
  refuse("data after its last tensor");
}

TEST_CASE_FIXTURE(folder, "safetensors refuses headers that contradict the data or themselves") {
  put(one, 8);
  CHECK_NOTHROW(safetensors{file});
  put("short");
  refuse("shorter than a header");
  put(one, 7);
  refuse("ends before its last tensor");
  put(std::string(8, '\xFF') + one);
  refuse("no safetensors file");
  put("{\"a\":", 8);
  refuse("cannot be understood");
  put(R"({"a":{"dtype":"F32","shape":[2]}})", 8);
  refuse("cannot be understood");
  put(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8);
  refuse("tensor a");
  put(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8);
  refuse("tensor a");
  put(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8);
  refuse("tensor a");
  put(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8);
  refuse("tensor a");
  put(R"({"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}})", 16);
  refuse("tensor a");
  put(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6);
  refuse("gap");
  put(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
      6);
  refuse("overlap");
}

TEST_CASE_FIXTURE(folder, "safetensors names the file that cannot be opened or written") {
  CHECK_THROWS_WITH_AS(safetensors{file}, doctest::Contains(file.c_str()), file_system_error);
  auto const values = std::vector<float>{1, 2};
  CHECK_THROWS_WITH_AS(
      write_safetensors(path / "no" / "x", std::vector{float_tensor("a", {2}, values)}),
      doctest::Contains("No such file or directory"),
      file_system_error);
  if (std::filesystem::exists("/dev/full")) {
    auto const full = path / "full.partial";  // what is written lands on a disk that is full
    std::filesystem::create_symlink("/dev/full", full);
    CHECK_THROWS_WITH_AS(
        write_safetensors(path / "full", std::vector{float_tensor("a", {2}, values)}),
        doctest::Contains("No space left on device"),
        file_system_error);
  }
}

TEST_CASE_FIXTURE(folder, "write_safetensors leaves the older file if it fails, and no rubbish") {
  auto const values = std::vector<float>{1, 2};
  write_safetensors(file, std::vector{float_tensor("a", {2}, values)});
  auto const before = get();
  auto wrong        = float_tensor("a", {3}, values);
  CHECK_THROWS_AS(write_safetensors(file, std::vector{wrong}), gradlane::contract_error);
  CHECK(get() == before);
  auto count = 0;
  for (auto const& each : std::filesystem::directory_iterator{path}) {
    CHECK(each.path() == file);
    ++count;
  }
  CHECK(count == 1);
}

TEST_CASE_FIXTURE(folder, "load_weights names the tensor that does not fit the model") {
  auto config     = test::tiny_config();
  auto const list = parameter_list{config};
  save_weights(file, list, test::formula_parameters<float>(list));
  config.vocab_size = 40;
  auto const larger = parameter_list{config};
  auto flat         = std::vector<float>(larger.total());
  CHECK_THROWS_WITH_AS(load_weights(file, larger, flat),
                       doctest::Contains("bert.embeddings.word_embeddings.weight"),
                       damaged_file_error);
}

}  // namespace
