// SPDX-License-Identifier: Apache-2.0
// bert_parity FOLDER: our side of parity.py.
#include "parity.hpp"

#include <exception>  // for exception
#include <iostream>   // for cerr

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bert_parity FOLDER (parity.py makes the folder and calls us)\n";
    return 2;
  }
  try {
    bert::run_parity(argv[1]);
  } catch (std::exception const& problem) {
    std::cerr << "bert_parity: " << problem.what() << '\n';
    return 1;
  }
}
