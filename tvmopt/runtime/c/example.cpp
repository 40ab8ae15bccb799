// Run a model from several threads: ./example_cpp folder
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tvmopt.h"

using Tensor = std::unique_ptr<void, decltype(&std::free)>;

static bool run(const tvmopt_model *model) {
  std::vector<Tensor> owned;
  std::vector<const void *> inputs;
  std::vector<void *> outputs;
  for (int i = 0; i < tvmopt_input_count(model); ++i) {
    std::size_t bytes = tvmopt_input(model, i)->bytes;
    owned.emplace_back(tvmopt_alloc(bytes), &std::free);
    inputs.push_back(std::memset(owned.back().get(), 0, bytes));
  }
  for (int i = 0; i < tvmopt_output_count(model); ++i) {
    owned.emplace_back(tvmopt_alloc(tvmopt_output(model, i)->bytes), &std::free);
    outputs.push_back(owned.back().get());
  }
  for (int call = 0; call < 100; ++call)
    if (tvmopt_run(model, inputs.data(), outputs.data())) return false;
  return true;
}

int main(int count, char **arguments) {
  std::unique_ptr<tvmopt_model, decltype(&tvmopt_free)> model(
      tvmopt_load(count > 1 ? arguments[1] : ".."), &tvmopt_free);
  if (!model) {
    std::fprintf(stderr, "%s\n", tvmopt_error_text());
    return 1;
  }
  bool good[8];
  std::vector<std::thread> threads;
  for (bool &one : good) threads.emplace_back([&] { one = run(model.get()); });
  for (std::thread &thread : threads) thread.join();
  int failed = 0;
  for (bool one : good) failed += !one;
  std::printf("8 threads, 100 calls each: %s\n", failed ? "failed" : "done");
  return failed != 0;
}
