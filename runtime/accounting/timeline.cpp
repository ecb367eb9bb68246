#include "runtime/accounting/timeline.hpp"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>

namespace troupe {

namespace {

// Tracks of a node's process in the trace.
constexpr int device_track = 1;
constexpr int wait_track = 2;
constexpr int incoming_track = 100;  // + the sender's node
constexpr int outgoing_track = 400;  // + the addressee's node
// The list ends with an event, not a comma, so that strict JSON readers take it too.
constexpr const char* last_line = R"({"name":"end","ph":"M","pid":0,"args":{}}])"
                                  "\n";
constexpr auto flush_period = std::chrono::milliseconds(200);

double us(uint64_t ns) { return static_cast<double>(ns) / 1000.0; }

const char* transfer_name(message_kind kind) { return kind == message_kind::dispatch ? "DISPATCH" : "COMBINE"; }

}  // namespace

result<std::unique_ptr<timeline>> timeline::open(const std::filesystem::path& file, uint16_t node, bool background) {
  std::FILE* const opened = std::fopen(file.c_str(), "ae");
  if (opened == nullptr)
    return error{errc::unavailable, "the timeline cannot be written to " + file.string() + ": " + std::strerror(errno)};
  std::unique_ptr<timeline> made(new timeline(opened, node));
  if (background) made->flusher_ = std::thread([held = made.get()] { held->run(); });
  return made;
}

timeline::timeline(std::FILE* file, uint16_t node) : file_(file), node_(node), peers_named_(65536) {
  gathered_.reserve(events_max);
  writing_.reserve(events_max);
  std::fputs("[\n", file_);
  name_tracks(node);
}

timeline::~timeline() {
  ending_ = true;
  if (flusher_.joinable()) flusher_.join();
  flush();
  if (dropped_ != 0)
    spdlog::warn("the timeline of node {} left out {} events: they came faster than it writes", node_, dropped_);
  std::fputs(last_line, file_);
  std::fclose(file_);
}

void timeline::run() {
  while (!ending_) {
    std::this_thread::sleep_for(flush_period);
    flush();
  }
}

void timeline::record(const entry& one) {
  const std::lock_guard lock(lock_);
  if (gathered_.size() == events_max)
    ++dropped_;
  else
    gathered_.push_back(one);
}

void timeline::ran(const stage_label& what, const stage_time& when) {
  entry one;
  one.what = entry::type::stage;
  one.label = what;
  one.begin_ns = when.begin_ns;
  one.end_ns = when.end_ns;
  record(one);
}

void timeline::waited(const stage_label& what, uint64_t begin_ns, uint64_t end_ns, uint64_t exposed_ns,
                      uint64_t mailbox_ns) {
  entry one;
  one.what = entry::type::wait;
  one.label = what;
  one.begin_ns = begin_ns;
  one.end_ns = end_ns;
  one.exposed_ns = exposed_ns;
  one.mailbox_ns = mailbox_ns;
  record(one);
}

void timeline::delivered(const micro_batch& message, uint16_t node) {
  const auto& header = message.header;
  entry one;
  one.what = entry::type::transfer;
  one.label.slot = header.destination_slot;
  one.label.micro_batch = header.micro_batch;
  one.label.layer = header.layer;
  one.label.step = header.step;
  one.label.rows = header.kind == message_kind::dispatch ? header.row_count : header.pair_count;
  one.begin_ns = header.send_time_ns;
  one.end_ns = std::max(message.delivered_ns, header.send_time_ns);
  one.bytes = header.payload_bytes + sizeof header;
  one.dispatch_id = header.dispatch_id;
  one.from = header.source_node;
  one.from_slot = header.source_slot;
  one.to = node;
  one.kind = header.kind;
  record(one);
}

uint64_t timeline::dropped() const {
  const std::lock_guard lock(lock_);
  return dropped_;
}

void timeline::flush() {
  const std::lock_guard flushing(flush_mutex_);
  {
    const std::lock_guard lock(lock_);
    gathered_.swap(writing_);
  }
  for (const auto& one : writing_) write(one);
  writing_.clear();
  std::fflush(file_);
}

void timeline::write(const entry& one) {
  const auto& label = one.label;
  if (one.what == entry::type::stage) {
    std::fprintf(
        file_,
        R"({"name":"%s","cat":"stage","ph":"X","pid":%u,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{"micro_batch":%u,)"
        R"("layer":%u,"step":%llu,"rows":%u,"shard":%u}},)"
        "\n",
        std::string(name(label.kind)).c_str(), node_, device_track, us(one.begin_ns), us(one.end_ns - one.begin_ns),
        label.micro_batch, label.layer, static_cast<unsigned long long>(label.step), label.rows, label.slot);
    return;
  }
  if (one.what == entry::type::wait) {
    std::fprintf(file_,
                 R"({"name":"WAIT","cat":"wait","ph":"X","pid":%u,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{"for":"%s",)"
                 R"("layer":%u,"exposed_us":%.3f,"mailbox_us":%.3f,"bubble_us":%.3f}},)"
                 "\n",
                 node_, wait_track, us(one.begin_ns), us(one.end_ns - one.begin_ns),
                 std::string(name(label.kind)).c_str(), label.layer, us(one.exposed_ns), us(one.mailbox_ns),
                 us(one.end_ns - one.begin_ns - one.exposed_ns - one.mailbox_ns));
    return;
  }
  if (!peers_named_[one.from]) {
    peers_named_[one.from] = true;
    std::fprintf(file_,
                 R"({"name":"thread_name","ph":"M","pid":%u,"tid":%d,"args":{"name":"wire from node %u"}},)"
                 "\n"
                 R"({"name":"thread_name","ph":"M","pid":%u,"tid":%d,"args":{"name":"wire to node %u"}},)"
                 "\n",
                 one.to, incoming_track + one.from, one.from, one.from, outgoing_track + one.to, one.to);
  }
  // One flow for each message: its dispatch's number says whose it is.
  const unsigned owner = one.kind == message_kind::dispatch ? one.from : one.to;
  const unsigned owner_slot = one.kind == message_kind::dispatch ? one.from_slot : label.slot;
  char flow[64];
  std::snprintf(flow, sizeof flow, "%c%u.%u.%u.%u", one.kind == message_kind::dispatch ? 'd' : 'c', owner, owner_slot,
                one.dispatch_id, one.kind == message_kind::dispatch ? one.to : one.from);
  const char* const text = transfer_name(one.kind);
  // Transfers overlap, so each is an asynchronous slice; a flow needs slices of threads at its two ends.
  std::fprintf(file_,
               R"({"name":"%s","cat":"wire","ph":"b","id":"%s","pid":%u,"ts":%.3f,"args":{"micro_batch":%u,)"
               R"("layer":%u,"step":%llu,"rows":%u,"bytes":%llu,"from":%u}},)"
               "\n"
               R"({"name":"%s","cat":"wire","ph":"e","id":"%s","pid":%u,"ts":%.3f},)"
               "\n",
               text, flow, one.to, us(one.begin_ns), label.micro_batch, label.layer,
               static_cast<unsigned long long>(label.step), label.rows, static_cast<unsigned long long>(one.bytes),
               one.from, text, flow, one.to, us(one.end_ns));
  const struct {
    unsigned process;
    int track;
    uint64_t at_ns;
    const char* phase;
  } ends[] = {{one.from, outgoing_track + one.to, one.begin_ns, R"("ph":"s")"},
              {one.to, incoming_track + one.from, one.end_ns, R"("ph":"f","bp":"e")"}};
  for (const auto& end : ends)
    std::fprintf(file_,
                 R"({"name":"%s","cat":"wire","ph":"X","pid":%u,"tid":%d,"ts":%.3f,"dur":0.05},)"
                 "\n"
                 R"({"name":"%s","cat":"flow",%s,"id":"%s","pid":%u,"tid":%d,"ts":%.3f},)"
                 "\n",
                 text, end.process, end.track, us(end.at_ns), text, end.phase, flow, end.process, end.track,
                 us(end.at_ns));
}

void timeline::name_tracks(uint16_t node) {
  std::fprintf(file_,
               R"({"name":"process_name","ph":"M","pid":%u,"args":{"name":"node %u"}},)"
               "\n"
               R"({"name":"process_sort_index","ph":"M","pid":%u,"args":{"sort_index":%u}},)"
               "\n"
               R"({"name":"thread_name","ph":"M","pid":%u,"tid":%d,"args":{"name":"device"}},)"
               "\n"
               R"({"name":"thread_name","ph":"M","pid":%u,"tid":%d,"args":{"name":"waits of the device"}},)"
               "\n",
               node, node, node, node, node, device_track, node, wait_track);
}

result<void> join_timelines(const std::vector<std::filesystem::path>& parts, const std::filesystem::path& into) {
  std::ofstream joined(into, std::ios::binary | std::ios::trunc);
  joined << "[\n";
  for (const auto& part : parts) {
    std::ifstream from(part, std::ios::binary);
    std::string line;
    // Whole events only: the node may have been killed while it wrote.
    while (std::getline(from, line))
      if (line.ends_with("},")) joined << line << '\n';
  }
  joined << last_line;
  joined.flush();
  if (!joined) return error{errc::unavailable, "the timeline cannot be written to " + into.string()};
  std::error_code ignored;
  for (const auto& part : parts)
    if (part != into) std::filesystem::remove(part, ignored);
  return {};
}

}  // namespace troupe
