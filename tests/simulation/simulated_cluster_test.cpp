#include <doctest/doctest.h>

#include "apps/cluster/simulated_cluster.hpp"
#include "tests/small_model.hpp"

#include <spdlog/spdlog.h>

namespace troupe {
namespace {

std::shared_ptr<simulated_model> t1_model() {
  static const std::shared_ptr<simulated_model> model = [] {
    testing::temporary_directory directory;
    testing::write_t1_model(directory.path());
    return *simulated_model::load(directory.path(), kernels::compute::make(kernels::profile::f32));
  }();
  return model;
}

simulation_options options_for(uint32_t nodes) {
  simulation_options options;
  options.settings.nodes = nodes;
  options.settings.kv_blocks = 64;
  options.settings.rows_max = 64;
  options.settings.chunk = 16;
  return options;
}

generation_request t1_request() {
  generation_request request;
  request.prompt_ids = {3, 17, 42, 5, 60, 8, 29, 11};
  request.max_tokens = 8;
  request.temperature = 0;
  return request;
}

}  // namespace

TEST_CASE("a simulated cluster continues T1 as the published code does") {
  spdlog::set_level(spdlog::level::warn);
  for (const uint32_t nodes : {1U, 2U, 4U}) {
    CAPTURE(nodes);
    simulated_cluster cluster(t1_model(), options_for(nodes));
    REQUIRE(cluster.start());
    const auto& stream = cluster.submit(t1_request());
    REQUIRE(cluster.run_until([&] { return stream.ended; }, std::chrono::seconds(10)));
    CHECK(!stream.failure);
    CHECK(stream.tokens == std::vector<int32_t>{36, 25, 59, 42, 51, 59, 55, 63});
  }
}

}  // namespace troupe
