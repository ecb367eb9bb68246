// api_server: owns every request that it accepted.
//
// It alone holds prompt ids, seed, parameters and the ids emitted so far, and commits a token by
// (request, attempt, index), so a shard that was given up cannot emit twice. When a request's shard
// leaves the view, the request goes to another shard, with what was emitted as replay; the stream goes
// on at the next index. It knows no sockets: front ends hand it a request and a sink.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "actors/busy_reminders.hpp"
#include "actors/cluster_board.hpp"
#include "actors/messages.hpp"
#include "runtime/model/config.hpp"
#include "runtime/model/detokeniser.hpp"
#include "runtime/model/stop_matcher.hpp"
#include "runtime/model/tokenizer.hpp"

namespace troupe {

using api_server_actor =
    caf::typed_actor<caf::reacts_to<submit_generation>, caf::reacts_to<cancel_generation>, caf::reacts_to<prompt_route>,
                     caf::reacts_to<tokens_emitted>, caf::reacts_to<sequence_failed>, caf::reacts_to<sequence_moved>,
                     caf::reacts_to<view_ptr>, caf::reacts_to<tick>>;

struct api_server_environment {
  std::shared_ptr<const model_config> config;
  std::shared_ptr<const tokenizer> words;  // may be null in tests: then prompts come as ids, and no text goes out
  std::string model_name;
  chat_options chat;
  uint32_t default_max_tokens = 256;
  uint32_t requests_max = 1024;  // accepted and unfinished
  uint32_t positions_max = 0;    // prompt and completion; 0: the model's own limit
  uint64_t seed = 0;             // of the generator that draws seeds for requests without one
  caf::strong_actor_ptr prefill_balancer;
  std::shared_ptr<cluster_board> board;
};

class api_server_state {
 public:
  static constexpr const char* name = "api_server";

  api_server_actor::behavior_type start(api_server_actor::stateful_pointer<api_server_state> self,
                                        api_server_environment environment);

 private:
  struct request_record {
    request_id id;
    uint64_t ticket = 0;
    std::shared_ptr<const generation_request> asked;
    std::shared_ptr<const generation_sink> sink;
    std::vector<int32_t> tokens;  // prompt, then everything committed
    uint32_t prompt_tokens = 0;
    uint32_t max_tokens = 0;
    uint64_t seed = 0;
    uint32_t attempt = 0;
    std::optional<shard_ref> shard;  // none while it waits for a route
    std::optional<detokeniser> words;
    stop_matcher stops;

    uint32_t committed() const { return static_cast<uint32_t>(tokens.size()) - prompt_tokens; }
  };

  void on_submit(const submit_generation& message);
  void on_cancel(const cancel_generation& message);
  void on_route(const prompt_route& message);
  void on_tokens(const tokens_emitted& message);
  void on_failed(const sequence_failed& message);
  void on_moved(const sequence_moved& message);
  void on_view(const view_ptr& view);

  result<request_record> accept(const submit_generation& message);
  result<std::vector<int32_t>> prompt_ids(const generation_request& request) const;
  void route(request_record& record);
  // Returns true when the request ended with this token.
  bool commit(request_record& record, const emitted_token& token);
  void finish(request_record& record, finish_reason reason);
  void release(const request_record& record);
  void start_at(request_record& record, const shard_ref& shard, const caf::strong_actor_ptr& handle);
  caf::strong_actor_ptr shard_handle(const shard_ref& shard) const;

  api_server_actor::stateful_pointer<api_server_state> self_ = nullptr;
  api_server_environment environment_;
  std::mt19937_64 seeds_;
  std::map<request_id, request_record> requests_;
  std::map<uint64_t, request_id> tickets_;
  busy_reminders reminders_;
  view_ptr view_;
  uint64_t requests_seen_ = 0;
};

}  // namespace troupe
