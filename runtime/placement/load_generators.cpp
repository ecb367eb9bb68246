#include "runtime/placement/load_generators.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "runtime/placement/random.hpp"
#include "runtime/placement/settings_text.hpp"

namespace troupe {

namespace {

constexpr std::array shapes = {
    std::pair{"uniform", load_shape::uniform},       std::pair{"zipf", load_shape::zipf},
    std::pair{"log_normal", load_shape::log_normal}, std::pair{"drifting", load_shape::drifting},
    std::pair{"bursts", load_shape::bursts},         std::pair{"domains", load_shape::domains}};

constexpr uint64_t entries_max = uint64_t{1} << 28;

result<void> check(const generator_settings& settings) {
  const auto refuse = [](const char* why) {
    return error{errc::invalid_argument, std::string("a generated load: ") + why};
  };
  const auto within = [](double value, double most) { return value >= 0 && value <= most; };
  if (settings.layers == 0 || settings.experts == 0 || settings.windows == 0 || settings.tokens == 0 ||
      settings.rows_per_token == 0 || settings.domains == 0)
    return refuse("layers, experts, windows, tokens, rows_per_token and domains must be above 0");
  if (settings.rows_per_token > settings.experts) return refuse("rows_per_token must not be above experts");
  if (settings.tokens > uint64_t{1} << 40) return refuse("tokens must not be above 2^40");
  if (uint64_t{settings.layers} * settings.experts > entries_max / settings.windows / (1 + settings.sources))
    return refuse("layers x experts x windows x sources must not be above 2^28");
  if (!within(settings.sigma, 10)) return refuse("sigma must be in 0..10");
  if (!within(settings.exponent, 10)) return refuse("exponent must be in 0..10");
  if (!within(settings.memory, 1)) return refuse("memory must be in 0..1");
  if (!within(settings.probability, 1)) return refuse("probability must be in 0..1");
  if (!within(settings.height, 1e6)) return refuse("height must be in 0..1000000");
  return {};
}

// Popularities of one layer's experts, window after window.
class popularity {
 public:
  popularity(const generator_settings& settings, uint32_t mixtures, uint64_t seed)
      : settings_(settings), mixtures_(mixtures), random_(seed), current_(settings.experts) {
    const uint32_t kinds = settings.shape == load_shape::domains ? settings.domains : 1;
    normals_.resize(size_t{kinds} * settings.experts);
    for (auto& normal : normals_) normal = random_.normal();
    shares_.resize(size_t{mixtures} * kinds);
    for (auto& share : shares_) share = random_.normal();
    ranks_.resize(settings.experts);
    std::iota(ranks_.begin(), ranks_.end(), 1U);
    for (uint32_t i = settings.experts; i > 1; --i) std::swap(ranks_[i - 1], ranks_[random_.below(i)]);
    for (auto& entry : current_) entry = random_.uniform();
  }

  void next_window() {
    if (settings_.shape == load_shape::drifting) wander(normals_);
    if (settings_.shape == load_shape::domains) wander(shares_);
    burst_.assign(settings_.experts, 1.0);
    if (settings_.shape == load_shape::bursts)
      for (auto& entry : burst_)
        if (random_.uniform() < settings_.probability) entry = settings_.height;
  }

  // Not normalised.
  std::vector<double> of(uint32_t mixture) const {
    std::vector<double> weights(settings_.experts, 0.0);
    const uint32_t experts = settings_.experts;
    const size_t kinds = normals_.size() / experts;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      if (settings_.shape == load_shape::uniform)
        weights[expert] = current_[expert];
      else if (settings_.shape == load_shape::zipf)
        weights[expert] = std::pow(ranks_[expert], -settings_.exponent);
      else
        for (size_t kind = 0; kind < kinds; ++kind)
          weights[expert] += (kinds == 1 ? 1.0 : std::exp(shares_[mixture * kinds + kind])) *
                             std::exp(settings_.sigma * normals_[kind * experts + expert]) * burst_[expert];
    }
    return weights;
  }
  uint32_t mixtures() const { return mixtures_; }

