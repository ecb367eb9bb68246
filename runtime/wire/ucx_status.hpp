// The one checking wrapper around UCX: its status codes as this project's errors.
//
// Every call into UCX passes its status through `ucx_check` or `ucx_status`. Any thread.
#pragma once

#include <ucp/api/ucp.h>

#include <string_view>

#include "runtime/error.hpp"

namespace troupe {

// An error that says what was being done, what UCX answered, and what to do about it.
// Requires: `status` is a failure.
error ucx_error(ucs_status_t status, std::string_view doing);

// `doing` completes "UCX could not ...".
result<void> ucx_check(ucs_status_t status, std::string_view doing);

// The status behind what a non-blocking call returned: OK when it completed at once, INPROGRESS when
// its callback will be called, else the failure (and no callback will be called).
ucs_status_t ucx_status(ucs_status_ptr_t returned);

}  // namespace troupe
