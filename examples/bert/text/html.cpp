// SPDX-License-Identifier: Apache-2.0
#include "html.hpp"

#include <utf8proc.h>  // for utf8proc_encode_char

#include <algorithm>  // for is_sorted, binary_search, min
#include <array>      // for array
#include <charconv>   // for from_chars
#include <cstddef>    // for size_t
#include <cstdint>    // for uint32_t
#include <utility>    // for pair

namespace bert {

namespace {

using namespace std::string_view_literals;

constexpr auto dropped_elements = std::array{
    "footer"sv, "head"sv, "nav"sv, "noscript"sv, "script"sv, "style"sv, "svg"sv, "template"sv};
constexpr auto raw_elements = std::array{"script"sv, "style"sv};  // hold no tags
constexpr auto block_elements =
    std::array{"address"sv, "article"sv, "aside"sv,   "blockquote"sv, "body"sv,    "br"sv,
               "caption"sv, "dd"sv,      "details"sv, "div"sv,        "dl"sv,      "dt"sv,
               "figure"sv,  "form"sv,    "h1"sv,      "h2"sv,         "h3"sv,      "h4"sv,
               "h5"sv,      "h6"sv,      "header"sv,  "hr"sv,         "li"sv,      "main"sv,
               "ol"sv,      "option"sv,  "p"sv,       "pre"sv,        "section"sv, "summary"sv,
               "table"sv,   "td"sv,      "th"sv,      "title"sv,      "tr"sv,      "ul"sv};
constexpr auto containers =
    std::array{"aside"sv, "div"sv, "form"sv, "header"sv, "ol"sv, "section"sv, "table"sv, "ul"sv};
constexpr auto navigation_words = std::array{
    "breadcrumb"sv, "breadcrumbs"sv, "footer"sv, "menu"sv, "search"sv, "sidebar"sv, "toc"sv};
static_assert(std::is_sorted(block_elements.begin(), block_elements.end()));
static_assert(std::is_sorted(navigation_words.begin(), navigation_words.end()));

constexpr auto entities = std::array<std::pair<std::string_view, std::string_view>, 34>{{
    {"amp", "&"},   {"lt", "<"},     {"gt", ">"},     {"quot", "\""},  {"apos", "'"},
    {"nbsp", " "},  {"ensp", " "},   {"emsp", " "},   {"thinsp", " "}, {"shy", ""},
    {"copy", "©"},  {"reg", "®"},    {"trade", "™"},  {"mdash", "—"},  {"ndash", "–"},
    {"lsquo", "‘"}, {"rsquo", "’"},  {"ldquo", "“"},  {"rdquo", "”"},  {"laquo", "«"},
    {"raquo", "»"}, {"hellip", "…"}, {"bull", "•"},   {"middot", "·"}, {"sect", "§"},
    {"deg", "°"},   {"plusmn", "±"}, {"times", "×"},  {"minus", "−"},  {"le", "≤"},
    {"ge", "≥"},    {"rarr", "→"},   {"eacute", "é"}, {"uuml", "ü"},
}};

template <class Words>
[[nodiscard]] bool is_one_of(Words const& sorted, std::string_view word) {
  return std::binary_search(sorted.begin(), sorted.end(), word);
}

[[nodiscard]] constexpr bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

[[nodiscard]] constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

[[nodiscard]] std::string lower(std::string_view text) {
  auto result = std::string{text};
  for (auto& c : result) { c = lower(c); }
  return result;
}

[[nodiscard]] bool names_navigation(std::string_view value) {
  auto const text = lower(value);
  for (auto begin = std::size_t{0}; begin < text.size();) {
    auto const end  = std::min(text.find_first_of(" \t\r\n-_", begin), text.size());
    auto const word = std::string_view{text}.substr(begin, end - begin);
    if (word.starts_with("nav") || is_one_of(navigation_words, word)) { return true; }
    begin = end + 1;
  }
  return false;
}

struct tag {
  std::string name;  // lower case; empty for comments and the like
  bool closing    = false;
  bool empty      = false;  // <br/>
  bool navigation = false;  // its class, id or role says so
};

/// Walks over the page once; position_ is always behind what has been dealt with.
class page {
 public:
  explicit page(std::string_view html) : html_{html} {}

