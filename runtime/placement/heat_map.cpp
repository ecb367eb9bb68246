#include "runtime/placement/heat_map.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

namespace troupe {

namespace {

constexpr int colours = 16;
constexpr int margin = 50;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(), format, values...);
  return line.data();
}

// White over yellow and orange to dark red.
std::string colour(int step) {
  static constexpr std::array<std::array<int, 3>, 4> stops = {
      {{255, 255, 255}, {254, 217, 118}, {240, 90, 40}, {110, 0, 20}}};
  const double at = static_cast<double>(step) / (colours - 1) * 3;
  const auto low = std::min<size_t>(2, static_cast<size_t>(at));
  const double part = at - static_cast<double>(low);
  std::array<int, 3> mixed{};
  for (size_t i = 0; i < 3; ++i)
    mixed[i] = static_cast<int>(std::lround(stops[low][i] + part * (stops[low + 1][i] - stops[low][i])));
  return print("#%02x%02x%02x", mixed[0], mixed[1], mixed[2]);
}

std::string cells(std::span<const double> rows, size_t layers, size_t devices, int width, int height) {
  std::vector<std::string> paths(colours);
  for (size_t layer = 0; layer < layers; ++layer) {
    const auto row = rows.subspan(layer * devices, devices);
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(devices);
    for (size_t device = 0; device < devices; ++device) {
      const double relative = mean > 0 ? row[device] / mean : 0;
      const int step = static_cast<int>(std::lround(std::min(1.0, relative / 2) * (colours - 1)));
      paths[static_cast<size_t>(step)] += print("M%zu %zuh%dv%dh-%dz", device * static_cast<size_t>(width),
                                                layer * static_cast<size_t>(height), width, height, width);
    }
  }
  std::string out;
  for (int step = 0; step < colours; ++step)
    if (!paths[static_cast<size_t>(step)].empty())
      out += "<path fill=\"" + colour(step) + "\" d=\"" + paths[static_cast<size_t>(step)] + "\"/>\n";
  return out;
}

}  // namespace

std::string heat_map_svg(const std::string& title, std::span<const heat_panel> panels, size_t layers, size_t devices) {
  const int width = std::clamp(static_cast<int>(576 / std::max<size_t>(1, devices)), 2, 36);
  const int height = std::clamp(static_cast<int>(576 / std::max<size_t>(1, layers)), 2, 36);
  const int panel_width = width * static_cast<int>(devices);
  const int panel_height = height * static_cast<int>(layers);
  const int full_width = margin + static_cast<int>(panels.size()) * (panel_width + margin);
  const int full_height = panel_height + 150;
  std::string svg = print(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n",
      full_width, full_height, full_width, full_height);
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"#f4f4f4\"/>\n";
  svg += print("<text x=\"%d\" y=\"28\" font-size=\"16\">", margin) + escaped(title) + "</text>\n";
  int x = margin;
  for (const auto& panel : panels) {
    svg += print("<text x=\"%d\" y=\"58\">", x) + escaped(panel.title) + "</text>\n";
    svg +=
        print("<g transform=\"translate(%d 68)\">\n", x) + cells(panel.rows, layers, devices, width, height) + "</g>\n";
    svg += print("<text x=\"%d\" y=\"%d\">device 0 to %zu</text>\n", x, panel_height + 86, devices - 1);
    svg += print("<text transform=\"translate(%d %d) rotate(-90)\">layer %zu to 0</text>\n", x - 8, panel_height + 68,
                 layers - 1);
    x += panel_width + margin;
  }
  for (int step = 0; step < colours; ++step)
    svg += print("<rect x=\"%d\" y=\"%d\" width=\"16\" height=\"12\" fill=\"", margin + 16 * step, full_height - 48) +
           colour(step) + "\"/>\n";
  svg += print("<text x=\"%d\" y=\"%d\">rows of the device: 0 to twice the layer's mean, and more</text>\n</svg>\n",
               margin, full_height - 16);
  return svg;
}

}  // namespace troupe
