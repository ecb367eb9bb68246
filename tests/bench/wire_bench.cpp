// What a micro-batch between two processes costs: the UCX wire beside UCX itself.
//
//   bench_wire [--passes N] [--sizes BYTES...] [--transports LIST...] [--json]
//   bench_wire --bulk [--chunk BYTES] [--in-flight N] ...
//
// Half round trips between this process and one it starts, in microseconds. Every figure is the median of
// N passes with the lowest and the highest; the passes of all columns alternate, so that a busy machine
// disturbs all alike.
//
//   perftest  ucx_perftest -t ucp_am_lat (package ucx-utils) over the same transports, the better of its
//             defaults and of the wire's threshold for rendezvous; it spins and handles no failures
//   raw       UCX alone as the wire uses it: 128-byte header, failure handling, yielding wait, eager data
//             copied out
//   wire      each side answers from its receiver, on the progress thread
//   actor     an actor sends, an actor of the other process answers, as on the serving path
//   checked   the same with the payload's checksum
//   wake-up   half a round trip of two threads over condition variables, on two cores
//
// The bars: from 64 KiB an actor's hop takes at most 1.2 times perftest's; below, at most two wake-ups more.
// With --bulk: the 99th percentile of a dispatch's round trip rises by at most a fifth and the time of one
// chunk while 1 GiB of bulk goes the same way.
#include <CLI/CLI.hpp>
#include <sys/prctl.h>

#include <array>

#include "tests/bench/wire_bench_actors.hpp"
#include "tests/bench/wire_bench_bulk.hpp"
#include "tests/bench/wire_bench_parts.hpp"

