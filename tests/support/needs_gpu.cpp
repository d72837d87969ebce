// SPDX-License-Identifier: Apache-2.0
// Linked into tests that need a GPU: where there is none they end with status 77, "skipped", before
// they run a case. To list the cases takes no GPU.
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstdio>   // for fprintf
#include <cstdlib>  // for _Exit

namespace {

struct gpu_listener : doctest::IReporter {
  explicit gpu_listener(doctest::ContextOptions const&) {}
  void report_query(doctest::QueryData const&) override {}
  void test_run_start() override {
    constexpr auto skipped = 77;
    auto devices           = 0;
    auto const status      = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      std::fprintf(stderr, "skipped: no GPU (%s)\n", cudaGetErrorString(status));
      std::_Exit(skipped);
    }
  }
  void test_run_end(doctest::TestRunStats const&) override {}
  void test_case_start(doctest::TestCaseData const&) override {}
  void test_case_reenter(doctest::TestCaseData const&) override {}
  void test_case_end(doctest::CurrentTestCaseStats const&) override {}
  void test_case_exception(doctest::TestCaseException const&) override {}
  void subcase_start(doctest::SubcaseSignature const&) override {}
  void subcase_end() override {}
  void log_assert(doctest::AssertData const&) override {}
  void log_message(doctest::MessageData const&) override {}
  void test_case_skipped(doctest::TestCaseData const&) override {}
};

}  // namespace

REGISTER_LISTENER("gpu", 1, gpu_listener);
