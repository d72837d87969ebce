# SPDX-License-Identifier: Apache-2.0
# Tests of the BERT example's text, data, optimizer, checkpoints and reports.
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_trainer.h)

gradlane_test(bert/files_test.cpp LINK gradlane_bert)
gradlane_test(bert/report_test.cpp LINK gradlane_bert_report)
gradlane_test(bert/sampling_test.cpp LINK gradlane_bert)

# ThreadSanitizer does not know libgomp's barriers.
if(OpenMP_CXX_FOUND AND NOT GRADLANE_SANITIZE STREQUAL "thread")
  gradlane_test(bert/checkpoint_test.cpp LINK gradlane_bert_training)
  gradlane_test(bert/optimizer_test.cpp LINK gradlane_bert_training OpenMP::OpenMP_CXX)
endif()

if(UTF8PROC_INCLUDE_DIR AND SENTENCEPIECE_INCLUDE_DIR)
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
