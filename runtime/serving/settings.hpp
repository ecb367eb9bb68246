// What a whole deployment agrees on. The head reads it from YAML, validates it once, and hands it to
// every node that joins as JSON, so that no two nodes can differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/profile.hpp"
#include "runtime/error.hpp"
#include "runtime/placement/replica_selection.hpp"
#include "runtime/serving/rebalance_settings.hpp"
#include "runtime/serving/schedule.hpp"
#include "runtime/wire/link_shape.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

struct serving_settings {
  std::string model;  // directory of the model, on every node
  kernels::profile profile = kernels::profile::f32;
  wire_dtype dispatch = wire_dtype::f32;                   // dtype of activations that travel to experts
  wire_dtype combine = wire_dtype::f32;                    // dtype of expert outputs on the way back
  uint32_t nodes = 4;                                      // nodes the unit consists of at the start
  uint32_t nodes_max = 0;                                  // that it may have when more join; 0: as many as `nodes`
  uint32_t shards_per_node = 1;                            // attention shards a device hosts
  uint32_t threads_per_node = 1;                           // compute threads of a device
  uint32_t redundant_replicas = 1;                         // replicas of each expert beyond the first
  std::string placement = "linear";                        // where experts are at the start
  replica_selection selection = replica_selection::first;  // which replica serves a row
  rebalance_settings rebalance;
  std::string prefill_balancer = "published";
  std::string decode_balancer = "stay";
  troupe::schedule schedule;             // how a shard's batch is cut into micro-batches that take turns
  uint32_t rows_max = 256;               // rows of a micro-batch
  uint32_t chunk = 128;                  // prompt rows a sequence contributes to a micro-batch at most
  uint32_t kv_blocks = 512;              // KV blocks of a shard
  uint32_t sequences_max = 256;          // sequences a shard accepts, running and waiting
  uint32_t dispatch_deadline_ms = 2000;  // silence after which rows are sent to another replica
  uint32_t heartbeat_ms = 100;
  uint32_t verdict_ms = 1500;  // silence after which a node is declared dead
  bool payload_checksum = false;
  uint32_t fault_cut_ms = 0;  // fault injection: every node cuts a wire connection about so often; 0: never
  std::string transports = "posix,cma,tcp";  // UCX's list; "tcp" imitates two hosts; empty: UCX's choice
  std::vector<link_rule> links;              // links between nodes that are made slower than they are

  std::string to_json() const;
  // Nodes that memory and numbers are reckoned for.
  uint32_t nodes_limit() const { return nodes_max > nodes ? nodes_max : nodes; }
  // Shards that the load tells apart: shard i of node n is source n * shards_per_node + i, whether it is there or
  // not, so that a number means the same for as long as the cluster lives. 0: they are not told apart.
  uint32_t sources() const { return rebalance.by_source ? nodes_limit() * shards_per_node : 0; }
};

// Fails: malformed, naming the field.
result<serving_settings> parse_settings(std::string_view json);

// Ranges and combinations; the sentence names the field and the range.
result<void> validate(const serving_settings& settings);

std::string_view name(wire_dtype dtype);

}  // namespace troupe
