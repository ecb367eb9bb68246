#include "runtime/placement/eplb.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/placement/packing.hpp"

namespace troupe {

namespace {

// A node's share of a layer, or all of it: so many experts over these devices.
struct part {
  uint32_t first_device = 0;  // among the live ones
  uint32_t devices = 0;
  uint32_t first_item = 0;  // of the layer's replicas
  uint32_t items = 0;
};

// Which experts to replicate: the one whose replicas are largest, again and again. Weights in blocks whose
// maxima are kept, so that finding the largest of 256 looks at 32.
class replicator {
 public:
  explicit replicator(uint32_t experts)
      : rows_(experts), each_(experts + block), count_(experts), largest_(experts / block + 1) {}

  void start(std::span<const float> rows) {
    experts_ = static_cast<uint32_t>(rows.size());
    std::copy(rows.begin(), rows.end(), rows_.begin());
    std::copy(rows.begin(), rows.end(), each_.begin());
    std::fill(each_.begin() + experts_, each_.begin() + (experts_ + block - 1) / block * block, -1.0F);
    std::fill_n(count_.begin(), experts_, 1U);
    for (uint32_t i = 0; i * block < experts_; ++i) refresh(i);
  }
  // The expert that gets one replica more. Experts with `count_max` replicas get none; -1 when all have that.
  int32_t next(uint32_t count_max) {
    uint32_t best = 0;
    for (uint32_t i = 1; i * block < experts_; ++i)
      if (each_[largest_[i]] > each_[largest_[best]]) best = i;
    const uint32_t expert = largest_[best];
    if (each_[expert] < 0) return -1;
    ++count_[expert];
    each_[expert] = count_[expert] < count_max ? rows_[expert] / static_cast<float>(count_[expert]) : -1.0F;
    refresh(best);
    return static_cast<int32_t>(expert);
  }
  float each(uint32_t expert) const { return rows_[expert] / static_cast<float>(count_[expert]); }

 private:
  static constexpr uint32_t block = 16;

  void refresh(uint32_t number) {
    uint32_t best = number * block;
    float highest = each_[best];
    for (uint32_t i = best + 1; i < (number + 1) * block; ++i) {
      const float each = each_[i];
      best = each > highest ? i : best;
      highest = each > highest ? each : highest;
    }
    largest_[number] = best;
  }

  uint32_t experts_ = 0;
  std::vector<float> rows_;
  std::vector<float> each_;  // rows of one replica; -1: takes no more
  std::vector<uint32_t> count_;
  std::vector<uint32_t> largest_;  // of each block
};

class eplb_solver {
 public:
  eplb_solver(uint32_t experts, uint32_t groups, const placement_topology& topology, std::span<const uint32_t> usable,
              bool distinct)
      : experts_(experts),
        distinct_(distinct),
        replicator_(experts),
        packed_rows_(experts),
        packed_(experts),
        each_of_(experts) {
    slots_.first.push_back(0);
    for (const uint32_t slots : usable) slots_.first.push_back(slots_.first.back() + slots);
    for (size_t device = 0; device < usable.size(); ++device)
      if (usable[device] > 0) {
        devices_.push_back(static_cast<uint16_t>(device));
        capacities_.push_back(usable[device]);
      }
    split(groups, topology);
    items_.resize(slots_.slots());
    each_.resize(items_.size());
    part_of_.resize(items_.size());
    order_ = weight_order(std::max<size_t>(items_.size(), groups_));
    for (const auto& share : parts_) {
      fillers_.emplace_back(std::span(capacities_).subspan(share.first_device, share.devices));
      std::fill_n(part_of_.begin() + share.first_item, share.items, static_cast<uint16_t>(&share - parts_.data()));
    }
    if (parts_.size() > 1 || groups_ > 1) {
      node_capacities_.assign(parts_.size(), groups_ / static_cast<uint32_t>(parts_.size()));
      group_rows_.resize(groups_);
    }
  }

