// SPDX-License-Identifier: Apache-2.0
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/errors.hpp>
#include <bert/files.hpp>
#include <bert/text/train_vocabulary.hpp>
#include <bert/text/wordpiece.hpp>
#include <nlohmann/json.hpp>

namespace {

using namespace bert;
using ids     = std::vector<std::int32_t>;
using strings = std::vector<std::string>;

[[nodiscard]] ids encode(vocabulary const& pieces, letter_case letters, std::string_view text) {
  auto result = ids{};
  wordpiece{pieces, letters}.encode(text, result);
  return result;
}

[[nodiscard]] vocabulary small_vocabulary(strings more = {}) {
  auto pieces = strings{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  pieces.insert(pieces.end(), more.begin(), more.end());
  return vocabulary{pieces, "here"};
}

TEST_CASE("wordpiece gives the ids of Hugging Face's BertTokenizer") {
  auto const golden = nlohmann::json::parse(read_file(BERT_GOLDEN "/wordpiece.json"));
  auto const pieces = vocabulary{golden.at("pieces").get<strings>()};
  REQUIRE(golden.at("cases").size() > 20);
  for (auto const& item : golden.at("cases")) {
    auto const text = item.at("text").get<std::string>();
    CAPTURE(text);
    CHECK(encode(pieces, letter_case::lower, text) == item.at("lower").get<ids>());
    CHECK(encode(pieces, letter_case::keep, text) == item.at("keep").get<ids>());
  }
}

TEST_CASE("wordpiece gives the same ids to words that it remembers") {
  auto const pieces = small_vocabulary({"ab", "a", "##b", "##c"});
  auto encoder      = wordpiece{pieces, letter_case::lower};
  auto result       = ids{};
  encoder.encode("ab abc x ab abc x", result);
  CHECK(result == ids{5, 5, 8, 1, 5, 5, 8, 1});
}

TEST_CASE("word_splitter drops bytes that are no UTF-8 and goes on behind them") {
  auto words = word_splitter{letter_case::lower};
  CHECK(words.split("a\xFF\x62 \xC3(c) \xE4\xB8") == "ab ( c )");
  CHECK(words.split("\xED\xA0\x80x") == "x");
}

TEST_CASE("vocabulary finds its pieces and special pieces at any place") {
  auto const pieces = vocabulary{{"b", "[MASK]", "##b", "[SEP]", "[CLS]", "[UNK]", "[PAD]"}};
  CHECK(pieces.mask() == 1);
  CHECK(pieces.pad() == 6);
  CHECK(pieces.is_special(5));
  CHECK_FALSE(pieces.is_special(2));
  CHECK(pieces.find("##b") == 2);
  CHECK(pieces.find("b", true) == 2);
  CHECK(pieces.find("b", false) == 0);
  CHECK_FALSE(pieces.find("c"));
  CHECK(pieces.longest() == 6);
}

TEST_CASE("vocabulary is refused with the line that is wrong") {
  CHECK_THROWS_WITH_AS(small_vocabulary({"x", "x"}),
                       doctest::Contains("here, line 7: the piece 'x' comes twice"),
                       input_error);
  CHECK_THROWS_WITH_AS(
      small_vocabulary({"x", ""}), doctest::Contains("here, line 7: is empty"), input_error);
  CHECK_THROWS_WITH_AS(vocabulary(strings{"[PAD]", "[UNK]", "[CLS]", "[SEP]"}, "here"),
                       doctest::Contains("here: lacks [MASK]"),
                       input_error);
}

TEST_CASE("vocabulary is written and read as vocab.txt") {
  auto const folder = test::temporary_directory{};
  auto const file   = folder.path() / "vocab.txt";
  auto const pieces = small_vocabulary({"é", "##x"});
  write_vocabulary(pieces, file);
  CHECK(read_file(file) == "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\né\n##x\n");
  CHECK(read_vocabulary(file).fingerprint() == pieces.fingerprint());
  CHECK(small_vocabulary({"é", "x"}).fingerprint() != pieces.fingerprint());
  auto const dos = folder.write("dos.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]");
  CHECK(read_vocabulary(dos).fingerprint() == small_vocabulary().fingerprint());
  CHECK_THROWS_AS(static_cast<void>(read_vocabulary(folder.path() / "none")), file_system_error);
}

TEST_CASE("expect_fits compares a vocabulary with the embeddings of a model") {
  auto const pieces = small_vocabulary({"a"});
  CHECK_NOTHROW(expect_fits(pieces, 6));
  CHECK_NOTHROW(expect_fits(pieces, 8));
  CHECK_THROWS_WITH_AS(expect_fits(pieces, 5),
                       doctest::Contains("has 6 pieces, but the model only 5 embeddings"),
                       input_error);
}

TEST_CASE("count_words gives the same counts on any number of threads") {
  auto const folder = test::temporary_directory{};
  auto files        = std::vector<std::filesystem::path>{};
  for (auto i = 0; i < 8; ++i) {
    files.push_back(folder.write(std::to_string(i) + ".txt", "The cat. The hat, the end."));
  }
  auto const sources = split_sources(files);
  auto const counts  = count_words(sources, letter_case::lower, 1);
  CHECK(counts == std::vector<word_count>{
                      {"the", 24}, {".", 16}, {",", 8}, {"cat", 8}, {"end", 8}, {"hat", 8}});
  CHECK(count_words(sources, letter_case::lower, 3) == counts);
  auto const half = count_words(sources, letter_case::keep, 2, 4 * 26);
  CHECK(half.front() == word_count{".", 8});
}

TEST_CASE("train_vocabulary learns frequent words whole and every character both ways") {
  auto const words = std::vector<word_count>{
      {"there", 100}, {"here", 90}, {"where", 80}, {"walking", 30}, {"talking", 20}, {"x", 1}};
  auto const pieces = train_vocabulary(words, 512);
  CHECK(pieces.mask() == 4);
  CHECK(pieces.size() < 512);
  for (auto const* piece : {"there", "here", "where", "walking", "x", "##x", "e", "##e"}) {
    CAPTURE(piece);
    CHECK(pieces.find(piece));
  }
  CHECK(pieces.piece(5) == "e");
  CHECK(encode(pieces, letter_case::lower, "there") == ids{*pieces.find("there")});
  auto const odd = encode(pieces, letter_case::lower, "xhere");
  CHECK(std::find(odd.begin(), odd.end(), pieces.unknown()) == odd.end());
  CHECK(train_vocabulary(words, 512).to_text() == pieces.to_text());
}

TEST_CASE("train_vocabulary keeps to its size and leaves out the rarest characters") {
  auto const words = std::vector<word_count>{
      {"aaaa", 50}, {"abab", 40}, {"baba", 30}, {"ababab", 20}, {"bbb", 10}, {"zzz", 1}};
  auto const pieces = train_vocabulary(words, 36);  // room for two characters
  CHECK(pieces.size() <= 36);
  CHECK(pieces.find("##b"));
  CHECK_FALSE(pieces.find("z"));
  CHECK(encode(pieces, letter_case::lower, "zzz") == ids{pieces.unknown()});
}

TEST_CASE("train_vocabulary refuses text without words and a size without room") {
  CHECK_THROWS_WITH_AS(static_cast<void>(train_vocabulary({}, 100)),
                       doctest::Contains("the text holds no word"),
                       input_error);
  auto const words = std::vector<word_count>{{"a", 1}};
  CHECK_THROWS_WITH_AS(static_cast<void>(train_vocabulary(words, 7)),
                       doctest::Contains("a vocabulary of 7 pieces is too small"),
                       input_error);
}

}  // namespace
