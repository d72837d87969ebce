// SPDX-License-Identifier: Apache-2.0
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/config.hpp>
#include <bert/data/make_cache.hpp>
#include <bert/data/text_samples.hpp>
#include <bert/errors.hpp>
#include <bert/text/train_vocabulary.hpp>

#include <cmath>
#include <set>

namespace {

using namespace bert;
namespace fs   = std::filesystem;
using ids      = std::vector<std::int32_t>;
using position = std::vector<std::uint64_t>;

constexpr auto key = token_cache_key{11, 22};

[[nodiscard]] vocabulary letters() {
  auto pieces = std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ","};
  for (auto c = 'a'; c <= 'z'; ++c) { pieces.emplace_back(1, c); }
  for (auto c = 'a'; c <= 'z'; ++c) { pieces.push_back(std::string{"##"} + c); }
  return vocabulary{pieces};
}

/// `documents` of up to 40 sentences of up to 30 tokens; token i of the cache is 5 + i % 50.
[[nodiscard]] token_documents numbered_text(std::size_t documents) {
  auto result = token_documents{};
  auto random = random_stream{9, draw::held_out, 0, 0};
  for (auto d = std::size_t{0}; d < documents; ++d) {
    for (auto s = 1 + random.below(40); s > 0; --s) {
      for (auto t = 1 + random.below(30); t > 0; --t) {
        result.tokens.push_back(static_cast<std::int32_t>(5 + result.tokens.size() % 50));
      }
      result.sentence_ends.push_back(result.tokens.size());
    }
    result.document_ends.push_back(result.sentence_ends.size());
  }
  return result;
}

void write_cache(fs::path const& path, token_documents const& text, std::size_t vocab_size = 100) {
  auto writer = token_cache_writer{path, vocab_size, key};
  writer.add(text);
  writer.finish();
}

TEST_CASE("token_cache gives back what was written, with tokens of 2 and of 4 bytes") {
  auto const folder = test::temporary_directory{};
  for (auto const vocab_size : {std::size_t{65536}, std::size_t{65537}}) {
    auto const path = folder.path() / std::to_string(vocab_size);
    {
      auto writer = token_cache_writer{path, vocab_size, key};
      writer.add({{5, 6, 7, 65535}, {1, 4}, {2}});
      writer.add({{}, {}, {}});
      writer.add({{9, 10, 11}, {2, 3}, {1, 2}});
      CHECK_FALSE(fs::exists(path));
      writer.finish();
    }
    auto const cache = token_cache{path};
    CHECK(cache.key() == key);
    CHECK(cache.tokens() == 7);
    REQUIRE(cache.sentences() == 4);
    REQUIRE(cache.documents() == 3);
    CHECK(cache.sentence(0) == index_range{0, 1});
    CHECK(cache.sentence(1) == index_range{1, 4});
    CHECK(cache.sentence(3) == index_range{6, 7});
    CHECK(cache.document(0) == index_range{0, 2});
    CHECK(cache.document(2) == index_range{3, 4});
    auto tokens = ids{1};
    cache.copy({2, 6}, tokens);
    CHECK(tokens == ids{1, 7, 65535, 9, 10});
  }
  CHECK(std::distance(fs::directory_iterator{folder.path()}, {}) == 2);  // and nothing else
}

TEST_CASE("token_cache refuses every truncated and every damaged file by name") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "cache";
  write_cache(path, {{5, 6, 7}, {1, 3}, {2}});
  auto const whole = read_file(path);
  for (auto size = std::size_t{0}; size < whole.size(); ++size) {
    auto const cut = folder.write("cut", whole.substr(0, size));
    CHECK_THROWS_WITH_AS(token_cache{cut}, doctest::Contains("/cut: is no"), damaged_file_error);
  }
  for (auto i = std::size_t{0}; i < whole.size(); ++i) {
    auto changed      = whole;
    changed[i]        = static_cast<char>(changed[i] ^ 16);
    auto const broken = folder.write("broken", changed);
    CHECK_THROWS_AS(token_cache{broken}, damaged_file_error);
  }
  CHECK_THROWS_AS(token_cache{folder.write("longer", whole + "12345678")}, damaged_file_error);
  CHECK_THROWS_WITH_AS(token_cache{folder.write("other", std::string(100, 'x'))},
                       doctest::Contains("is no token cache but some other file"),
                       damaged_file_error);
  CHECK_THROWS_AS(token_cache{folder.path() / "none"}, file_system_error);
}

