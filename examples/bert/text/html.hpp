// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>       // for string
#include <string_view>  // for string_view

namespace bert {

/// The text of an HTML page: paragraphs with an empty line after each, in UTF-8.
///
/// Every block element (paragraph, heading, list item, table cell, preformatted text …) is a
/// paragraph of its own; tags, comments, head, scripts and styles are dropped and entities
/// replaced. What serves to find one's way is dropped as well: <nav> and <footer>, and every
/// container (div, ul, table …) whose class, id or role has a word that begins with "nav" or is
/// toc, menu, sidebar, breadcrumbs, footer or search.
/// Broken HTML gives what can be made of it, never an error.
[[nodiscard]] std::string html_to_text(std::string_view html);

}  // namespace bert
