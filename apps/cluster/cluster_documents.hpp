// The cluster for people and machines: `/cluster`, `/metrics` and the table that `serve` prints.
#pragma once

#include <string>

#include "actors/cluster_board.hpp"

namespace troupe {

// The /cluster document (docs/api.md).
std::string render_cluster(const board_snapshot& board, const std::string& model_name);

// Prometheus exposition format; each metric carries its help text.
std::string render_metrics(const board_snapshot& board);

// One line a node, aligned; ends with a newline.
std::string render_table(const board_snapshot& board);

}  // namespace troupe