  slot_map solve(std::span<const float> rows, uint32_t layers) {
    slots_.layers = layers;
    slots_.experts.assign(size_t{layers} * slots_.slots(), slot_map::no_expert);
    pack_filler nodes(node_capacities_);
    std::iota(packed_.begin(), packed_.end(), uint16_t{0});
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const auto layer_rows = rows.subspan(size_t{layer} * experts_, experts_);
      if (groups_ > 1) pack_groups(layer_rows, nodes);
      for (uint32_t i = 0; i < experts_; ++i) packed_rows_[i] = layer_rows[packed_[i]];
      for (size_t i = 0; i < parts_.size(); ++i) replicate(i);
      pack(slots_.experts.data() + size_t{layer} * slots_.slots());
    }
    return std::move(slots_);
  }

 private:
  // Hierarchical where it may be: groups divide among nodes, and nodes and devices are alike.
  void split(uint32_t groups, const placement_topology& topology) {
    const auto count = static_cast<uint32_t>(devices_.size());
    std::vector<uint32_t> by_node(topology.nodes.size());
    bool in_order = true;
    for (size_t i = 0; i < count; ++i) {
      ++by_node[topology.devices[devices_[i]].node];
      in_order = in_order && (i == 0 || topology.devices[devices_[i - 1]].node <= topology.devices[devices_[i]].node);
    }
    std::erase(by_node, 0U);
    const auto nodes = static_cast<uint32_t>(by_node.size());
    const bool alike = std::equal(by_node.begin() + 1, by_node.end(), by_node.begin()) &&
                       std::equal(capacities_.begin() + 1, capacities_.end(), capacities_.begin());
    const bool hierarchical = groups > 0 && in_order && alike && groups % nodes == 0 && experts_ % groups == 0;
    const uint32_t parts = hierarchical ? nodes : 1;
    groups_ = hierarchical ? groups : 1;
    for (uint32_t i = 0; i < parts; ++i)
      parts_.push_back({i * (count / parts), count / parts, i * (slots_.slots() / parts), slots_.slots() / parts});
  }

  // Whole groups to nodes; afterwards packed_ lists the experts node by node.
  void pack_groups(std::span<const float> rows, pack_filler& nodes) {
    const uint32_t size = experts_ / groups_;
    const uint32_t on_node = node_capacities_.front();
    for (uint32_t group = 0; group < groups_; ++group) {
      double sum = 0;
      for (uint32_t i = 0; i < size; ++i) sum += double{rows[group * size + i]};
      group_rows_[group] = static_cast<float>(sum);
    }
    const auto assign = [&](uint32_t group, uint32_t place) {
      for (uint32_t i = 0; i < size; ++i) packed_[place * size + i] = static_cast<uint16_t>(group * size + i);
    };
    if (on_node == 1) return;  // group g on node g, as published: nothing to balance
    nodes.clear();
    for (const uint16_t group : order_.sort(group_rows_)) {
      const uint32_t node = nodes.put(group_rows_[group]);
      assign(group, node * on_node + nodes.items(node) - 1);
    }
  }

  void replicate(size_t number) {
    const auto& share = parts_[number];
    const uint32_t own = experts_ / static_cast<uint32_t>(parts_.size());
    const auto first = static_cast<uint32_t>(number) * own;
    replicator_.start(std::span<const float>(packed_rows_).subspan(first, own));
    const uint32_t count_max = distinct_ ? share.devices : share.items;
    uint16_t* items = items_.data() + share.first_item;
    for (uint32_t i = 0; i < own; ++i) items[i] = static_cast<uint16_t>(i);
    uint32_t used = own;
    for (; used < share.items; ++used) {
      const int32_t expert = replicator_.next(count_max);
      if (expert < 0) break;
      items[used] = static_cast<uint16_t>(expert);
    }
    float* each = each_.data() + share.first_item;
    for (uint32_t i = 0; i < share.items; ++i) {
      each[i] = i < used ? replicator_.each(items[i]) : 0;
      items[i] = i < used ? packed_[first + items[i]] : slot_map::no_expert;
      if (i < used) each_of_[items[i]] = each[i];
    }
  }

  uint16_t* slots_of(uint16_t* layer, const part& share, uint32_t pack) const {
    return layer + slots_.first[devices_[share.first_device + pack]];
  }