TEST_CASE("token_cache_writer leaves nothing behind when it does not finish") {
  auto const folder = test::temporary_directory{};
  {
    auto writer = token_cache_writer{folder.path() / "cache", 100, key};
    writer.add({{5}, {1}, {1}});
  }
  CHECK(fs::is_empty(folder.path()));
  CHECK_THROWS_AS(token_cache_writer(folder.path() / "no" / "cache", 100, key), file_system_error);
}

TEST_CASE("make_token_cache writes the same file on any number of threads") {
  auto const folder = test::temporary_directory{};
  auto files        = std::vector<fs::path>{};
  for (auto i = 0; i < 40; ++i) {
    auto text = std::string{};
    for (auto j = 0; j < i; ++j) { text += std::string(1, static_cast<char>('a' + j % 26)) + ". "; }
    files.push_back(folder.write(std::to_string(i) + ".txt", text + "Ab, cd."));
  }
  auto const pieces = letters();
  auto const one    = folder.path() / "one";
  auto const four   = folder.path() / "four";
  make_token_cache(files, {}, pieces, one, 1);
  make_token_cache(files, {}, pieces, four, 4);
  CHECK(read_file(one) == read_file(four));
  auto const cache = token_cache{one};
  CHECK(cache.documents() == 40);
  auto tokens = ids{};
  cache.copy(cache.sentence(0), tokens);
  CHECK(tokens == ids{7, 34, 6, 9, 36, 5});  // ab , cd .
}

TEST_CASE("open_token_cache makes a cache once, and again when text or vocabulary changed") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "cache";
  auto const files  = std::vector{folder.write("a.txt", "A b."), folder.write("b.txt", "C.")};
  auto const pieces = letters();
  CHECK(open_token_cache(files, {}, pieces, path, 2).tokens() == 5);
  auto const written = fs::last_write_time(path);
  CHECK(open_token_cache(files, {}, pieces, path, 2).tokens() == 5);
  CHECK(fs::last_write_time(path) == written);
  folder.write("b.txt", "C d e.");
  CHECK(open_token_cache(files, {}, pieces, path, 2).tokens() == 7);
  auto const other = vocabulary{{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}};
  auto tokens      = ids{};
  auto const again = open_token_cache(files, {}, other, path, 2);
  again.copy(again.sentence(0), tokens);
  CHECK(tokens == ids{1, 1, 1});
  CHECK(open_token_cache(files, {letter_case::keep, {}}, other, path, 2).key() != again.key());
  folder.write("cache", "someone's own file");
  CHECK_THROWS_AS(static_cast<void>(open_token_cache(files, {}, pieces, path, 2)),
                  damaged_file_error);
  CHECK(read_file(path) == "someone's own file");
}

TEST_CASE("make_token_cache says that text is empty, and passes on failures of its threads") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "cache";
  auto files        = std::vector{folder.write("a.txt", " \n \x01")};
  CHECK_THROWS_WITH_AS(make_token_cache(files, {}, letters(), path, 2),
                       doctest::Contains("the text is empty: there is no word in 1 file(s)"),
                       input_error);
  files.push_back(folder.write("b.txt", std::string{"a\0b", 3}));
  for (auto i = 0; i < 20; ++i) { files.push_back(folder.write(std::to_string(i) + ".txt", "c")); }
  CHECK_THROWS_WITH_AS(make_token_cache(files, {}, letters(), path, 3),
                       doctest::Contains("b.txt: holds a zero byte"),
                       input_error);
  CHECK_FALSE(fs::exists(path));
}

struct numbered {
  test::temporary_directory folder;
  std::shared_ptr<token_cache const> cache;

  explicit numbered(std::size_t documents) {
    write_cache(folder.path() / "cache", numbered_text(documents));
    cache = std::make_shared<token_cache const>(folder.path() / "cache");
  }
};

