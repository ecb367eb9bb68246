#include "runtime/wire/ucx_worker.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "runtime/wire/wire_time.hpp"

namespace troupe {

namespace {

// Transport settings go by their table's prefix, not the transport's. A wrong name is not refused.
constexpr std::pair<const char*, const char*> settings[] = {
    {"MEMORY_INVALIDATE", "y"},  // without it failure handling excludes cma
    {"MAX_RNDV_RAILS", "1"},     // one path per message: a second rail over tcp only costs
    // An acknowledgement that arrives while a connection is being closed, or while its peer dies, makes
    // UCX 1.13 abort the process (`tcp_ep.c`, PUT_TX_WAITING_ACK). Without, TCP rendezvous needs none.
    {"PUT_ENABLE", "n"},
    {"RX_SEG_SIZE", "512k"},  // and these carry it in fewer pieces than the 64k by default: half the time at 1 MiB
    // When a connection breaks between the system's word that it takes more and the sending of it, UCX 1.13 completes
    // what it sends without a copy twice, and aborts the process (`uct_tcp_ep_sendv`). With a copy 1 MiB over TCP takes
    // no longer, in pieces larger than the 8k by default that fill whole segments of the loopback device, 8 of 65,483
    // bytes: those of 128k leave 111 bytes over, a segment of their own, and take two fifths longer.
    {"ZCOPY_THRESH", "inf"},
    {"TX_SEG_SIZE", "523800"},
    {"KEEPALIVE_INTERVAL", "1s"},
    {"CM_REUSEADDR", "y"},  // a restarted node binds its old port at once
};

// A TCP connection's window grows by and by from 64 KiB, and a fragment of RX_SEG_SIZE stops at its edge again and
// again: over loopback 1 MiB takes 240 us, with the buffer below 150 us. Setting it ends the growth, up to
// net.ipv4.tcp_rmem, so it is set only where the system grants all of it.
constexpr uint64_t tcp_receive_buffer_bytes = uint64_t{4} << 20U;

// While the system copies a payload into a connection's send buffer it looks at no acknowledgement. Where the
// congestion window is small ("bbr" keeps it at 1 MiB or less over loopback), half of 1 MiB then waits until all of it
// is copied: 220 to 280 us instead of 213. A small buffer, which takes the payload in parts, is enough without a
// network in between.
constexpr const char* loopback_send_buffer = "256k";

constexpr unsigned message_id_hears = 3;  // after those of `ucx_link.hpp`

bool grants_tcp_receive_buffer() {
  uint64_t granted = 0;
  std::ifstream("/proc/sys/net/core/rmem_max") >> granted;
  return granted >= tcp_receive_buffer_bytes;
}

error system_error(const char* doing) {
  return {errc::internal, std::string("the wire could not ") + doing + ": " + std::strerror(errno)};
}

result<void> watch(int set, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) return system_error("watch a descriptor");
  return {};
}

void wait_for(int set, uint64_t timeout_ns) {
  constexpr uint64_t second = 1'000'000'000;
  const timespec longest{static_cast<time_t>(timeout_ns / second), static_cast<long>(timeout_ns % second)};
  pollfd one{set, POLLIN, 0};
  ppoll(&one, 1, &longest, nullptr);
}

}  // namespace

result<std::unique_ptr<ucx_worker>> ucx_worker::make(const std::string& transports, bool one_machine) {
  std::unique_ptr<ucx_worker> made(new ucx_worker(transports, one_machine));
  made->event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  made->poll_set_ = epoll_create1(EPOLL_CLOEXEC);
  made->gate_ = epoll_create1(EPOLL_CLOEXEC);
  if (made->event_fd_ < 0 || made->poll_set_ < 0 || made->gate_ < 0)
    return system_error("make the descriptors it sleeps on");
  if (auto watched = watch(made->poll_set_, made->event_fd_); !watched) return watched.failure();
  if (auto watched = watch(made->gate_, made->poll_set_); !watched) return watched.failure();
  if (auto opened = made->open(); !opened) return opened.failure();
  return made;
}

