// A heat map of devices x layers, before and after, as SVG. Pure, any thread.
#pragma once

#include <span>
#include <string>

namespace troupe {

struct heat_panel {
  std::string title;
  std::span<const double> rows;  // [layers, devices], rows received
};

// One panel beside the other, devices across and layers down; a cell's colour is its rows over the mean device's
// of that layer, 0 white to 2 and more dark red, the mean in the middle of the scale. Cells of a colour are one
// path, so that the file stays small.
std::string heat_map_svg(const std::string& title, std::span<const heat_panel> panels, size_t layers, size_t devices);

}  // namespace troupe
