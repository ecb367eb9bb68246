// The bundled model against what its training script computed with PyTorch from the exported files.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

TEST_CASE("the bundled model's greedy continuations equal the reference implementation's, on four nodes") {
  spdlog::set_level(spdlog::level::err);
  const std::string directory = TROUPE_SOURCE_DIR "/examples/tiny-moe";
  std::ifstream file(directory + "/golden.json");
  const auto golden = nlohmann::json::parse(file);
  const auto model = simulated_model::load(directory, kernels::compute::make(kernels::profile::f32));
  REQUIRE(model);
  auto options = t1_options(4);
  options.settings.rows_max = 128;
  simulated_cluster cluster(*model, options);
  REQUIRE(cluster.start());
  for (const auto& prompt : golden["prompts"]) {
    generation_request request;
    request.prompt_ids = prompt["ids"].get<std::vector<int32_t>>();
    request.max_tokens = static_cast<uint32_t>(prompt["greedy_ids"].size());
    request.temperature = 0;
    request.ignore_eos = true;
    cluster.submit(std::move(request));
  }
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, std::chrono::seconds(60)));
  for (size_t i = 0; i < golden["prompts"].size(); ++i) {
    CAPTURE(golden["prompts"][i]["name"].get<std::string>());
    CHECK(cluster.streams()[i]->tokens == golden["prompts"][i]["greedy_ids"].get<std::vector<int32_t>>());
  }
}

}  // namespace troupe::testing
