#include "runtime/wire/ucx_status.hpp"

#include <string>

namespace troupe {

namespace {

errc code_of(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT: return errc::exhausted;
    case UCS_ERR_CANCELED: return errc::cancelled;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR: return errc::invalid_argument;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_BUSY: return errc::unavailable;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NO_DEVICE: return errc::unsupported;
    default: return errc::internal;
  }
}

const char* advice_for(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_DEVICE: return "; check the names in UCX_NET_DEVICES and the configured transports";
    case UCS_ERR_UNREACHABLE: return "; the transports must include tcp, which connections are made over";
    case UCS_ERR_BUSY: return "; is the address in use by another process?";
    case UCS_ERR_INVALID_ADDR: return "; is the address one of this host's?";
    default: return "";
  }
}

}  // namespace

error ucx_error(ucs_status_t status, std::string_view doing) {
  std::string message = "UCX could not ";
  message += doing;
  message += ": ";
  message += ucs_status_string(status);
  message += advice_for(status);
  return {code_of(status), std::move(message)};
}

result<void> ucx_check(ucs_status_t status, std::string_view doing) {
  if (status == UCS_OK) return {};
  return ucx_error(status, doing);
}

ucs_status_t ucx_status(ucs_status_ptr_t returned) {
  if (returned == nullptr) return UCS_OK;
  if (UCS_PTR_IS_ERR(returned)) return UCS_PTR_STATUS(returned);
  return UCS_INPROGRESS;
}

}  // namespace troupe
