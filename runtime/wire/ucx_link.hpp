// One connection, and all the connections of a wire.
//
// A peer has one connection, made by either side and used by both. When both connect at the same moment
// there are two for a while; the one that the higher node made is given up once all that was sent on it
// has been received.
//
// `ucx_links` makes and accepts connections, greets (see `ucx_greeting.hpp`), decides which session of
// a peer is current, notices failures, connects anew and closes. UCX's callbacks only note what happened;
// `run`, called between two rounds of progress, acts on it. Progress thread only.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/wire/socket_address.hpp"
#include "runtime/wire/ucx_counters.hpp"
#include "runtime/wire/ucx_greeting.hpp"
#include "runtime/wire/ucx_peer.hpp"
#include "runtime/wire/ucx_receiver.hpp"
#include "runtime/wire/ucx_sender.hpp"
#include "runtime/wire/ucx_wire_options.hpp"
#include "runtime/wire/ucx_worker.hpp"

namespace troupe {

// Ids of UCX's active messages.
constexpr unsigned message_id_data = 1;
constexpr unsigned message_id_greeting = 2;

class ucx_links;

struct ucx_link {
  ucx_links* owner = nullptr;
  ucp_ep_h ucp_endpoint = nullptr;
  ucx_peer* peer = nullptr;  // null until an accepted connection has been greeted on
  bool greeted = false;      // the handshake is complete
  bool failed = false;       // UCX says so
  ucs_status_t failure = UCS_OK;
  bool unwanted = false;  // to be closed by the next `run`
  bool made_here = false;
  bool automatic = false;  // made anew, and not asked for
  bool heard = false;      // a greeting has come on it
  uint64_t made_ns = 0;
  bool retiring = false;       // this side starts nothing more on it
  bool retire_said = false;    // and has told the other side so
  uint64_t sends = 0;          // data messages that UCX has under way; the link outlives them
  sockaddr_storage address{};  // of the other side
  uint64_t deadline_ns = 0;    // of the handshake
  ucs_status_ptr_t closing = nullptr;
};

class ucx_links {
 public:
  ucx_links(const ucx_wire_options& options, ucx_counters& counters, peer_table& peers, ucx_worker& worker,
            ucx_sender& sender, ucx_receiver& receiver);
  ~ucx_links();

  // Registers for greetings and listens.
  result<void> open(const socket_address& listen);

  // What the wire's verbs of the same names ask for.
  void connect(uint16_t node, uint32_t incarnation, const socket_address& address);
  void disconnect(uint16_t node, std::string_view reason);
  void cut(uint16_t node);
  void refuse(uint16_t node, uint32_t incarnation);

  // Acts on what callbacks noted, on deadlines and silences. True when there was anything.
  bool run(uint64_t now_ns);
  // The longest the progress thread may sleep.
  int sleep_max_ms(uint64_t now_ns) const;

  // Whether since the last call a connection was lost or fell silent, or a handshake took too long.
  bool take_lost() { return std::exchange(lost_, false); }

  // Lets go of every connection, to be made anew after `open`; until then `run` accepts and makes none.
  void let_go(std::string_view reason);

  // Closing: says goodbye; then lets go of everything. Requires: no more `connect`.
  void say_bye();
  void close_all();
  bool all_closed() const { return links_.empty() && closing_.empty() && greetings_unfinished_ == 0; }
  uint64_t greetings_unfinished() const { return greetings_unfinished_; }

 private:
  struct outgoing_greeting;

  static void on_request(ucp_conn_request_h request, void* argument);
  static void on_failure(void* argument, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t on_greeting(void* argument, const void* header, size_t header_size, void* data, size_t size,
                                  const ucp_am_recv_param_t* parameters);
  static void on_greeting_sent(void* ucx_request, ucs_status_t status, void* argument);

  // Connections.
  result<ucx_link*> make_link(ucp_ep_params_t parameters, ucx_peer* peer);
  void accept_waiting();
  ucx_link* find(ucp_ep_h endpoint) const;
  void lose(ucx_link& link, std::string_view reason);
  void close(std::unique_ptr<ucx_link> link);
  bool handle_failures();
  bool finish_closing();
  void check_deadlines(uint64_t now_ns);
  void check_silences(uint64_t now_ns);

  // Greetings.
  void greet(ucx_link& link, greeting_phase phase, const greeting* answered, refusal reason = refusal::none);
  void answer(ucx_link& link, const greeting& said);
  void answer_hello(ucx_link& link, const greeting& said);
  void answer_welcome(ucx_link& link, const greeting& said);
  void answer_ready(ucx_link& link, const greeting& said);
  refusal judge(const greeting& said) const;

  void answer_refusal(ucx_link& link, const greeting& said);
  void answer_retire(ucx_link& link);
  void answer_foreign(ucx_link& link, const foreign_greeting& said);

  // Peers.
  enum class ending : uint8_t {
    for_good,
    broken,  // to be connected anew, if it is wanted
  };
  void begin_session(ucx_peer& peer, uint32_t incarnation);
  void bring_up(ucx_peer& peer, ucx_link& link);
  void drop(ucx_peer& peer, std::string_view reason, bool cut_here, ending how);
  void set_state(ucx_peer& peer, peer_state state);

  // Connecting anew, and giving up a second connection.
  void attempt(ucx_peer& peer);
  void schedule(ucx_peer& peer);
  bool check_retries(uint64_t now_ns);
  void settle(ucx_peer& peer);
  bool say_retired();
  void report(const ucx_peer& peer, bool up, std::string_view reason);

  const ucx_wire_options& options_;
  ucx_counters& counters_;
  peer_table& peers_;
  ucx_worker& worker_;
  ucx_sender& sender_;
  ucx_receiver& receiver_;
  std::vector<std::unique_ptr<ucx_link>> links_;
  std::vector<std::unique_ptr<ucx_link>> closing_;
  std::vector<ucp_conn_request_h> requests_;  // connections to accept
  uint64_t next_session_;
  uint64_t greetings_unfinished_ = 0;
  uint64_t deadlines_checked_ns_ = 0;
  uint64_t silences_checked_ns_ = 0;
  uint64_t warned_ns_ = 0;       // of a stranger
  uint32_t retrying_ = 0;        // peers in that state
  uint64_t next_retry_ns_ = 0;   // no attempt of theirs is due before
  uint32_t retiring_ = 0;        // links that may have to be told of
  bool attention_ = false;       // a link has failed or become unwanted
  uint64_t close_again_ns_ = 0;  // when an unwanted link is old enough to be closed; 0: there is none
  bool lost_ = false;
  bool paused_ = false;  // since `let_go`
  bool shutting_down_ = false;
};

}  // namespace troupe
