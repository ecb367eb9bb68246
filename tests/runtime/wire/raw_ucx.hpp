// UCX without the wire: what the wire is measured against, and what lies to it in tests.
//
// One worker, one endpoint, used by the thread that made it. A failed call ends the program.
#pragma once

#include <sched.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/wire/socket_address.hpp"
#include "runtime/wire/ucx_status.hpp"

namespace troupe {

class raw_ucx {
 public:
  explicit raw_ucx(const std::string& transports) {
    ucp_config_t* config = nullptr;
    must(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
    must(ucp_config_modify(config, "TLS", transports.c_str()), "set TLS");
    must(ucp_config_modify(config, "MEMORY_INVALIDATE", "y"), "set MEMORY_INVALIDATE");
    must(ucp_config_modify(config, "MAX_RNDV_RAILS", "1"), "set MAX_RNDV_RAILS");
    must(ucp_config_modify(config, "PUT_ENABLE", "n"), "set PUT_ENABLE");
    must(ucp_config_modify(config, "RX_SEG_SIZE", "256k"), "set RX_SEG_SIZE");
    must(ucp_config_modify(config, "RCVBUF", "4m"), "set RCVBUF");
    if (transports != "tcp") must(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"), "set MM_ERROR_HANDLING");
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    must(ucp_init(&parameters, config, &context_), "start");
    ucp_config_release(config);
    ucp_worker_params_t worker_parameters{};
    worker_parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
    must(ucp_worker_create(context_, &worker_parameters, &worker_), "create a worker");
  }
  ~raw_ucx() {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    if (endpoint_ != nullptr) finish(ucp_ep_close_nbx(endpoint_, &parameters));
    if (listener_ != nullptr) ucp_listener_destroy(listener_);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  raw_ucx(const raw_ucx&) = delete;
  raw_ucx& operator=(const raw_ucx&) = delete;

  // Accepts one connection; returns the address.
  std::string listen() {
    const auto any = parse_address("127.0.0.1:0");
    ucp_listener_params_t parameters{};
    parameters.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    parameters.sockaddr.addr = any->get();
    parameters.sockaddr.addrlen = any->length;
    parameters.conn_handler.arg = this;
    parameters.conn_handler.cb = [](ucp_conn_request_h request, void* self) {
      ucp_ep_params_t accepted{};
      accepted.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
      accepted.conn_request = request;
      static_cast<raw_ucx*>(self)->open(accepted);
    };
    must(ucp_listener_create(worker_, &parameters, &listener_), "listen");
    ucp_listener_attr_t attributes{};
    attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    must(ucp_listener_query(listener_, &attributes), "tell its address");
    return to_string(attributes.sockaddr);
  }

  void connect(std::string_view address) {
    const auto to = parse_address(address);
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    parameters.sockaddr.addr = to->get();
    parameters.sockaddr.addrlen = to->length;
    open(parameters);
  }

  void on_message(unsigned id, ucp_am_recv_callback_t handler, void* argument) {
    ucp_am_handler_param_t parameters{};
    parameters.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    parameters.id = id;
    parameters.cb = handler;
    parameters.arg = argument;
    must(ucp_worker_set_am_recv_handler(worker_, &parameters), "register a handler");
  }

  // Returns when UCX has completed it; the status may be a failure. `flags` are UCP_AM_SEND_FLAG_*.
  ucs_status_t send(unsigned id, const void* header, size_t header_size, const void* data, size_t size,
                    uint32_t flags) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = flags;
    return finish(ucp_am_send_nbx(endpoint_, id, header, header_size, data, size, &parameters));
  }

  ucs_status_t receive(void* descriptor, void* to, size_t size) {
    ucp_request_param_t parameters{};
    return finish(ucp_am_recv_data_nbx(worker_, descriptor, to, size, &parameters));
  }

  void progress() {
    if (ucp_worker_progress(worker_) == 0) sched_yield();
  }
  bool failed() const { return failed_; }
  ucp_worker_h worker() const { return worker_; }

 private:
  static void must(ucs_status_t status, std::string_view doing) {
    if (auto done = ucx_check(status, doing); !done) {
      std::fprintf(stderr, "%s\n", done.failure().message.c_str());
      std::abort();
    }
  }

  void open(ucp_ep_params_t parameters) {
    parameters.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters.err_handler.arg = this;
    parameters.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t) { static_cast<raw_ucx*>(self)->failed_ = true; };
    must(ucp_ep_create(worker_, &parameters, &endpoint_), "connect");
  }

  ucs_status_t finish(ucs_status_ptr_t returned) {
    if (ucx_status(returned) != UCS_INPROGRESS) return ucx_status(returned);
    while (ucp_request_check_status(returned) == UCS_INPROGRESS) progress();
    const ucs_status_t status = ucp_request_check_status(returned);
    ucp_request_free(returned);
    return status;
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  bool failed_ = false;
};

}  // namespace troupe
