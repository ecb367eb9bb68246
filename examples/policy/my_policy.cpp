// A placement policy for `troupe place` as a program: reads one line of JSON, writes one (docs/policies.md).
//
//   g++ -std=c++20 -O2 examples/policy/my_policy.cpp -o my_policy       # needs nlohmann-json3-dev
//   troupe place --policy eplb --policy program:./my_policy
//
// It deals each layer's experts, heaviest first, to the devices in turn and back again: a snake.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

json place_layer(const std::vector<double>& rows, std::vector<int> free) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] > rows[b]; });
  json placed = json::array();
  for (size_t expert = 0; expert < rows.size(); ++expert) placed.push_back(json::array());
  const size_t devices = free.size();
  size_t at = 0;
  for (const size_t expert : order) {
    // Positions 0, 1, ..., devices - 1, devices - 1, ..., 1, 0, 0, 1, ...; a full device is passed over.
    for (size_t tries = 0; tries < 2 * devices; ++tries) {
      const size_t position = at++ % (2 * devices);
      const size_t device = position < devices ? position : 2 * devices - 1 - position;
      if (free[device] == 0) continue;
      --free[device];
      placed[expert].push_back(device);
      break;
    }
  }
  return placed;
}

}  // namespace

int main() {
  std::string line;
  std::getline(std::cin, line);
  const auto question = json::parse(line);
  std::vector<int> slots;
  for (const auto& device : question["topology"]["devices"])
    slots.push_back(device["live"].get<bool>() ? device["slots"].get<int>() : 0);
  json map = json::array();
  for (const auto& rows : question["windows"].back()["rows"]) map.push_back(place_layer(rows, slots));
  std::cout << json{{"map", map}, {"reason", "a snake over the devices, heaviest first"}}.dump() << "\n";
}
