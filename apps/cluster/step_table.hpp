// The step account for people: where the time went, layer by layer, and how close the run is to its bound.
#pragma once

#include <string>

#include "actors/cluster_board.hpp"
#include "runtime/accounting/run_bound.hpp"

namespace troupe {

// A node's times since it began to serve.
run_times times_of(const board_node& node);

// The /steps document: sums over all nodes for each layer, then a line for each node with its bound and
// what its schedule uses. Aligned; ends with a newline.
std::string render_steps(const board_snapshot& board);

// Lines of cells as aligned text, numbers to the right.
std::string align(const std::vector<std::vector<std::string>>& lines);

}  // namespace troupe