result<void> ucx_worker::open() {
  ucp_config_t* config = nullptr;
  if (auto read = ucx_check(ucp_config_read(nullptr, nullptr, &config), "read its configuration"); !read) return read;
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> config_owner(config, ucp_config_release);
  for (const auto& [key, value] : settings)
    if (auto set = ucx_check(ucp_config_modify(config, key, value), std::string("set ") + key); !set) return set;
  if (grants_tcp_receive_buffer()) {
    const auto bytes = std::to_string(tcp_receive_buffer_bytes);
    auto set = ucx_check(ucp_config_modify(config, "RCVBUF", bytes.c_str()), "set RCVBUF");
    if (!set) return set;
  }
  if (one_machine_)
    if (auto set = ucx_check(ucp_config_modify(config, "SNDBUF", loopback_send_buffer), "set SNDBUF"); !set) return set;
  if (transports_ != "tcp") {
    // Without it failure handling excludes shared memory.
    auto set = ucx_check(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"), "let shared memory report failures");
    if (!set) return set;
  }
  if (!transports_.empty()) {
    auto set = ucx_check(ucp_config_modify(config, "TLS", transports_.c_str()), "set its transports to " + transports_);
    if (!set) return set;
  }

  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.name = "troupe";
  if (auto made = ucx_check(ucp_init(&parameters, config, &context_), "start with transports " + transports_); !made)
    return made;

  if (auto made = make_worker(worker_); !made) return made;
  int ucx_fd = -1;  // closed, and so out of the poll set, with the worker
  if (auto got = ucx_check(ucp_worker_get_efd(worker_, &ucx_fd), "give a descriptor to wait on"); !got) return got;
  if (auto watched = watch(poll_set_, ucx_fd); !watched) return watched;
  const auto heard = [](void* argument, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
    static_cast<ucx_worker*>(argument)->heard_ = true;
    return UCS_OK;
  };
  return on_message(message_id_hears, heard, this);
}

result<void> ucx_worker::make_worker(ucp_worker_h& out) {
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  return ucx_check(ucp_worker_create(context_, &parameters, &out), "create a worker");
}

result<void> ucx_worker::reopen() {
  close_ucx();
  return open();
}

void ucx_worker::close_ucx() {
  stop_listening();
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  // UCX aborts the process when a worker is destroyed that has unfinished requests; so its context stays, too.
  const bool in_use = std::exchange(left_behind_, false);
  if (context_ != nullptr && !in_use) ucp_cleanup(context_);
  context_ = nullptr;
}

bool ucx_worker::hears() {
  if (transports_ == "tcp") return true;
  // From another worker, so that it takes the way that other processes' messages take.
  ucp_worker_h made = nullptr;
  if (!make_worker(made)) return true;
  std::unique_ptr<ucp_worker, void (*)(ucp_worker_h)> other(made, ucp_worker_destroy);
  const ucp_ep_h endpoint = connect_to_itself(made);
  if (endpoint == nullptr) return true;

  const uint8_t header = 0;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  heard_ = false;
  const ucs_status_ptr_t sent =
      ucp_am_send_nbx(endpoint, message_id_hears, &header, sizeof header, nullptr, 0, &parameters);
  const bool tried = !UCS_PTR_IS_ERR(sent);
  const auto progress_until = [&](auto done) {
    constexpr uint64_t longest_ns = 100'000'000;
    constexpr uint32_t rounds_least = 1000;  // however little of that time this thread was given
    const uint64_t begun_ns = wire_time_ns();
    for (uint32_t round = 0; !done(); ++round) {
      if (round >= rounds_least && wire_time_ns() - begun_ns > longest_ns) return false;
      ucp_worker_progress(made);
      ucp_worker_progress(worker_);
    }
    return true;
  };
  if (tried) progress_until([&] { return heard_; });

  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint, &parameters);
  for (const ucs_status_ptr_t request : {closing, sent}) {
    if (!UCS_PTR_IS_PTR(request)) continue;
    if (progress_until([&] { return ucp_request_check_status(request) != UCS_INPROGRESS; })) {
      ucp_request_free(request);
    } else {
      // A queue that is full as well takes nothing, not even the end of a connection.
      (void)other.release();
      left_behind_ = true;
      break;
    }
  }
  return heard_ || !tried;
}

