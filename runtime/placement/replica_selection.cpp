#include "runtime/placement/replica_selection.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/placement/random.hpp"

namespace troupe {

std::optional<replica_selection> replica_selection_from_name(std::string_view name) {
  if (name == "first") return replica_selection::first;
  if (name == "even") return replica_selection::even;
  if (name == "nearest") return replica_selection::nearest;
  if (name == "weighted") return replica_selection::weighted;
  return std::nullopt;
}

std::string_view name(replica_selection selection) {
  switch (selection) {
    case replica_selection::first: return "first";
    case replica_selection::even: return "even";
    case replica_selection::nearest: return "nearest";
    case replica_selection::weighted: return "weighted";
  }
  return "unknown";
}

namespace {

// How near a replica is: 0 the same device, 1 the same node, 2 another node.
int distance(const placement_topology& topology, uint16_t source, uint16_t device) {
  if (source == device) return 0;
  return topology.devices[source].node == topology.devices[device].node ? 1 : 2;
}

}  // namespace

size_t select_replica(replica_selection selection, std::span<const uint16_t> replicas, std::span<const float> shares,
                      const placement_topology& topology, uint16_t source, uint64_t key) {
  if (selection == replica_selection::first) {
    const auto own = std::find(replicas.begin(), replicas.end(), source);
    return own == replicas.end() ? 0 : static_cast<size_t>(own - replicas.begin());
  }
  seeded_random draw(key);
  if (selection == replica_selection::weighted && shares.size() == replicas.size()) {
    double point = draw.uniform();
    for (size_t i = 0; i + 1 < replicas.size(); ++i) {
      point -= double{shares[i]};
      if (point < 0) return i;
    }
    return replicas.size() - 1;
  }
  if (selection != replica_selection::nearest) return draw.below(static_cast<uint32_t>(replicas.size()));
  int nearest = 3;
  uint32_t count = 0;
  for (const uint16_t device : replicas) {
    const int far = distance(topology, source, device);
    if (far < nearest) count = 0;
    nearest = std::min(nearest, far);
    count += far == nearest ? 1 : 0;
  }
  uint32_t chosen = draw.below(count);
  for (size_t i = 0; i < replicas.size(); ++i)
    if (distance(topology, source, replicas[i]) == nearest && chosen-- == 0) return i;
  return 0;
}

std::vector<float> level_shares(const expert_map& map, std::span<const double> rows, size_t devices, int rounds) {
  std::vector<double> shares(map.devices.size());
  std::vector<double> load(devices);
  std::vector<uint32_t> order;
  for (uint32_t layer = 0; layer < map.layers; ++layer) {
    std::fill(load.begin(), load.end(), 0.0);
    const auto range = [&](uint32_t expert) {
      const size_t entry = size_t{layer} * map.experts + expert;
      return std::pair{map.offsets[entry], map.offsets[entry + 1]};
    };
    for (uint32_t expert = 0; expert < map.experts; ++expert) {
      const auto [from, to] = range(expert);
      for (uint32_t i = from; i < to; ++i) {
        shares[i] = 1.0 / (to - from);
        load[map.devices[i]] += rows[size_t{layer} * map.experts + expert] * shares[i];
      }
    }
    for (int round = 0; round < rounds; ++round)
      for (uint32_t expert = 0; expert < map.experts; ++expert) {
        const double own = rows[size_t{layer} * map.experts + expert];
        const auto [from, to] = range(expert);
        if (to - from < 2 || own <= 0) continue;
        for (uint32_t i = from; i < to; ++i) load[map.devices[i]] -= own * shares[i];
        order.resize(to - from);
        std::iota(order.begin(), order.end(), from);
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
          return load[map.devices[a]] != load[map.devices[b]] ? load[map.devices[a]] < load[map.devices[b]] : a < b;
        });
        // Water over the devices that hold the expert: a common level over the lightest of them.
        double level = 0;
        double below = 0;
        for (size_t count = 1; count <= order.size(); ++count) {
          below += load[map.devices[order[count - 1]]];
          level = (below + own) / static_cast<double>(count);
          if (count == order.size() || level <= load[map.devices[order[count]]]) break;
        }
        for (const uint32_t i : order) {
          const double taken = std::max(0.0, level - load[map.devices[i]]);
          shares[i] = taken / own;
          load[map.devices[i]] += taken;
        }
      }
  }
  return {shares.begin(), shares.end()};
}

