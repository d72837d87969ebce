// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/config.hpp>
#include <bert/parameters.hpp>

#include <cmath>     // for sqrt, abs
#include <iterator>  // for next
#include <set>       // for set
#include <string>    // for string
#include <vector>    // for vector

namespace {

using namespace bert;

TEST_CASE("parameter_list counts as many elements as Hugging Face's BertForPreTraining") {
  CHECK(parameter_list{preset("base")}.total() == 110'106'428);
  CHECK(parameter_list{preset("large")}.total() == 336'226'108);
}

TEST_CASE("parameter_list leaves no gap, and joins query, key and value") {
  auto const list = parameter_list{preset("mini")};
  auto offset     = std::size_t{0};
  auto names      = std::set<std::string>{};
  for (auto const& p : list) {
    CHECK(p.offset == offset);
    offset += p.size;
    names.insert(p.name);
  }
  CHECK(offset == list.total());
  CHECK(names.size() == list.size());
  auto const at = list.layer(3);
  CHECK(list[at + parameter_list::key_weight].name ==
        "bert.encoder.layer.3.attention.self.key.weight");
  CHECK(list[at + parameter_list::value_bias].name ==
        "bert.encoder.layer.3.attention.self.value.bias");
  CHECK(list[at + parameter_list::output_norm_bias].name ==
        "bert.encoder.layer.3.output.LayerNorm.bias");
  CHECK(list[list.heads() + parameter_list::decoder_bias].name == "cls.predictions.bias");
  CHECK(list[list.heads() + parameter_list::next_bias].name == "cls.seq_relationship.bias");
  CHECK(list.heads() + parameter_list::next_bias + 1 == list.size());
}

TEST_CASE("parameter_list exempts biases and LayerNorm from weight decay, and nothing else") {
  for (auto const& p : parameter_list{preset("mini")}) {
    auto const exempt = p.name.ends_with("bias") || p.name.find("LayerNorm") != std::string::npos;
    CHECK_MESSAGE(p.decay == !exempt, p.name);
  }
}

TEST_CASE("initialise draws Normal(0, 0.02), with LayerNorm at 1 and 0 and the [PAD] row at 0") {
  auto const list = parameter_list{preset("mini")};
  auto flat       = std::vector<float>(list.total(), 9);
  initialise(list, flat, 42);
  auto const word = list.slice(std::span<float const>{flat}, list.word).subspan(256);
  auto sum        = 0.0;
  auto squares    = 0.0;
  auto fourth     = 0.0;
  for (auto const value : word) {
    auto const x = static_cast<double>(value) / 0.02;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  auto const n = static_cast<double>(word.size());  // five standard deviations of each moment
  CHECK(std::abs(sum / n) < 5 / std::sqrt(n));
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::abs(fourth / n - 3) < 5 * std::sqrt(96 / n));
  for (auto j = std::size_t{0}; j < 256; ++j) { CHECK(flat[j] == 0); }
  CHECK(flat[list[list.embedding_weight].offset] == 1);
  CHECK(flat[list[list.embedding_bias].offset] == 0);
  auto again = std::vector<float>(list.total());
  initialise(list, again, 42);
  CHECK(again == flat);
  initialise(list, again, 43);
  CHECK(again != flat);
}

TEST_CASE("preset refuses a name that it does not know") {
  CHECK_THROWS_WITH_AS(static_cast<void>(preset("huge")),
                       doctest::Contains("choose mini, base or large"),
                       gradlane::contract_error);
}

TEST_CASE("model_config refuses heads that do not divide the hidden size") {
  auto config                = preset("mini");
  config.num_attention_heads = 3;
  CHECK_THROWS_WITH_AS(
      config.check(), doctest::Contains("num_attention_heads"), gradlane::contract_error);
}

TEST_CASE("read_config reads what to_json wrote, and names the file that it cannot read") {
  auto config       = preset("mini");
  config.dropout    = 0.25;
  config.vocab_size = 1234;
  auto const folder = std::filesystem::temp_directory_path() / "gradlane_bert_parameters_test";
  auto const file   = folder / "config.json";
  std::filesystem::create_directories(folder);
  std::ofstream{file} << to_json(config);
  CHECK(read_config(file) == config);
  std::ofstream{file} << "{\"hidden_size\": \"wide\"}";
  CHECK_THROWS_WITH_AS(static_cast<void>(read_config(file)),
                       doctest::Contains(file.string().c_str()),
                       gradlane::contract_error);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_AS(static_cast<void>(read_config(file)), gradlane::contract_error);
}

}  // namespace