ucp_ep_h ucx_worker::connect_to_itself(ucp_worker_h from) {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (!ucx_check(ucp_worker_get_address(worker_, &address, &bytes), "tell its worker's address")) return nullptr;
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  parameters.address = address;
  ucp_ep_h endpoint = nullptr;
  if (!ucx_check(ucp_ep_create(from, &parameters, &endpoint), "connect to itself")) endpoint = nullptr;
  ucp_worker_release_address(worker_, address);
  return endpoint;
}

ucx_worker::~ucx_worker() {
  close_ucx();
  if (gate_ >= 0) close(gate_);
  if (poll_set_ >= 0) close(poll_set_);
  if (event_fd_ >= 0) close(event_fd_);
}

result<void> ucx_worker::listen(const socket_address& address, ucp_listener_conn_callback_t on_request,
                                void* argument) {
  ucp_listener_params_t parameters{};
  parameters.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  parameters.sockaddr.addr = address.get();
  parameters.sockaddr.addrlen = address.length;
  parameters.conn_handler.cb = on_request;
  parameters.conn_handler.arg = argument;
  return ucx_check(ucp_listener_create(worker_, &parameters, &listener_), "listen at " + to_string(address.storage));
}

void ucx_worker::stop_listening() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  listener_ = nullptr;
}

std::string ucx_worker::listen_address() const {
  if (listener_ == nullptr) return {};
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (!ucx_check(ucp_listener_query(listener_, &attributes), "tell its address")) return {};
  return to_string(attributes.sockaddr);
}

result<void> ucx_worker::on_message(unsigned id, ucp_am_recv_callback_t handler, void* argument) {
  ucp_am_handler_param_t parameters{};
  parameters.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  parameters.id = id;
  // Persistent: eager data can be kept back when there is no memory to copy it to.
  parameters.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  parameters.cb = handler;
  parameters.arg = argument;
  return ucx_check(ucp_worker_set_am_recv_handler(worker_, &parameters), "register a message handler");
}

bool ucx_worker::arm() {
  // BUSY: something arrived meanwhile; any other failure must not stop progress either.
  return ucp_worker_arm(worker_) == UCS_OK;
}

void ucx_worker::wait(uint64_t timeout_ns) { wait_for(poll_set_, timeout_ns); }

void ucx_worker::wait_at_gate(uint64_t timeout_ns) { wait_for(gate_, timeout_ns); }

void ucx_worker::open_gate() { set_gate(EPOLLIN); }

void ucx_worker::close_gate() { set_gate(0); }

void ucx_worker::set_gate(uint32_t events) {
  epoll_event event{};
  event.events = events;
  epoll_ctl(gate_, EPOLL_CTL_MOD, poll_set_, &event);
}

void ucx_worker::cancel_sleep() {
  if (sleeping_.exchange(false)) return;  // nobody called `wake`
  uint64_t count = 0;
  while (read(event_fd_, &count, sizeof count) > 0) {}
}

void ucx_worker::wake() {
  // The first of several wakers writes; `exchange` only when it may matter keeps the line shared.
  if (!sleeping_.load() || !sleeping_.exchange(false)) return;
  const uint64_t one = 1;
  while (write(event_fd_, &one, sizeof one) < 0 && errno == EINTR) {}
}

void close_descriptors_on_exec() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    if (fd <= 2) continue;  // "." and ".." read as 0
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  }
  closedir(directory);
}

}  // namespace troupe