namespace troupe::wire_bench {
namespace {

struct settings {
  int passes = 5;
  std::vector<uint64_t> sizes{4 << 10, 64 << 10, 1 << 20, 16 << 20};
  std::vector<std::string> transports{"shm", "tcp"};
  bool json = false;
  bool bulk = false;
  ucx_wire_options tuned;
};

// "shm" is what the wire uses on one host.
std::string ucx_list(const std::string& name) { return name == "shm" ? ucx_wire_options{}.transports : name; }

struct series {
  std::vector<double> values;
  double middle() const { return median(values); }
  double low() const { return values.empty() ? 0 : *std::ranges::min_element(values); }
  double high() const { return values.empty() ? 0 : *std::ranges::max_element(values); }
};

constexpr const char* perftest_settings[] = {"", "UCX_RNDV_THRESH=64k"};
constexpr const char* column_names[] = {"perftest", "perftest_64k", "raw", "wire", "actor", "checked"};
enum column : uint8_t { perftest, perftest_64k, raw, wire, actor, checked, column_count };

using row = std::array<series, column_count>;

void print_row(const settings& wanted, const std::string& transports, uint64_t bytes, const row& figures,
               const series& wake_up) {
  const double by_default = figures[perftest].middle();
  const double with_threshold = figures[perftest_64k].middle();
  const bool default_is_better = with_threshold == 0 || (by_default > 0 && by_default <= with_threshold);
  const series& peer = figures[default_is_better ? perftest : perftest_64k];
  const double ratio = peer.middle() > 0 ? figures[actor].middle() / peer.middle() : 0;
  const double wake_ups = peer.middle() > 0 ? (figures[actor].middle() - peer.middle()) / wake_up.middle() : 0;
  const bool by_ratio = bytes >= rendezvous_bytes;
  const bool held = by_ratio ? ratio <= 1.2 : wake_ups <= 2;
  const char* verdict = peer.middle() == 0 ? "no perftest" : held ? "held" : "missed";
  if (wanted.json) {
    std::printf(R"({"transports":"%s","bytes":%zu)", transports.c_str(), static_cast<size_t>(bytes));
    for (size_t c = 0; c < column_count; ++c)
      std::printf(R"(,"%s_us":[%.3f,%.3f,%.3f])", column_names[c], figures[c].middle(), figures[c].low(),
                  figures[c].high());
    std::printf(R"(,"wake_up_us":[%.3f,%.3f,%.3f],"ratio":%.3f,"wake_ups":%.2f,"bar":"%s"})"
                "\n",
                wake_up.middle(), wake_up.low(), wake_up.high(), ratio, wake_ups, verdict);
  } else {
    std::printf("%9zu", static_cast<size_t>(bytes));
    const auto print = [](const series& one) {
      char text[64];
      std::snprintf(text, sizeof text, "%.1f (%.1f-%.1f)", one.middle(), one.low(), one.high());
      std::printf("  %26s", text);
    };
    print(peer);
    for (size_t c = raw; c < column_count; ++c) print(figures[c]);
    std::printf("  %5.2f  %8.2f  %s%s\n", ratio, wake_ups, verdict, default_is_better ? "" : " (perftest: 64k)");
  }
  std::fflush(stdout);
}

void measure_hops(const settings& wanted, const std::string& transports) {
  const std::string list = ucx_list(transports);
  std::map<uint64_t, row> rows;
  series wake_up;
  series wake_up_anywhere;
  actors here;
  buffer_pool pool(uint64_t{256} << 20U);
  for (int pass = 0; pass < wanted.passes; ++pass) {
    wake_up.values.push_back(time_wake_up(true));
    wake_up_anywhere.values.push_back(time_wake_up(false));
    for (const uint64_t bytes : wanted.sizes) {
      row& into = rows[bytes];
      for (size_t i = 0; i < std::size(perftest_settings); ++i)
        if (const double figure = time_perftest(list, bytes, perftest_settings[i]); figure > 0)
          into[perftest + i].values.push_back(figure);
      into[raw].values.push_back(time_raw(list, bytes));
      {
        const server peer({"--serve-wire", list});
        const client_wire node(wire_options(1, list, false), peer.address());
        into[wire].values.push_back(time_wire(*node, pool, bytes));
      }
      for (const bool checksum : {false, true}) {
        const server peer({"--serve-actor", list, checksum ? "1" : "0"});
        const client_wire node(wire_options(1, list, checksum), peer.address());
        into[checksum ? checked : actor].values.push_back(time_actor(here, *node, pool, bytes));
      }
    }
  }
  if (!wanted.json) {
    std::printf("\n%s (%s), half a round trip in us, median (lowest-highest) of %d passes\n%9s", transports.c_str(),
                list.c_str(), wanted.passes, "bytes");
    for (const char* name : {"perftest", "raw", "wire", "actor", "actor, checked"}) std::printf("  %26s", name);
    std::printf("  ratio  wake-ups  bar\n");
  }
  for (const uint64_t bytes : wanted.sizes) print_row(wanted, transports, bytes, rows[bytes], wake_up);
  if (!wanted.json)
    std::printf("a wake-up across cores: %.1f (%.1f-%.1f) us; wherever the threads run: %.1f (%.1f-%.1f) us\n",
                wake_up.middle(), wake_up.low(), wake_up.high(), wake_up_anywhere.middle(), wake_up_anywhere.low(),
                wake_up_anywhere.high());
}

void measure_bulk(const settings& wanted, const std::string& transports) {
  bulk_bench bench(ucx_list(transports), wanted.tuned);
  bulk_figures figures;
  for (int pass = 0; pass < wanted.passes; ++pass) bench.pass(figures);
  if (figures.loaded_us.empty() || figures.idle_us.empty()) return;
  const double chunks = static_cast<double>(bulk_bytes) / static_cast<double>(wanted.tuned.bulk_chunk_bytes);
  const double chunk_us = median(figures.alone_seconds) * 1e6 / chunks;
  const double beside_us = median(figures.seconds) * 1e6 / chunks;  // what a dispatch may find under way
  const double idle[] = {quantile(figures.idle_us, 0.5), quantile(figures.idle_us, 0.99)};
  const double loaded[] = {quantile(figures.loaded_us, 0.5), quantile(figures.loaded_us, 0.99)};
  const double bar_us = 1.2 * idle[1] + chunk_us;
  const double beside_bar_us = 1.2 * idle[1] + beside_us;
  const double alone_rate = static_cast<double>(bulk_bytes) / median(figures.alone_seconds) / 1e9;
  const double rate = static_cast<double>(bulk_bytes) / median(figures.seconds) / 1e9;
  const auto verdict = [&](double bar) { return loaded[1] <= bar ? "held" : "missed"; };
  if (wanted.json) {
    std::printf(
        R"({"transports":"%s","chunk_bytes":%zu,"in_flight":%u,"idle_p50_us":%.1f,"idle_p99_us":%.1f,"loaded_p50_us":%.1f,"loaded_p99_us":%.1f,"chunk_us":%.1f,"bar_us":%.1f,"bulk_gb_s":%.2f,"bulk_alone_gb_s":%.2f,"dispatches":%zu,"bar":"%s"})"
        "\n",
        transports.c_str(), static_cast<size_t>(wanted.tuned.bulk_chunk_bytes), wanted.tuned.bulk_chunks_in_flight,
        idle[0], idle[1], loaded[0], loaded[1], chunk_us, bar_us, rate, alone_rate, figures.loaded_us.size(),
        verdict(bar_us));
  } else {
    std::printf(
        "\n%s, dispatches of %zu KiB, round trip in us; bulk in chunks of %zu KiB, %u in flight\n"
        "  without bulk  p50 %8.1f  p99 %8.1f\n"
        "  with bulk     p50 %8.1f  p99 %8.1f  of %zu dispatches\n"
        "  one chunk alone             %8.1f; 1.2 p99 and one of them %8.1f: %s\n"
        "  one chunk beside dispatches %8.1f; 1.2 p99 and one of them %8.1f: %s\n"
        "  bulk %.2f GB/s with dispatches, %.2f GB/s alone\n",
        transports.c_str(), static_cast<size_t>(bulk_dispatch_bytes >> 10U),
        static_cast<size_t>(wanted.tuned.bulk_chunk_bytes >> 10U), wanted.tuned.bulk_chunks_in_flight, idle[0], idle[1],
        loaded[0], loaded[1], figures.loaded_us.size(), chunk_us, bar_us, verdict(bar_us), beside_us, beside_bar_us,
        verdict(beside_bar_us), rate, alone_rate);
  }
  std::fflush(stdout);
}

// The modes in which this program starts itself.
int serve(const std::vector<std::string>& arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string& mode = arguments[0];
  if (mode == "--serve-wire" && arguments.size() == 2) serve_wire(arguments[1]);
  if (mode == "--serve-actor" && arguments.size() == 3) serve_actor(arguments[1], arguments[2] == "1");
  if (mode == "--serve-raw" && arguments.size() == 3) serve_raw(arguments[1], std::stoull(arguments[2]));
  if (mode == "--serve-bulk" && arguments.size() == 4) {
    ucx_wire_options tuned;
    tuned.bulk_chunk_bytes = std::stoull(arguments[2]);
    tuned.bulk_chunks_in_flight = static_cast<uint32_t>(std::stoul(arguments[3]));
    serve_bulk(arguments[1], tuned);
  }
  return 2;
}

int run(int argc, char** argv) {
  settings wanted;
  CLI::App app{"What a micro-batch between two processes costs: the UCX wire beside UCX itself."};
  app.add_option("--passes", wanted.passes, "Alternating passes of every column")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--sizes", wanted.sizes, "Payload bytes, multiples of 4096")->capture_default_str();
  app.add_option("--transports", wanted.transports, "shm (shared memory), tcp, or a list of UCX's")
      ->capture_default_str();
  app.add_flag("--json", wanted.json, "One JSON object a line; each *_us is [median, lowest, highest]");
  app.add_flag("--bulk", wanted.bulk, "Measure dispatches beside bulk instead");
  app.add_option("--chunk", wanted.tuned.bulk_chunk_bytes, "With --bulk: bulk_chunk_bytes")->capture_default_str();
  app.add_option("--in-flight", wanted.tuned.bulk_chunks_in_flight, "With --bulk: bulk_chunks_in_flight")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const uint64_t bytes : wanted.sizes) {
    if (bytes == 0 || bytes % row_size != 0 || bytes > uint64_t{64} << 20U) {
      std::fprintf(stderr, "bench_wire: --sizes must be multiples of 4096, up to 64 MiB\n");
      return 2;
    }
  }
  for (const auto& transports : wanted.transports)
    wanted.bulk ? measure_bulk(wanted, transports) : measure_hops(wanted, transports);
  return 0;
}

}  // namespace
}  // namespace troupe::wire_bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0].starts_with("--serve-")) return troupe::wire_bench::serve(arguments);
  return troupe::wire_bench::run(argc, argv);
}
