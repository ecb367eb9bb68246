#include "runtime/placement/report.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/simple_policies.hpp"
#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

const place_subject subject{"a load", "a topology", 2, 32, 40, 4, 3, "even"};

std::vector<evaluation> two_policies() {
  const auto load = testing::made_load("drifting:layers=2,experts=32,windows=3,rows_per_token=4");
  const auto topology = even_topology(2, 2, 10);
  const placement_policy failing = [](const placement_input&) -> result<placement_proposal> {
    return error{errc::unavailable, "it said \"no\", twice"};
  };
  return {*evaluate("eplb", place_eplb, load, topology, {}), *evaluate("mine,too", failing, load, topology, {})};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("the table is aligned, and says below it which plans were refused and why") {
  const auto text = place_table(subject, two_policies());
  const auto lines = lines_of(text);
  const auto header =
      std::find_if(lines.begin(), lines.end(), [](const auto& line) { return line.rfind("policy", 0) == 0; });
  REQUIRE(lines.end() - header > 2);
  CHECK(header[0].size() == header[1].size());
  CHECK(header[1].size() == header[2].size());
  CHECK(
      text.find("mine,too: 2 of 2 plans were refused, the one before stayed in force; first: it said \"no\", twice") !=
      std::string::npos);
}

TEST_CASE("the JSON has the mean and every plan of every policy") {
  const auto document = nlohmann::json::parse(place_json(subject, two_policies()));
  CHECK(document["slots"] == 40);
  REQUIRE(document["policies"].size() == 2);
  const auto& eplb = document["policies"][0];
  REQUIRE(eplb["plans"].size() == 2);
  CHECK(eplb["mean"]["balance_mean"].get<double>() ==
        doctest::Approx(
            (eplb["plans"][0]["balance_mean"].get<double>() + eplb["plans"][1]["balance_mean"].get<double>()) / 2));
  CHECK_FALSE(eplb["plans"][0].contains("failure"));
  CHECK(document["policies"][1]["plans"][1]["failure"] == "it said \"no\", twice");
  CHECK(document["policies"][1]["mean"]["failures"] == 2);
}

TEST_CASE("the CSV has a line for each plan, with texts quoted") {
  const auto lines = lines_of(place_csv(two_policies()));
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].rfind("policy,plan,balance_mean,", 0) == 0);
  CHECK(lines[1].rfind("eplb,0,0.", 0) == 0);
  CHECK(lines[4].rfind("\"mine,too\",1,", 0) == 0);
  CHECK(lines[4].find("\"it said \"\"no\"\", twice\"") != std::string::npos);
}

}  // namespace troupe