std::vector<uint16_t> source_devices(uint32_t sources, size_t devices, const placement_liveness& liveness) {
  std::vector<uint16_t> live;
  for (size_t device = 0; device < devices; ++device)
    if (liveness(device)) live.push_back(static_cast<uint16_t>(device));
  if (sources == 0 || live.empty()) return live;
  std::vector<uint16_t> places;
  for (uint32_t source = 0; source < sources; ++source) {
    const size_t device = source * devices / sources;
    const auto next = std::ranges::lower_bound(live, device);
    places.push_back(next == live.end() ? live.front() : *next);
  }
  return places;
}

dispatched_rows dispatch(const expert_map& map, const load_history& load, const load_window& window,
                         const placement_topology& topology, const placement_liveness& liveness,
                         replica_selection selection, std::span<const float> shares) {
  dispatched_rows found;
  const size_t devices = topology.devices.size();
  found.device_rows.assign(size_t{map.layers} * devices, 0.0);
  const bool told_apart = load.sources > 0 && !window.source_rows.empty();
  const auto places = source_devices(told_apart ? load.sources : 0, devices, liveness);
  const size_t sources = places.size();
  if (sources == 0) return found;
  const size_t entries = size_t{map.layers} * map.experts;
  // Where only the nodes of sources matter, rows of one node go together.
  std::vector<double> from_node(topology.nodes.size());
  for (uint32_t layer = 0; layer < map.layers; ++layer)
    for (uint32_t expert = 0; expert < map.experts; ++expert) {
      const size_t entry = size_t{layer} * map.experts + expert;
      const auto replicas = map.replicas(layer, expert);
      const auto total = static_cast<double>(window.rows[entry]);
      double* received = found.device_rows.data() + size_t{layer} * devices;
      found.all += total;
      const auto from_source = [&](size_t source) {
        return told_apart ? static_cast<double>(window.source_rows[source * entries + entry])
                          : total / static_cast<double>(sources);
      };
      if (selection == replica_selection::first) {
        for (size_t source = 0; source < sources; ++source) {
          const uint16_t at = places[source];
          const uint16_t device = replicas[select_replica(selection, replicas, {}, topology, at, 0)];
          received[device] += from_source(source);
          if (distance(topology, at, device) == 2) found.crossing += from_source(source);
        }
        continue;
      }
      if (selection == replica_selection::nearest) {
        for (size_t source = 0; source < sources; ++source) {
          const double rows = from_source(source);
          const uint16_t at = places[source];
          int nearest = 3;
          for (const uint16_t device : replicas) nearest = std::min(nearest, distance(topology, at, device));
          const auto equals = std::count_if(replicas.begin(), replicas.end(),
                                            [&](uint16_t device) { return distance(topology, at, device) == nearest; });
          for (const uint16_t device : replicas)
            if (distance(topology, at, device) == nearest) received[device] += rows / static_cast<double>(equals);
          if (nearest == 2) found.crossing += rows;
        }
        continue;
      }
      std::fill(from_node.begin(), from_node.end(), 0.0);
      for (size_t source = 0; source < sources; ++source)
        from_node[topology.devices[places[source]].node] += from_source(source);
      for (size_t i = 0; i < replicas.size(); ++i) {
        const bool weighted = selection == replica_selection::weighted && !shares.empty();
        const double share =
            weighted ? double{shares[map.offsets[entry] + i]} : 1.0 / static_cast<double>(replicas.size());
        received[replicas[i]] += total * share;
        found.crossing += (total - from_node[topology.devices[replicas[i]].node]) * share;
      }
    }
  return found;
}

}  // namespace troupe
