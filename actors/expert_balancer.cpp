#include "actors/expert_balancer.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>

#include "runtime/placement/incremental.hpp"
#include "runtime/placement/replica_selection.hpp"

namespace troupe {

namespace {

constexpr std::chrono::milliseconds tick_period_max(100);
constexpr auto drop_again_after = std::chrono::seconds(2);
// Of the recording; what is older is forgotten.
constexpr size_t recorded_bytes_max = size_t{64} << 20U;
constexpr size_t recorded_windows_max = 4096;

std::string text_of(const replica_place& place) {
  return "layer " + std::to_string(place.layer) + ", expert " + std::to_string(place.expert) + " at node " +
         std::to_string(place.node);
}

// What a policy is asked, owned by the job that asks it.
struct plan_question {
  placement_policy policy;
  load_history load;
  placement_topology topology;
  placement_liveness liveness;
  expert_map current;
  placement_limits limits;

  result<placement_plan> answer() const {
    // A policy of the user's may throw.
    try {
      return place(policy, {load, topology, liveness, &current, limits});
    } catch (const std::exception& failure) {
      return error{errc::internal, std::string("the policy threw an exception: ") + failure.what()};
    }
  }
};

}  // namespace

expert_balancer_actor::behavior_type expert_balancer_state::start(
    expert_balancer_actor::stateful_pointer<expert_balancer_state> self, expert_balancer_environment environment) {
  self_ = self;
  environment_ = std::move(environment);
  history_.layers =
      static_cast<uint32_t>(std::count(environment_.moe_layers.begin(), environment_.moe_layers.end(), true));
  history_.experts = environment_.experts;
  history_.sources = environment_.settings.sources();
  recorded_.layers = history_.layers;
  recorded_.experts = history_.experts;
  recorded_.sources = history_.sources;
  collector_.emplace(environment_.moe_layers, environment_.experts, history_.sources,
                     environment_.settings.rebalance.co_activation);
  window_began_ = asked_ = last_activity_ = self->clock().now();
  shown_.policy = environment_.settings.rebalance.policy;
  self->send(self, tick{});
  return {
      [this](const view_ptr& view) { on_view(view); },
      [this](const expert_load& message) {
        if (message.node.value < node_count()) collector_->add(message.node, message.incarnation, message.received);
      },
      [this](const co_activation& message) { collector_->add(message.chosen); },
      [this](const replica_report& message) { on_report(message); },
      [this](const epoch_acknowledged& message) {
        execution_.acknowledged(message.epoch.value);
        carry_on();
      },
      [this](const plan_made& message) { on_plan(message); },
      [this](const tick&) { on_tick(); },
  };
}

const cluster_member* expert_balancer_state::live_member(uint16_t node) const {
  return view_ ? view_->find(node_id{node}) : nullptr;
}

void expert_balancer_state::on_view(const view_ptr& view) {
  if (view_ && view->epoch <= view_->epoch) return;
  view_ = view;
  members_.clear();
  for (const auto& member : view->members)
    members_.push_back({member.node.value, member.incarnation.value, member.draining});
  execution_.see(view->epoch.value, view->placement, members_);
  // Orders to nodes that left are void.
  const auto void_now = [&](const auto& entry) { return live_member(entry.first.node) == nullptr; };
  std::erase_if(loads_, void_now);
  std::erase_if(drops_, void_now);
  consider();
  carry_on();
}

void expert_balancer_state::on_report(const replica_report& message) {
  const auto* member = live_member(message.node.value);
  if (member == nullptr || member->incarnation != message.incarnation ||
      message.layer >= environment_.moe_layers.size() || message.expert >= history_.experts)
    return;
  const replica_place place{message.layer, message.expert, message.node.value};
  active();
  switch (static_cast<replica_outcome>(message.outcome)) {
    case replica_outcome::ready:
      if (loads_.erase(place) == 0) break;
      expert_bytes_ = std::max(expert_bytes_, message.bytes);
      shown_.bytes_moved += message.bytes;
      ++shown_.moves_done;
      execution_.loaded(place);
      break;
    case replica_outcome::failed:
      if (loads_.erase(place) == 0) break;
      ++shown_.moves_failed;
      shown_.last_failure = message.message;
      spdlog::warn("rebalancing: {}; it stays where it was", message.message);
      execution_.failed(place);
      break;
    case replica_outcome::dropped:
      drops_.erase(place);
      execution_.dropped(place);
      break;
    default: break;
  }
  carry_on();
}

void expert_balancer_state::on_tick() {
  const auto& settings = environment_.settings.rebalance;
  const std::chrono::milliseconds window(settings.window_ms);
  const std::chrono::milliseconds heartbeat(environment_.settings.heartbeat_ms);
  self_->delayed_send(self_, std::min({window, tick_period_max, heartbeat}), tick{});
  ++shown_.checks;
  if (!view_) return;
  give_up_late_moves();
  if (self_->clock().now() - window_began_ >= window) end_window();
  consider();
  carry_on();
  show();
}

void expert_balancer_state::end_window() {
  window_began_ = self_->clock().now();
  history_.windows.push_back(collector_->take());
  if (history_.windows.size() > environment_.settings.rebalance.windows)
    history_.windows.erase(history_.windows.begin());
  recorded_.windows.push_back(std::make_shared<const load_window>(history_.windows.back()));
  recorded_bytes_ += bytes_of(history_.windows.back());
  while (recorded_.windows.size() > recorded_windows_max ||
         (recorded_bytes_ > recorded_bytes_max && recorded_.windows.size() > 1)) {
    recorded_bytes_ -= bytes_of(*recorded_.windows.front());
    recorded_.windows.erase(recorded_.windows.begin());
  }
  environment_.board->write(
      [&](board_snapshot& board) { board.load = std::make_shared<const recorded_load>(recorded_); });
  const auto rows = expected_rows(history_, environment_.settings.rebalance.decay);
  std::vector<uint32_t> slots(node_count());
  for (const auto& member : members_) slots[member.node] = 1;
  const auto now = objective_of(map_of(view_->placement, environment_.moe_layers), rows, slots);
  shown_.imbalance = now.balance_mean > 0 ? 1 / now.balance_mean : 0;
}

// Experts must move, whatever the period: a node drains, has none, or took the last replica of one along.
// A policy that leaves a node without any is not asked again for that alone.
std::string expert_balancer_state::urgent_reason(bool members_changed) const {
  const auto& table = view_->placement;
  const bool has_policy = static_cast<bool>(environment_.policy);
  for (const auto& member : members_) {
    const bool holds = std::find(table.nodes.begin(), table.nodes.end(), member.node) != table.nodes.end();
    if (member.draining && holds) return "node " + std::to_string(member.node) + " drains";
    if (!member.draining && !holds && has_policy && members_changed)
      return "node " + std::to_string(member.node) + " has no experts";
  }
  if (!has_policy) return {};
  for (uint32_t layer = 0; layer < table.layers; ++layer)
    for (uint32_t expert = 0; environment_.moe_layers[layer] && expert < table.experts; ++expert) {
      const auto nodes = table.replicas(layer, expert);
      if (std::none_of(nodes.begin(), nodes.end(), [&](uint16_t node) { return live_member(node) != nullptr; }))
        return "layer " + std::to_string(layer) + ", expert " + std::to_string(expert) + " has no live replica";
    }
  return {};
}

std::string expert_balancer_state::ordinary_reason() const {
  const auto& settings = environment_.settings.rebalance;
  const auto& rows = (history_.windows.empty() ? collector_->window() : history_.windows.back()).rows;
  if (!environment_.policy || std::all_of(rows.begin(), rows.end(), [](uint64_t count) { return count == 0; }))
    return {};
  const auto since = self_->clock().now() - asked_;
  if (settings.period_ms > 0 && since >= std::chrono::milliseconds(settings.period_ms)) return "its period has passed";
  if (settings.imbalance > 0 && shown_.imbalance > settings.imbalance && execution_.idle())
    return "the imbalance has passed its threshold";
  return {};
}

// At once when the members are others than those that the policy was last asked about; else when nothing of the
// last plan is under way.
void expert_balancer_state::consider() {
  const bool changed = asked_members_ != members_;
  if (const auto urgent = urgent_reason(changed); !urgent.empty()) {
    const auto window = std::chrono::milliseconds(environment_.settings.rebalance.window_ms);
    const bool again = !solving_ && execution_.idle() && self_->clock().now() - asked_ >= window;
    if (changed || again) ask_policy(urgent);
    return;
  }
  if (solving_) return;
  if (const auto ordinary = ordinary_reason(); !ordinary.empty()) ask_policy(ordinary);
}

uint32_t expert_balancer_state::slots_per_node() const {
  const auto serving = static_cast<uint32_t>(
      std::count_if(members_.begin(), members_.end(), [](const auto& member) { return !member.draining; }));
  if (serving == 0) return 0;
  const auto& settings = environment_.settings;
  const uint32_t redundant = settings.rebalance.redundant_per_layer >= 0
                                 ? static_cast<uint32_t>(settings.rebalance.redundant_per_layer)
                                 : environment_.experts * settings.redundant_replicas;
  const uint32_t replicas = environment_.experts + std::min(redundant, environment_.experts * (serving - 1));
  return (replicas + serving - 1) / serving;
}

void expert_balancer_state::ask_policy(const std::string& why) {
  const auto& settings = environment_.settings.rebalance;
  auto question = std::make_shared<plan_question>();
  // Without a policy experts move only where they must.
  question->policy = environment_.policy ? environment_.policy
                                         : [](const placement_input& input) { return place_incremental(input, {}); };
  if (fall_back_) question->policy = [](const placement_input& input) { return place_incremental(input, {}); };
  question->load = history_;
  if (!question->load.windows.empty() &&
      std::all_of(question->load.windows.back().rows.begin(), question->load.windows.back().rows.end(),
                  [](uint64_t count) { return count == 0; }))
    question->load.windows.clear();  // nothing is known of the load
  question->topology = even_topology(node_count(), 1, slots_per_node());
  question->liveness.live.resize(node_count());
  for (const auto& member : members_) question->liveness.live[member.node] = !member.draining;
  question->current = map_of(view_->placement, environment_.moe_layers);
  question->limits.expert_bytes = expert_bytes_;
  if (settings.move_mb_max > 0) question->limits.move_bytes_max = static_cast<uint64_t>(settings.move_mb_max * 1e6);
  question->limits.expert_groups = 1;  // a node is one device: there is nothing to keep groups together in
  question->limits.rows_per_token = environment_.rows_per_token;
  question->limits.decay = settings.decay;
  solving_ = true;
  asked_ = self_->clock().now();
  asked_members_ = members_;
  ++shown_.questions;
  shown_.last_reason = why;
  active();
  spdlog::debug("rebalancing: the policy is asked, since {}", why);
  environment_.run_behind([question, number = ++questions_, address = caf::actor_cast<caf::actor>(self_)] {
    caf::anon_send(address, plan_made{number, std::make_shared<const result<placement_plan>>(question->answer())});
  });
}

void expert_balancer_state::on_plan(const plan_made& message) {
  if (message.number != questions_) return;  // another question has taken its place
  solving_ = false;
  active();
  if (!*message.plan) {
    ++shown_.plans_refused;
    shown_.last_failure = message.plan->failure().message;
    spdlog::warn("rebalancing: the placement stays as it is: {}", message.plan->failure().message);
    // A node that drains must not wait for a policy that cannot place without it.
    fall_back_ = std::any_of(members_.begin(), members_.end(), [](const auto& member) { return member.draining; });
    return;
  }
  fall_back_ = false;
  const auto& plan = **message.plan;
  ++shown_.plans;
  shown_.balance_before = plan.before.balance_mean;
  shown_.balance_after = plan.after.balance_mean;
  shown_.last_plan = plan.reason;
  std::vector<uint32_t> model_layers;  // of each MoE layer
  for (uint32_t layer = 0; layer < environment_.moe_layers.size(); ++layer)
    if (environment_.moe_layers[layer]) model_layers.push_back(layer);
  std::vector<uint32_t> layers_first;
  for (const auto& move : plan.moves)
    if (layers_first.empty() || layers_first.back() != model_layers[move.layer])
      layers_first.push_back(model_layers[move.layer]);
  const auto& settings = environment_.settings.rebalance;
  const execution_limits limits{slots_per_node() * history_.layers + settings.staging_replicas, 1};
  shown_.moves_superseded += execution_.pursue(table_of(plan.map, environment_.moe_layers), limits, layers_first);
  spdlog::debug("rebalancing: {}; {} replicas to load", plan.reason, execution_.moves_left());
  const bool weighted = environment_.settings.selection == replica_selection::weighted;
  if (weighted && execution_.idle()) publish(view_->placement);  // the shares follow the load all the same
  carry_on();
  show();
}

// Sends whatever can be done now.
void expert_balancer_state::carry_on() {
  if (!view_) return;
  // Nodes tell what they have taken up with their heartbeats, so that more epochs than these would free nothing sooner.
  const auto between_epochs = std::chrono::milliseconds(environment_.settings.heartbeat_ms);
  auto orders = execution_.next(self_->clock().now() - published_ >= between_epochs);
  for (const auto& order : orders.loads) send_load(order);
  for (const auto& place : orders.drops) send_drop(place);
  if (orders.abandoned > 0) {
    shown_.moves_failed += orders.abandoned;
    shown_.last_failure = std::to_string(orders.abandoned) +
                          " moves were given up: no node has room for any of them; raise rebalance.staging_replicas";
    spdlog::warn("rebalancing: {}", shown_.last_failure);
  }
  if (orders.publish) publish(*std::move(orders.publish));
}

void expert_balancer_state::send_load(const plan_execution::load_order& order) {
  loads_[order.what] = self_->clock().now();
  load_replica message{order.what.layer, order.what.expert, false, {}, {}};
  if (const auto* source = order.from ? live_member(*order.from) : nullptr) {
    message.from_peer = true;
    message.source = source->node;
    message.source_incarnation = source->incarnation;
  }
  active();
  tell(live_member(order.what.node)->handle, message);
}

void expert_balancer_state::send_drop(const replica_place& place) {
  drops_[place] = self_->clock().now();
  if (const auto* member = live_member(place.node)) tell(member->handle, drop_replica{place.layer, place.expert});
}

void expert_balancer_state::give_up_late_moves() {
  const auto now = self_->clock().now();
  const auto timeout = std::chrono::milliseconds(environment_.settings.rebalance.move_timeout_ms);
  std::vector<replica_place> late;
  for (const auto& [place, since] : loads_)
    if (now - since > timeout) late.push_back(place);
  for (const auto& place : late) {
    loads_.erase(place);
    ++shown_.moves_failed;
    shown_.last_failure = text_of(place) + " did not come within " +
                          std::to_string(environment_.settings.rebalance.move_timeout_ms) +
                          " ms (rebalance.move_timeout_ms)";
    spdlog::warn("rebalancing: {}; it stays where it was", shown_.last_failure);
    execution_.failed(place);
  }
  for (auto& [place, since] : drops_)
    if (now - since > drop_again_after) send_drop(place);
}

void expert_balancer_state::publish(placement_table table) {
  if (environment_.settings.selection == replica_selection::weighted) add_shares(table);
  active();
  published_ = self_->clock().now();
  tell(view_->coordinator, publish_placement{view_->epoch, std::make_shared<const placement_table>(std::move(table))});
}

// What part of an expert's rows each replica should get, so that the fullest node gets fewest.
void expert_balancer_state::add_shares(placement_table& table) const {
  constexpr float whole = 65535;
  auto live = map_of(table, environment_.moe_layers);
  expert_map serving{live.layers, live.experts, {0}, {}};
  for (size_t entry = 0; entry + 1 < live.offsets.size(); ++entry) {
    for (uint32_t i = live.offsets[entry]; i < live.offsets[entry + 1]; ++i)
      if (live_member(live.devices[i]) != nullptr) serving.devices.push_back(live.devices[i]);
    serving.offsets.push_back(static_cast<uint32_t>(serving.devices.size()));
  }
  const auto rows = expected_rows(history_, environment_.settings.rebalance.decay);
  const auto shares = level_shares(serving, rows, node_count());
  table.shares.clear();
  size_t next = 0;
  // The table's nodes are those of the map, in the same order; dense layers have none.
  for (const uint16_t node : table.nodes)
    table.shares.push_back(live_member(node) != nullptr ? static_cast<uint16_t>(shares[next++] * whole) : uint16_t{0});
}

void expert_balancer_state::show() {
  shown_.moves_left = execution_.moves_left();
  shown_.asking = solving_;
  const auto idle = self_->clock().now() - last_activity_;
  shown_.idle_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(idle).count());
  environment_.board->write([this](board_snapshot& board) { board.rebalance = shown_; });
}

}  // namespace troupe
