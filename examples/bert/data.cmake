# SPDX-License-Identifier: Apache-2.0
# Text, data, optimizer, checkpoints and reports of the BERT example.
#
# Text needs utf8proc and SentencePiece, HDF5 is optional (Debian: libutf8proc-dev,
# libsentencepiece-dev, libhdf5-dev).
include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)

if(BERT_TEXT_FOUND)
  add_library(
    gradlane_bert_text STATIC
    data/make_cache.cpp
    data/sentence_pairs.cpp
    data/token_cache.cpp
    text/byte_pairs.cpp
    text/documents.cpp
    text/html.cpp
    text/sentences.cpp
    text/sources.cpp
    text/train_vocabulary.cpp
    text/vocabulary.cpp
    text/wordpiece.cpp
    text/words.cpp
  )
  set_property(
    SOURCE text/byte_pairs.cpp
    APPEND
    PROPERTY COMPILE_OPTIONS $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-U_GLIBCXX_DEBUG>
  )
  target_include_directories(
    gradlane_bert_text SYSTEM
    PRIVATE ${UTF8PROC_INCLUDE_DIR} ${SENTENCEPIECE_INCLUDE_DIR}
  )
  target_link_libraries(
    gradlane_bert_text
    PUBLIC gradlane_bert
    PRIVATE ${UTF8PROC_LIBRARY} ${SENTENCEPIECE_TRAIN_LIBRARY} ${SENTENCEPIECE_LIBRARY}
  )
else()
  message(STATUS "example bert: reads no text, that needs utf8proc and SentencePiece")
endif()

add_library(gradlane_bert_report STATIC report/plot.cpp)
target_link_libraries(gradlane_bert_report PUBLIC gradlane_bert)

if(OpenMP_CXX_FOUND)
  add_library(gradlane_bert_training STATIC checkpoint.cpp delta_optimizer.cpp optimizer.cpp)
  target_link_libraries(gradlane_bert_training PUBLIC gradlane_bert PRIVATE OpenMP::OpenMP_CXX)
  target_compile_options(
    gradlane_bert_training
    PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-O3
      -fno-math-errno
      -fno-trapping-math>
      $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>,$<BOOL:${GRADLANE_BERT_NATIVE}>>:-march=native
      -mprefer-vector-width=512>
  )
endif()

if(BERT_HDF5_FOUND)
  add_library(gradlane_bert_hdf5 STATIC data/hdf5_samples.cpp)
  target_include_directories(gradlane_bert_hdf5 SYSTEM PRIVATE ${HDF5_INCLUDE_DIR})
  target_link_libraries(gradlane_bert_hdf5 PUBLIC gradlane_bert PRIVATE ${HDF5_LIBRARY})
else()
  message(STATUS "example bert: reads no HDF5, that library was not found")
endif()

foreach(library gradlane_bert_hdf5 gradlane_bert_report gradlane_bert_text gradlane_bert_training)
  if(TARGET ${library} AND NOT PROJECT_IS_TOP_LEVEL AND COMMAND gradlane_warnings)
    gradlane_warnings(${library})
  endif()
endforeach()
