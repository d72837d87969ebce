# SPDX-License-Identifier: Apache-2.0
# Finds the libraries that come without a CMake package. Sets BERT_TEXT_FOUND and BERT_HDF5_FOUND.
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_trainer.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
# CMake's own module wants the C language, which nothing else here does.
find_path(HDF5_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
find_library(HDF5_LIBRARY NAMES hdf5_serial hdf5)
mark_as_advanced(
  UTF8PROC_INCLUDE_DIR
  UTF8PROC_LIBRARY
  SENTENCEPIECE_INCLUDE_DIR
  SENTENCEPIECE_LIBRARY
  SENTENCEPIECE_TRAIN_LIBRARY
  HDF5_INCLUDE_DIR
  HDF5_LIBRARY
)

set(BERT_TEXT_FOUND FALSE)
if(
  UTF8PROC_INCLUDE_DIR
  AND UTF8PROC_LIBRARY
  AND SENTENCEPIECE_INCLUDE_DIR
  AND SENTENCEPIECE_LIBRARY
  AND SENTENCEPIECE_TRAIN_LIBRARY
)
  set(BERT_TEXT_FOUND TRUE)
endif()
set(BERT_HDF5_FOUND FALSE)
if(HDF5_INCLUDE_DIR AND HDF5_LIBRARY)
  set(BERT_HDF5_FOUND TRUE)
endif()