TEST_CASE("documents_of puts every document into one of the two parts") {
  for (auto const count : {std::size_t{2}, std::size_t{3}, std::size_t{400}}) {
    auto const text     = numbered{count};
    auto const training = documents_of(*text.cache, {}, data_part::training);
    auto const held_out = documents_of(*text.cache, {}, data_part::held_out);
    CHECK_FALSE(training.empty());
    CHECK_FALSE(held_out.empty());
    auto all = std::set<std::uint32_t>{training.begin(), training.end()};
    all.insert(held_out.begin(), held_out.end());
    CHECK(all.size() == count);
    CHECK(training.size() + held_out.size() == count);
    if (count == 400) { CHECK(std::abs(static_cast<int>(held_out.size()) - 20) < 22); }
  }
  auto const alone = numbered{1};
  CHECK_THROWS_WITH_AS(static_cast<void>(documents_of(*alone.cache, {}, data_part::training)),
                       doctest::Contains("the text is too short: it is a single document"),
                       input_error);
}

TEST_CASE("make_pairs makes pairs as BERT does: lengths, halves that follow, own documents") {
  auto const text      = numbered{400};
  auto const& cache    = *text.cache;
  auto settings        = pair_settings{};
  settings.max_length  = 64;
  auto const pairs     = make_pairs(cache, settings, data_part::training);
  auto const documents = documents_of(cache, settings, data_part::training);
  auto document_at     = std::vector<std::uint32_t>(cache.tokens());
  for (auto d = std::uint32_t{0}; d < cache.documents(); ++d) {
    for (auto s = cache.document(d).begin; s < cache.document(d).end; ++s) {
      for (auto t = cache.sentence(s).begin; t < cache.sentence(s).end; ++t) { document_at[t] = d; }
    }
  }
  auto const allowed = std::set<std::uint32_t>{documents.begin(), documents.end()};
  auto follows       = 0;
  auto at_most       = 0;
  for (auto const& pair : pairs) {
    REQUIRE(pair.first_length >= 1);
    REQUIRE(pair.second_length >= 1);
    REQUIRE(pair.length() <= 64);
    auto const first  = document_at[pair.first];
    auto const second = document_at[pair.second];
    REQUIRE(document_at[pair.first + pair.first_length - 1U] == first);
    REQUIRE(document_at[pair.second + pair.second_length - 1U] == second);
    REQUIRE(allowed.contains(first));
    REQUIRE(allowed.contains(second));
    if (pair.follows) {
      REQUIRE(first == second);
      REQUIRE(pair.second >= pair.first + pair.first_length);
      ++follows;
    } else {
      REQUIRE(first != second);
    }
    at_most += pair.length() == 64 ? 1 : 0;
  }
  auto const count = static_cast<int>(pairs.size());
  CHECK(count > 1500);
  // A sentence alone never follows; the others do with 1/2. Five deviations are 0.065 of 1500.
  CHECK(follows < 0.565 * count);
  CHECK(follows > 0.35 * count);
  CHECK(at_most > 0.5 * count);
  CHECK(at_most < 0.95 * count);
  CHECK(make_pairs(cache, settings, data_part::training) == pairs);
  settings.seed = 2;
  CHECK(make_pairs(cache, settings, data_part::training) != pairs);
}

TEST_CASE("make_pairs uses every sentence of a document when none is too long") {
  auto const text            = numbered{30};
  auto const& cache          = *text.cache;
  auto settings              = pair_settings{};
  settings.max_length        = 4000;  // no pair is truncated
  settings.short_probability = 1;
  auto used                  = std::vector<bool>(cache.tokens());
  for (auto const& pair : make_pairs(cache, settings, data_part::training)) {
    for (auto i = std::size_t{0}; i < pair.first_length; ++i) { used[pair.first + i] = true; }
    for (auto i = std::size_t{0}; pair.follows && i < pair.second_length; ++i) {
      used[pair.second + i] = true;
    }
  }
  for (auto const d : documents_of(cache, settings, data_part::training)) {
    for (auto s = cache.document(d).begin; s < cache.document(d).end; ++s) {
      for (auto t = cache.sentence(s).begin; t < cache.sentence(s).end; ++t) { CHECK(used[t]); }
    }
  }
}