  [[nodiscard]] std::string text() {
    while (position_ < html_.size()) {
      if (html_[position_] == '<' && begins_markup()) {
        markup();
      } else if (html_[position_] == '&') {
        entity();
      } else {
        put(html_.substr(position_++, 1));
      }
    }
    end_paragraph();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool begins_markup() const {
    if (position_ + 1 >= html_.size()) { return false; }
    auto const next = lower(html_[position_ + 1]);
    return next == '/' || next == '!' || next == '?' || (next >= 'a' && next <= 'z');
  }

  void markup() {
    if (html_.substr(position_).starts_with("<!--")) {
      skip_past("-->");
      return;
    }
    auto const t = read_tag();
    if (is_one_of(block_elements, t.name)) { end_paragraph(); }
    if (t.closing || t.empty || t.name.empty()) { return; }
    if (is_one_of(raw_elements, t.name)) {
      skip_to("</" + t.name);
    } else if (is_one_of(dropped_elements, t.name) ||
               (t.navigation && is_one_of(containers, t.name))) {
      skip_element(t.name);
    }
  }

  void skip_past(std::string_view mark) {
    auto const found = html_.find(mark, position_);
    position_        = found == std::string_view::npos ? html_.size() : found + mark.size();
  }

  void skip_to(std::string const& mark) {
    for (; position_ < html_.size(); ++position_) {
      auto const here = html_.substr(position_, mark.size());
      if (here.front() == '<' && lower(here) == mark) { return; }
    }
  }

  /// Behind the end of the element whose opening tag has just been read.
  void skip_element(std::string_view name) {
    for (auto depth = std::size_t{1}; depth > 0 && position_ < html_.size();) {
      position_ = std::min(html_.find('<', position_), html_.size());
      if (html_.substr(position_).starts_with("<!--")) {
        skip_past("-->");
      } else if (begins_markup()) {
        auto const t = read_tag();
        if (is_one_of(raw_elements, t.name) && !t.closing && !t.empty) { skip_to("</" + t.name); }
        if (t.name == name && t.closing) { --depth; }
        if (t.name == name && !t.closing && !t.empty) { ++depth; }
      } else if (position_ < html_.size()) {
        ++position_;
      }
    }
    end_paragraph();
  }

  [[nodiscard]] tag read_tag() {
    auto result = tag{};
    ++position_;  // <
    if (at('/')) {
      result.closing = true;
      ++position_;
    }
    auto const begin = position_;
    while (position_ < html_.size() && !is_space(html_[position_]) && !at('>') && !at('/')) {
      ++position_;
    }
    result.name = lower(html_.substr(begin, position_ - begin));
    while (position_ < html_.size() && !at('>')) {
      result.empty = at('/');
      if (is_space(html_[position_]) || at('/')) {
        ++position_;
      } else {
        attribute(result);
      }
    }
    ++position_;
    if (result.name.starts_with('!') || result.name.starts_with('?')) { result.name.clear(); }
    return result;
  }

  void attribute(tag& result) {
    auto const begin = position_;
    while (position_ < html_.size() && !is_space(html_[position_]) && !at('=') && !at('>') &&
           !at('/')) {
      ++position_;
    }
    auto const name = html_.substr(begin, position_ - begin);
    if (!at('=')) {
      if (position_ == begin) { ++position_; }
      return;
    }
    ++position_;
    auto const value = attribute_value();
    if (name == "class" || name == "id" || name == "role") {
      result.navigation = result.navigation || names_navigation(value);
    }
  }

  [[nodiscard]] std::string_view attribute_value() {
    if (at('"') || at('\'')) {
      auto const begin = position_ + 1;
      auto const end   = std::min(html_.find(html_[position_], begin), html_.size());
      position_        = std::min(end + 1, html_.size());
      return html_.substr(begin, end - begin);
    }
    auto const begin = position_;
    while (position_ < html_.size() && !is_space(html_[position_]) && !at('>')) { ++position_; }
    return html_.substr(begin, position_ - begin);
  }

  void entity() {
    auto const end  = html_.substr(0, position_ + 12).find(';', position_);
    auto const name = html_.substr(position_ + 1, end - position_ - 1);
    if (end != std::string_view::npos) {
      auto replacement = std::string{};
      if (decode(name, replacement)) {
        position_ = end + 1;
        put(replacement);
        return;
      }
    }
    ++position_;
    put("&");
  }

  [[nodiscard]] static bool decode(std::string_view name, std::string& out) {
    if (name.starts_with('#')) {
      auto const hex    = name.size() > 1 && lower(name[1]) == 'x';
      auto const digits = name.substr(hex ? 2 : 1);
      auto code         = std::uint32_t{0};
      auto const result =
          std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
      if (result.ec != std::errc{} || result.ptr != digits.data() + digits.size()) { return false; }
      if (code == 0xA0) { code = ' '; }
      if (code == 0 || utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(code)) == 0) {
        return false;
      }
      auto bytes      = std::array<utf8proc_uint8_t, 4>{};
      auto const size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
      out.assign(bytes.begin(), bytes.begin() + size);
      return true;
    }
    for (auto const& [known, text] : entities) {
      if (known == name) {
        out = text;
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] bool at(char c) const { return position_ < html_.size() && html_[position_] == c; }

  void put(std::string_view text) {
    if (text.size() == 1 && is_space(text.front())) {
      space_ = true;
      return;
    }
    if (space_ && in_paragraph_) { out_ += ' '; }
    space_        = false;
    in_paragraph_ = true;
    out_ += text;
  }

  void end_paragraph() {
    if (in_paragraph_) { out_ += "\n\n"; }
    in_paragraph_ = false;
    space_        = false;
  }

  std::string_view html_;
  std::string out_;
  std::size_t position_ = 0;
  bool space_           = false;  // white space waits for more text
  bool in_paragraph_    = false;
};

}  // namespace

std::string html_to_text(std::string_view html) { return page{html}.text(); }

}  // namespace bert
