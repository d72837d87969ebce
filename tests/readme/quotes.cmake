# SPDX-License-Identifier: Apache-2.0
# The programs in README.md are files, word for word, and print what it says they print:
#
#   <!-- examples/NAME.cpp -->             stands before a block that is that file
#   <!-- output of examples/NAME.cpp -->   stands before a block that is what it prints
#
# Every block of C++ must be such a quotation.
cmake_minimum_required(VERSION 3.25)

file(READ ${source}/README.md readme)

# quoted(<variable> <marker>): the block that follows <!-- marker -->.
function(quoted variable marker)
  set(before "<!-- ${marker} -->\n```")
  string(FIND "${readme}" "${before}" start)
  if(start EQUAL -1)
    message(FATAL_ERROR "README.md has no block right after <!-- ${marker} -->")
  endif()
  string(LENGTH "${before}" length)
  math(EXPR start "${start} + ${length}")
  string(SUBSTRING "${readme}" ${start} -1 rest)
  string(FIND "${rest}" "\n" start)  # the language, cpp or text, stands before it
  math(EXPR start "${start} + 1")
  string(SUBSTRING "${rest}" ${start} -1 rest)
  string(FIND "${rest}" "```" end)
  string(SUBSTRING "${rest}" 0 ${end} block)
  set(${variable} "${block}" PARENT_SCOPE)
endfunction()

function(expect_same what block truth)
  if(NOT "${block}" STREQUAL "${truth}")
    message(FATAL_ERROR "README.md differs from ${what}. It has:\n${block}\nIt should have:\n${truth}")
  endif()
endfunction()

string(REGEX MATCHALL "<!-- examples/[a-z_]+[.]cpp -->" files "${readme}")
string(REGEX MATCHALL "<!-- output of examples/[a-z_]+[.]cpp -->" outputs "${readme}")
string(REGEX MATCHALL "```cpp" blocks "${readme}")
list(LENGTH files file_count)
list(LENGTH blocks block_count)
if(NOT file_count EQUAL block_count OR file_count EQUAL 0 OR outputs STREQUAL "")
  message(FATAL_ERROR "README.md has ${block_count} blocks of C++, ${file_count} of them named as a file")
endif()

foreach(marker IN LISTS files)
  string(REGEX REPLACE "<!-- (.*) -->" "\\1" file "${marker}")
  quoted(block "${file}")
  file(READ ${source}/${file} truth)
  expect_same("${file}" "${block}" "${truth}")
endforeach()
foreach(marker IN LISTS outputs)
  string(REGEX REPLACE "<!-- output of examples/(.*)[.]cpp -->" "\\1" name "${marker}")
  quoted(block "output of examples/${name}.cpp")
  execute_process(
    COMMAND ${programs}/${name} OUTPUT_VARIABLE truth TIMEOUT 60 COMMAND_ERROR_IS_FATAL ANY
  )
  expect_same("what ${name} prints" "${block}" "${truth}")
endforeach()
