// SPDX-License-Identifier: Apache-2.0
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/errors.hpp>
#include <bert/text/documents.hpp>
#include <bert/text/html.hpp>
#include <bert/text/sentences.hpp>
#include <bert/text/sources.hpp>

namespace {

using namespace bert;
namespace fs  = std::filesystem;
using strings = std::vector<std::string>;

[[nodiscard]] strings sentences_of(std::string_view text, std::size_t longest = 800) {
  auto result = strings{};
  split_sentences(text, result, longest);
  return result;
}

[[nodiscard]] std::vector<fs::path> found(std::vector<fs::path> const& inputs) {
  return find_text_files(inputs);
}

TEST_CASE("html_to_text makes a paragraph of each block and drops what is no text") {
  CHECK(html_to_text("<html><head><title>No</title></head><body><h1>A  <em>B</em></h1>"
                     "<p>one\ntwo<br/>three<ul><li>x</li><li>y<!-- no --></li></ul></p>") ==
        "A B\n\none two\n\nthree\n\nx\n\ny\n\n");
  CHECK(html_to_text("<script>if (a < b) { '<p>no</p>' }</script>yes<STYLE>p {}</STYLE>") ==
        "yes\n\n");
  CHECK(html_to_text("a<td>b<td>c") == "a\n\nb\n\nc\n\n");
  CHECK(html_to_text("w<b>or</b>d") == "word\n\n");
  CHECK(html_to_text("") == "");
}

TEST_CASE("html_to_text drops what serves to find one's way") {
  CHECK(html_to_text("<div class=\"navheader\"><div>Prev</div></div><p>text</p>"
                     "<div id='page-toc'><ul><li>1</li></ul></div><nav><a>x</a></nav>"
                     "<div class=\"note footer\">no</div><p>more</p><footer>no</footer>") ==
        "text\n\nmore\n\n");
  CHECK(html_to_text("<div class=\"protocol navy-not\">a</div>") == "");
  CHECK(html_to_text("<div class=\"protocol footnote\">a</div><p class=nav>b") == "a\n\nb\n\n");
  CHECK(html_to_text("<div class=toc><div><div>no</div></div><img src=x/></div>yes") == "yes\n\n");
}

TEST_CASE("html_to_text replaces entities and leaves what is none") {
  CHECK(html_to_text("a &lt;b&gt; &amp;lt; &#65;&#x42;&#xe9; &mdash;&nbsp;c") ==
        "a <b> &lt; ABé — c\n\n");
  CHECK(html_to_text("AT&T &unknown; &#xD800; &#0; x & y &") ==
        "AT&T &unknown; &#xD800; &#0; x & y &\n\n");
}

TEST_CASE("html_to_text makes what it can of broken pages") {
  CHECK(html_to_text("a < b and 3<4") == "a < b and 3<4\n\n");
  CHECK(html_to_text("text <p unclosed") == "text\n\n");
  CHECK(html_to_text("text<!-- unclosed") == "text\n\n");
  CHECK(html_to_text("text<script>unclosed") == "text\n\n");
  CHECK(html_to_text("text<div class=\"nav") == "text\n\n");
  CHECK(html_to_text("<p =\"x\" / class>ok</p =>") == "ok\n\n");
  CHECK(html_to_text("x<") == "x<\n\n");
}

TEST_CASE("split_sentences ends sentences at marks that something new follows") {
  CHECK(sentences_of("One. Two!  Three?\nFour") == strings{"One.", "Two!", "Three?", "Four"});
  CHECK(sentences_of("He said \"Go.\" (Then he left.) So.") ==
        strings{"He said \"Go.\"", "(Then he left.)", "So."});
  CHECK(sentences_of("Version 3.14 of v.2 is out.") == strings{"Version 3.14 of v.2 is out."});
  CHECK(sentences_of("Wait ... what? no. yes") == strings{"Wait ... what? no. yes"});
  CHECK(sentences_of("我们。你们？Ja.") == strings{"我们。", "你们？", "Ja."});
  CHECK(sentences_of(" \n ").empty());
  CHECK(sentences_of("").empty());
}

TEST_CASE("split_sentences knows abbreviations and initials") {
  CHECK(sentences_of("Dr. Smith and J. R. Doe (cf. Table 3, e.g. X etc. A) met.") ==
        strings{"Dr. Smith and J. R. Doe (cf. Table 3, e.g. X etc. A) met."});
  CHECK(sentences_of("See Fig. 3. Then Sec. 4.") == strings{"See Fig. 3.", "Then Sec. 4."});
}

TEST_CASE("split_sentences cuts what is too long at spaces, never inside a character") {
  CHECK(sentences_of("aaa bbb ccc dd", 7) == strings{"aaa bbb", "ccc dd"});
  CHECK(sentences_of("abcdefgh", 3) == strings{"abc", "def", "gh"});
  CHECK(sentences_of("ééé", 3) == strings{"é", "é", "é"});
}

TEST_CASE("find_text_files walks directories in the order of paths and takes a file once") {
  auto const folder = test::temporary_directory{};
  auto const b      = folder.write("b.txt", "b");
  auto const a      = folder.write("sub/a.HTML", "a");
  auto const c      = folder.write("a/c.htm", "c");
  auto const other  = folder.write("notes.md", "d");
  CHECK(found({folder.path()}) == std::vector{c, b, a});
  CHECK(found({b, folder.path(), other}) == std::vector{b, c, a, other});
}

TEST_CASE("find_text_files names the input that is of no use") {
  auto const folder = test::temporary_directory{};
  CHECK_THROWS_WITH_AS(static_cast<void>(found({folder.path() / "none"})),
                       doctest::Contains("/none: there is no such file or directory"),
                       input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(found({folder.path()})),
                       doctest::Contains("there is no .txt .html .htm file in"),
                       input_error);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(found({})), doctest::Contains("name a file or directory"), input_error);
}