  void pack(uint16_t* layer) {
    if (std::all_of(capacities_.begin(), capacities_.end(), [](uint32_t slots) { return slots == 1; })) {
      for (size_t i = 0; i < items_.size(); ++i) layer[slots_.first[devices_[i]]] = items_[i];
      return;
    }
    for (auto& filler : fillers_) filler.clear();
    for (const uint16_t item : order_.sort(each_)) {
      if (items_[item] == slot_map::no_expert) continue;
      const auto& share = parts_[part_of_[item]];
      auto& filler = fillers_[part_of_[item]];
      if (distinct_) {
        put_distinct(layer, share, filler, item);
        continue;
      }
      const uint32_t pack = filler.put(each_[item]);
      slots_of(layer, share, pack)[filler.items(pack) - 1] = items_[item];
    }
  }

  bool holds(uint16_t* layer, const part& share, const pack_filler& filler, uint32_t pack, uint16_t expert) const {
    const uint16_t* slots = slots_of(layer, share, pack);
    return std::find(slots, slots + filler.items(pack), expert) != slots + filler.items(pack);
  }

  // Where only packs have room that hold the expert already, another pack takes it and hands over in exchange
  // what one of those may hold.
  void put_distinct(uint16_t* layer, const part& share, pack_filler& filler, uint16_t item) {
    const uint16_t expert = items_[item];
    const int32_t found =
        filler.put_where(each_[item], [&](uint32_t pack) { return !holds(layer, share, filler, pack, expert); });
    if (found >= 0) {
      const auto pack = static_cast<uint32_t>(found);
      slots_of(layer, share, pack)[filler.items(pack) - 1] = expert;
      return;
    }
    for (uint32_t open = 0; open < share.devices; ++open) {
      if (filler.items(open) >= capacities_[share.first_device + open]) continue;
      for (uint32_t other = share.devices; other-- > 0;) {
        if (holds(layer, share, filler, other, expert)) continue;
        for (uint32_t slot = filler.items(other); slot-- > 0;) {
          uint16_t& given = slots_of(layer, share, other)[slot];
          if (holds(layer, share, filler, open, given)) continue;
          slots_of(layer, share, open)[filler.items(open)] = given;
          filler.add(open, each_of_[given]);
          filler.shift(other, each_[item] - each_of_[given]);
          given = expert;
          return;
        }
      }
    }
  }

  uint32_t experts_;
  bool distinct_;
  uint32_t groups_ = 1;
  slot_map slots_;
  std::vector<uint16_t> devices_;  // the live ones
  std::vector<uint32_t> capacities_;
  std::vector<uint32_t> node_capacities_;  // in groups
  std::vector<part> parts_;
  std::vector<pack_filler> fillers_;
  replicator replicator_;
  weight_order order_{0};
  std::vector<float> group_rows_;
  std::vector<float> packed_rows_;  // [experts], node by node
  std::vector<uint16_t> packed_;    // [experts], the expert at that place
  std::vector<uint16_t> items_;     // [slots], the expert of each replica
  std::vector<float> each_;         // [slots], its rows
  std::vector<uint16_t> part_of_;   // [slots]
  std::vector<float> each_of_;      // [experts], the rows of one replica
};

result<placement_proposal> run(const placement_input& input, bool distinct) {
  const auto rows = single_precision(expected_rows(input.load, input.limits.decay));
  for (const float value : rows)
    if (!std::isfinite(value)) return error{errc::invalid_argument, "eplb: the load is too large for FP32"};
  const auto usable = usable_slots(input);
  const auto slots = solve_eplb(rows, input.load.layers, input.load.experts, input.limits.expert_groups, input.topology,
                                usable, distinct);
  return placement_proposal{to_expert_map(slots, input.load.experts), std::string(distinct ? "eplb_distinct" : "eplb") +
                                                                          ": replicas for the largest experts, " +
                                                                          "packed heaviest first"};
}

}  // namespace

std::vector<float> single_precision(std::span<const double> rows) {
  std::vector<float> rounded(rows.size());
  std::transform(rows.begin(), rows.end(), rounded.begin(), [](double value) { return static_cast<float>(value); });
  return rounded;
}

slot_map solve_eplb(std::span<const float> rows, uint32_t layers, uint32_t experts, uint32_t groups,
                    const placement_topology& topology, std::span<const uint32_t> usable, bool distinct) {
  return eplb_solver(experts, groups, topology, usable, distinct).solve(rows, layers);
}

result<placement_proposal> place_eplb(const placement_input& input) { return run(input, false); }
result<placement_proposal> place_eplb_distinct(const placement_input& input) { return run(input, true); }

}  // namespace troupe
