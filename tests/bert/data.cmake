# SPDX-License-Identifier: Apache-2.0
# Tests of the BERT example's text, data, optimizer, checkpoints and reports.
include(${PROJECT_SOURCE_DIR}/examples/bert/libraries.cmake)

gradlane_test(bert/files_test.cpp LINK gradlane_bert)
gradlane_test(bert/report_test.cpp LINK gradlane_bert_report)
gradlane_test(bert/sampling_test.cpp LINK gradlane_bert)
gradlane_test(bert/balanced_batches_test.cpp LINK gradlane_bert)

# ThreadSanitizer does not know libgomp's barriers.
if(OpenMP_CXX_FOUND AND NOT GRADLANE_SANITIZE STREQUAL "thread")
  gradlane_test(bert/checkpoint_test.cpp LINK gradlane_bert_training)
  gradlane_test(bert/optimizer_test.cpp LINK gradlane_bert_training OpenMP::OpenMP_CXX)
endif()

if(BERT_TEXT_FOUND)
  gradlane_test(bert/text_test.cpp LINK gradlane_bert_text)
  gradlane_test(bert/text_samples_test.cpp LINK gradlane_bert_text)
  gradlane_test(bert/wordpiece_test.cpp LINK gradlane_bert_text)
  target_compile_definitions(
    bert_wordpiece_test
    PRIVATE BERT_GOLDEN="${CMAKE_CURRENT_LIST_DIR}/golden"
  )
else()
  message(STATUS "tests of the BERT example's text: skipped, they need utf8proc and SentencePiece")
endif()

if(BERT_HDF5_FOUND)
  gradlane_test(bert/hdf5_samples_test.cpp LINK gradlane_bert_hdf5 ${HDF5_LIBRARY})
  target_include_directories(bert_hdf5_samples_test SYSTEM PRIVATE ${HDF5_INCLUDE_DIR})
endif()