TEST_CASE("split_sources cuts long plain text at empty lines, or lines, and loses no byte") {
  auto const folder = test::temporary_directory{};
  auto const repeat = [](std::string_view text) {
    auto result = std::string{};
    for (auto i = 0; i < 20; ++i) { result += text; }
    return result;
  };
  auto const parts_of = [&](std::string const& name, std::string const& text) {
    auto const files = std::vector{folder.write(name, text)};
    auto ends        = std::vector<std::uint64_t>{0};
    for (auto const& source : split_sources(files, 40)) {
      CHECK(source.path == files.front());
      CHECK(source.begin == ends.back());
      CHECK(source.html == (name == "c.html"));
      ends.push_back(source.end);
    }
    return ends;
  };
  CHECK(parts_of("a.txt", repeat("0123\n\n")) == std::vector<std::uint64_t>{0, 42, 84, 120});
  CHECK(parts_of("b.txt", repeat("01\n45\n")) == std::vector<std::uint64_t>{0, 42, 84, 120});
  CHECK(parts_of("d.txt", repeat("01\r\n\r\n")) == std::vector<std::uint64_t>{0, 48, 96, 120});
  CHECK(parts_of("e.txt", repeat("012 456")) == std::vector<std::uint64_t>{0, 46, 88, 130, 140});
  CHECK(parts_of("c.html", repeat("0123\n\n")) == std::vector<std::uint64_t>{0, 120});
  CHECK(parts_of("f.txt", "") == std::vector<std::uint64_t>{0});
}

TEST_CASE("fingerprint of files differs when a file is added or changes its size") {
  auto const folder = test::temporary_directory{};
  auto const a      = folder.write("a.txt", "a");
  auto const b      = folder.write("b.txt", "b");
  auto const of     = [](std::vector<fs::path> const& files) { return fingerprint(files); };
  auto const before = of({a, b});
  CHECK(of({a, b}) == before);
  CHECK(of({a}) != before);
  CHECK(of({b, a}) != before);
  folder.write("b.txt", "bb");
  CHECK(of({a, b}) != before);
}

TEST_CASE("read_documents makes one document of a file, or one of each block of lines") {
  auto const folder = test::temporary_directory{};
  auto const text   = std::string{"\xEF\xBB\xBFOne. Two\nlines.\r\n \r\nThree.\n\n\n\nFour."};
  auto const source = text_source{folder.write("a.txt", text), 0, text.size(), false};
  auto const whole  = read_documents(source, document_rule::file);
  REQUIRE(whole.size() == 1);
  CHECK(whole[0].sentences == strings{"One.", "Two lines.", "Three.", "Four."});
  auto const blocks = read_documents(source, document_rule::blank_line);
  REQUIRE(blocks.size() == 3);
  CHECK(blocks[0].sentences == strings{"One.", "Two lines."});
  CHECK(blocks[2].sentences == strings{"Four."});
}

TEST_CASE("read_documents takes HTML as one document, and an empty file as none") {
  auto const folder = test::temporary_directory{};
  auto const html   = std::string{"<p>One. Two.</p><p>Three</p>"};
  auto const page   = text_source{folder.write("a.html", html), 0, html.size(), true};
  auto const result = read_documents(page, document_rule::blank_line);
  REQUIRE(result.size() == 1);
  CHECK(result[0].sentences == strings{"One.", "Two.", "Three"});
  auto const empty = text_source{folder.write("b.txt", " \n"), 0, 2, false};
  CHECK(read_documents(empty, document_rule::file).empty());
}

TEST_CASE("read_documents refuses what is no UTF-8 text") {
  auto const folder = test::temporary_directory{};
  auto const utf16  = std::string{"a\0b\0", 4};
  auto const source = text_source{folder.write("a.txt", utf16), 0, 4, false};
  CHECK_THROWS_WITH_AS(static_cast<void>(read_documents(source, document_rule::file)),
                       doctest::Contains("a.txt: holds a zero byte"),
                       input_error);
}

}  // namespace
