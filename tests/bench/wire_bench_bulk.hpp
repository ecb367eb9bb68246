// What bulk in the background does to dispatches between the same two nodes.
#pragma once

#include "tests/bench/wire_bench_parts.hpp"

namespace troupe::wire_bench {

constexpr uint64_t bulk_message_bytes = uint64_t{64} << 20U;
constexpr uint64_t bulk_bytes = uint64_t{1} << 30U;
constexpr uint64_t bulk_dispatch_bytes = 32 * 1024;

struct bulk_figures {
  std::vector<double> idle_us;    // round trips of a dispatch without bulk
  std::vector<double> loaded_us;  // and with it
  std::vector<double> seconds;    // of all bulk of a pass, dispatches going on
  std::vector<double> alone_seconds;
};

// Slot 0 echoes, slot 1 swallows and counts for slot 2, which is asked by a dispatch.
inline void serve_bulk(const std::string& transports, const ucx_wire_options& tuned) {
  auto options = wire_options(2, transports, false);
  options.bulk_chunk_bytes = tuned.bulk_chunk_bytes;
  options.bulk_chunks_in_flight = tuned.bulk_chunks_in_flight;
  const auto node = make_wire(options);
  answers own;
  node->attach(0, [&](const micro_batch& message) { (void)node->send(sender_of(message), own.of(message)); });
  node->attach(1, [&](const micro_batch& message) {
    micro_batch receipt;
    receipt.header.kind = message_kind::combine;
    receipt.header.status = combine_status::stale_epoch;  // the one without a payload
    (void)node->send({message.header.source_node, 1, message.header.source_incarnation}, receipt);
  });
  announce_and_wait(node->listen_address());
}

class bulk_bench {
 public:
  bulk_bench(const std::string& transports, const ucx_wire_options& tuned)
      : peer_({"--serve-bulk", transports, std::to_string(tuned.bulk_chunk_bytes),
               std::to_string(tuned.bulk_chunks_in_flight)}),
        wire_(options_of(transports, tuned), peer_.address()),
        dispatch_(dispatch_of(dispatches_, bulk_dispatch_bytes)) {
    for (auto& message : bulk_) {
      message.header.kind = message_kind::bulk;
      message.payload = bulk_pool_.acquire(bulk_message_bytes);
      std::memset(message.payload->data, 2, bulk_message_bytes);
    }
    wire_->attach(0, [this](const micro_batch&) { on_answer(); });
    wire_->attach(1, [this](const micro_batch&) { ++receipts_; });
    feed();  // the receiver's memory is touched, and the caches as they will be
  }

  void pass(bulk_figures& into) {
    ping_pong(into.idle_us, [] { usleep(200'000); });
    into.alone_seconds.push_back(feed());
    ping_pong(into.loaded_us, [&] { into.seconds.push_back(feed()); });
  }

 private:
  static ucx_wire_options options_of(const std::string& transports, const ucx_wire_options& tuned) {
    auto options = wire_options(1, transports, false);
    options.bulk_chunk_bytes = tuned.bulk_chunk_bytes;
    options.bulk_chunks_in_flight = tuned.bulk_chunks_in_flight;
    return options;
  }

  // Round trips of dispatches, one after the other on the progress threads, while `meanwhile` runs.
  void ping_pong(std::vector<double>& into, const std::function<void()>& meanwhile) {
    times_.clear();
    times_.reserve(size_t{4} << 20U);
    going_ = true;
    ended_ = false;
    send_dispatch();
    meanwhile();
    going_ = false;
    while (!ended_) usleep(100);
    into.insert(into.end(), times_.begin(), times_.end());
  }
  void on_answer() {
    times_.push_back(now_us() - began_us_);
    if (going_)
      send_dispatch();
    else
      ended_ = true;
  }
  void send_dispatch() {
    began_us_ = now_us();
    (void)wire_->send({2, 0, 1}, dispatch_);
  }

  // Seconds until all bulk has arrived; two messages are under way at a time.
  double feed() {
    constexpr auto count = static_cast<int>(bulk_bytes / bulk_message_bytes);
    const double began = now_us();
    const int before = receipts_;
    int sent = 0;
    while (receipts_ - before < count) {
      while (sent < count && sent - (receipts_ - before) < 2)
        if (wire_->send({2, 1, 1}, bulk_[sent % 2])) ++sent;
      usleep(200);
    }
    return (now_us() - began) / 1e6;
  }

  const server peer_;
  buffer_pool dispatches_{uint64_t{16} << 20U};
  buffer_pool bulk_pool_{uint64_t{256} << 20U};
  std::vector<double> times_;  // of the progress thread, while it is going
  double began_us_ = 0;
  std::atomic<bool> going_{false};
  std::atomic<bool> ended_{false};
  std::atomic<int> receipts_{0};
  client_wire wire_;
  micro_batch bulk_[2];
  micro_batch dispatch_;
};

}  // namespace troupe::wire_bench