TEST_CASE("make_pairs refuses settings that make no sample") {
  auto const text = numbered{5};
  auto const make = [&](pair_settings const& settings) {
    return make_pairs(*text.cache, settings, data_part::training);
  };
  CHECK_NOTHROW(static_cast<void>(make({5, 0.1, 0.5, 1})));
  CHECK_THROWS_AS(static_cast<void>(make({4, 0.1, 0.5, 1})), input_error);
  CHECK_THROWS_AS(static_cast<void>(make({128, 1.5, 0.5, 1})), input_error);
  CHECK_THROWS_AS(static_cast<void>(make({128, 0.1, 1.0, 1})), input_error);
}

TEST_CASE("text_samples sets [CLS] and [SEP], never masks them, and fits the model's batch") {
  auto const text    = numbered{50};
  auto const pieces  = letters();
  auto const samples = text_samples{text.cache, pieces, {}, data_part::training};
  auto const pairs   = make_pairs(*text.cache, {}, data_part::training);
  auto config        = preset("mini");
  config.vocab_size  = pieces.size();
  auto numbers       = std::vector<std::uint32_t>(samples.size());
  for (auto i = std::uint32_t{0}; i < numbers.size(); ++i) { numbers[i] = i; }
  auto const data = make_batch(samples, numbers, 3);
  CHECK_NOTHROW(check(data, config));
  CHECK(data.samples == numbers);
  auto original = data.tokens;
  for (auto i = std::size_t{0}; i < data.predicted.size(); ++i) {
    original[static_cast<std::size_t>(data.predicted[i])] = data.labels[i];
  }
  for (auto i = std::uint32_t{0}; i < samples.size(); ++i) {
    auto const begin = data.starts[i];
    auto const size  = static_cast<std::size_t>(data.starts[i + 1] - begin);
    REQUIRE(size == samples.length(i));
    auto expected = ids{pieces.classify()};
    text.cache->copy({pairs[i].first, pairs[i].first + pairs[i].first_length}, expected);
    expected.push_back(pieces.separator());
    text.cache->copy({pairs[i].second, pairs[i].second + pairs[i].second_length}, expected);
    expected.push_back(pieces.separator());
    REQUIRE(ids(original.begin() + begin, original.begin() + data.starts[i + 1]) == expected);
    auto const second = begin + 2 + pairs[i].first_length;
    REQUIRE(data.segments[static_cast<std::size_t>(second - 1)] == 0);
    REQUIRE(data.segments[static_cast<std::size_t>(second)] == 1);
    REQUIRE(data.next[i] == (pairs[i].follows ? 0 : 1));
  }
  for (auto const row : data.predicted) { REQUIRE(original[static_cast<std::size_t>(row)] >= 5); }
}

TEST_CASE("text_samples masks a sample anew in every epoch, in whichever batch it is") {
  auto const text    = numbered{50};
  auto const samples = text_samples{text.cache, letters(), {}, data_part::training};
  auto const one     = [&](std::uint32_t sample, std::uint32_t epoch) {
    return make_batch(samples, std::vector{sample}, epoch);
  };
  auto const pair = make_batch(samples, std::vector<std::uint32_t>{8, 7}, 0);
  CHECK(ids(pair.tokens.begin() + pair.starts[1], pair.tokens.end()) == one(7, 0).tokens);
  CHECK(one(7, 0).predicted != one(7, 1).predicted);
}

TEST_CASE("text_samples counts the tokens that could be masked") {
  auto const text    = numbered{50};
  auto const samples = text_samples{text.cache, letters(), {}, data_part::held_out};
  auto const counts  = samples.count_tokens();
  auto expected      = std::size_t{0};
  for (auto i = std::uint32_t{0}; i < samples.size(); ++i) { expected += samples.length(i) - 3; }
  auto total = std::uint64_t{0};
  for (auto const count : counts) { total += count; }
  CHECK(total == expected);
  CHECK(counts[0] + counts[1] + counts[2] + counts[3] + counts[4] == 0);
  auto const training = text_samples{text.cache, letters(), {}, data_part::training};
  CHECK(training.fingerprint() != samples.fingerprint());
}

}  // namespace
