// The wire between processes and hosts, over UCX: shared memory and cma on one host, TCP between hosts.
//
// Owned by its node. One progress thread ("troupe-wire") owns all of UCX, delivers to the receivers and
// calls `on_peer`; every method may be called from any thread, that one included, and none blocks but
// the destructor, `settle` and `wait`. UCX takes some settings from the starting environment only: start the process
// with UCX_ERROR_SIGNALS= (empty) and UCX_WARN_UNUSED_ENV_VARS=n. Child processes must exec at once.
//
// Traffic is plaintext and unauthenticated; it belongs on a private network.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/function_ref.hpp"
#include "runtime/wire/ucx_wire_options.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

class ucx_wire final : public wire {
 public:
  // Fails: invalid_argument (options), unavailable (the listen address is taken), unsupported (no such
  // transport), internal.
  static result<std::unique_ptr<ucx_wire>> make(ucx_wire_options options);

  // Sends what is under way for up to `drain_timeout_ms`, says goodbye, closes. Reports no events.
  // Requires: buffers received into pools of the wire's own have been dropped.
  ~ucx_wire() override;
  ucx_wire(const ucx_wire&) = delete;
  ucx_wire& operator=(const ucx_wire&) = delete;

  // "host:port" as bound; with a listen host of 0.0.0.0 peers need another host name before it.
  std::string listen_address() const;

  // Begins to connect to that incarnation of a node; `on_peer` tells the outcome. What is sent
  // meanwhile waits. No effect when it is connected or connecting; an earlier incarnation is dropped.
  // Either side may connect, or both; a node that is connected to needs to do nothing.
  //
  // From then on a connection that breaks or cannot be made is tried again (`reconnect_min_ms`,
  // `reconnect_max_ms`), silently, until the peer is up again, refuses or leaves, or `disconnect`,
  // `refuse` or a later incarnation ends it. What is sent meanwhile waits for the next attempt, and is
  // dropped if that fails.
  // Fails: invalid_argument (the address; a host name is looked up, which may block).
  result<void> connect(uint16_t node, uint32_t incarnation, std::string_view address);

  // Drops a peer, connected or connecting; `on_peer` reports it down. It may connect again.
  void disconnect(uint16_t node);

  // Cuts the connections to a node as if the network had: what is under way is lost, the peer notices,
  // and whoever was told to connect does so again. For tests and fault injection.
  void cut(uint16_t node);

  // Gives up a node's incarnation and all before it: dropped if connected, refused from now on.
  void refuse(uint16_t node, uint32_t incarnation);

  void attach(uint16_t slot, receiver to) override;
  void detach(uint16_t slot) override;

  // Returns when no receiver that was detached before is being called. Waits for the progress thread, except on
  // that thread itself.
  void settle();

  uint32_t handlers_most() const override;

  // A turn: the calling thread does the progress thread's work, in its place, so that what it sends and waits for takes
  // no switch of threads. Receivers and `on_peer` are then called by it. From `begin_turn`, unless that is false since
  // the progress thread is at work, until `end_turn`, after which what arrives is the progress thread's again. Not
  // nested, not inside a receiver, and over before the wire is destroyed.
  bool begin_turn();
  // Delivers what has arrived and hands over what was sent.
  void progress();
  // The same, and sleeps in between, until `ready()` or until that time of the steady clock. `ready` is asked often.
  void wait(function_ref<bool()> ready, uint64_t until_ns);
  void end_turn();
  // Any thread: has a `wait` ask once more.
  void end_wait();

  // To this node itself: delivered at once on the calling thread, without a copy.
  // Fails: exhausted (the class's bytes or messages in flight to that peer are at their maximum),
  // unavailable (no such peer or incarnation), invalid_argument (the payload is larger than
  // `payload_bytes_max`, or the header's counts do not agree with it).
  result<void> send(endpoint to, micro_batch message) override;

  wire_statistics statistics() const override;
  ucx_wire_counters counters() const;

 private:
  class engine;

  explicit ucx_wire(std::unique_ptr<engine> started);

  const std::unique_ptr<engine> engine_;
};

}  // namespace troupe