 private:
  void wander(std::vector<double>& normals) {
    const double fresh = std::sqrt(1 - settings_.memory * settings_.memory);
    for (auto& normal : normals) normal = settings_.memory * normal + fresh * random_.normal();
  }

  const generator_settings& settings_;
  uint32_t mixtures_;
  seeded_random random_;
  std::vector<double> normals_;  // [domains, experts]
  std::vector<double> shares_;   // [mixtures, domains]
  std::vector<double> burst_;    // [experts]
  std::vector<uint32_t> ranks_;  // [experts]
  std::vector<double> current_;  // [experts]
};

// Rows in proportion to weights; rounding is carried along, so that they add up.
void deal(std::span<const double> weights, uint64_t total, uint64_t* rows) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double so_far = 0;
  uint64_t dealt = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    so_far += sum > 0 ? weights[i] / sum : 1.0 / static_cast<double>(weights.size());
    const auto until = std::min(total, static_cast<uint64_t>(std::llround(so_far * static_cast<double>(total))));
    rows[i] = until - std::min(dealt, until);
    dealt = std::max(dealt, until);
  }
}

}  // namespace

result<load_history> generate_load(const generator_settings& settings) {
  if (auto valid = check(settings); !valid) return valid.failure();
  const uint32_t mixtures = std::max(1U, settings.sources);
  const uint64_t total = settings.tokens * settings.rows_per_token;
  load_history load{settings.layers, settings.experts, settings.sources, {}};
  load.windows.resize(settings.windows);
  const size_t entries = size_t{settings.layers} * settings.experts;
  for (auto& window : load.windows) {
    window.rows.resize(entries);
    if (settings.sources > 0) window.source_rows.resize(entries * settings.sources);
  }
  seeded_random seeds(settings.seed);
  for (uint32_t layer = 0; layer < settings.layers; ++layer) {
    popularity experts(settings, mixtures, seeds.next());
    for (auto& window : load.windows) {
      experts.next_window();
      uint64_t* rows = window.rows.data() + size_t{layer} * settings.experts;
      if (settings.sources == 0) {
        deal(experts.of(0), total, rows);
        continue;
      }
      for (uint32_t source = 0; source < settings.sources; ++source) {
        uint64_t* part = window.source_rows.data() + (size_t{source} * settings.layers + layer) * settings.experts;
        deal(experts.of(source), total / settings.sources + (source < total % settings.sources ? 1 : 0), part);
        for (uint32_t expert = 0; expert < settings.experts; ++expert) rows[expert] += part[expert];
      }
    }
  }
  return load;
}

result<generator_settings> parse_generator(const std::string& text) {
  auto parsed = settings_text::parse(text);
  if (!parsed) return parsed.failure();
  generator_settings settings;
  const auto shape =
      std::find_if(shapes.begin(), shapes.end(), [&](const auto& entry) { return parsed->name() == entry.first; });
  if (shape == shapes.end()) {
    std::string list;
    for (const auto& entry : shapes) list += std::string(list.empty() ? "" : ", ") + entry.first;
    return error{errc::invalid_argument, "there is no load '" + parsed->name() + "'; it is a file, or one of: " + list};
  }
  settings.shape = shape->second;
  parsed->take("layers", settings.layers);
  parsed->take("experts", settings.experts);
  parsed->take("windows", settings.windows);
  parsed->take("sources", settings.sources);
  parsed->take("tokens", settings.tokens);
  parsed->take("rows_per_token", settings.rows_per_token);
  parsed->take("seed", settings.seed);
  if (settings.shape == load_shape::zipf) parsed->take("exponent", settings.exponent);
  if (settings.shape != load_shape::zipf && settings.shape != load_shape::uniform)
    parsed->take("sigma", settings.sigma);
  if (settings.shape == load_shape::drifting || settings.shape == load_shape::domains)
    parsed->take("memory", settings.memory);
  if (settings.shape == load_shape::bursts) {
    parsed->take("probability", settings.probability);
    parsed->take("height", settings.height);
  }
  if (settings.shape == load_shape::domains) parsed->take("domains", settings.domains);
  if (auto finished = parsed->finish(); !finished) return finished.failure();
  return settings;
}

}  // namespace troupe
